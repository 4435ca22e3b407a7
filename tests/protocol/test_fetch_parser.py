"""Fetch responses in every version, and broken bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ErrorCode, ProtocolError
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import parse_fetch_response
from broker.protocol.messages import Request, decode_response, encode_response, field, to_ms

NO_EPOCH = (-1, -1)
versions = st.integers(4, 16)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)

aborted = st.fixed_dictionaries({"producer_id": int64, "first_offset": int64})
partition = st.fixed_dictionaries(
    {
        "partition_index": int32,
        "error_code": st.sampled_from(list(ErrorCode)),
        "high_watermark": int64,
        "last_stable_offset": int64,
        "log_start_offset": int64,
        "aborted_transactions": st.none() | st.lists(aborted, max_size=3),
        "preferred_read_replica": int32,
        "records": st.none() | st.binary(max_size=300),
        "diverging_epoch": st.fixed_dictionaries({"epoch": int32, "end_offset": int64}),
        "current_leader": st.fixed_dictionaries({"leader_id": int32, "leader_epoch": int32}),
        "snapshot_id": st.fixed_dictionaries({"end_offset": int64, "epoch": int32}),
    }
)
topic = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=20),
        "topic_id": st.uuids().filter(lambda id_: id_.int),
        "partitions": st.lists(partition, max_size=3),
    }
)
node = st.fixed_dictionaries({"node_id": int32, "host": st.text(max_size=9), "port": int32, "rack": st.none()})
response = st.fixed_dictionaries(
    {
        "throttle_time": st.integers(0, 2**31 - 1),
        "error_code": st.sampled_from(list(ErrorCode)),
        "session_id": int32,
        "responses": st.lists(topic, max_size=3),
        "node_endpoints": st.lists(node, max_size=2),
    }
)


def encoded(version: int, body: dict[str, Any]) -> bytes:
    """The response as a broker sends it, without its length."""
    return encode_response(Request(ApiKey.FETCH, version, 7, "c", None, 0), body)[4:]


def as_it_is_decoded(version: int, payload: bytes) -> dict[str, Any]:
    _, body = decode_response(ApiKey.FETCH, version, payload)
    partitions = [
        (
            topic.topic_id if version >= 13 else topic.topic,
            p.partition_index,
            p.error_code,
            p.high_watermark,
            p.last_stable_offset,
            field(p, "log_start_offset", -1),
            [(a.producer_id, a.first_offset) for a in p.aborted_transactions or ()],
            field(p, "preferred_read_replica", -1),
            bytes(p.records or b""),
            (epoch.epoch, epoch.end_offset) if (epoch := field(p, "diverging_epoch")) is not None else NO_EPOCH,
            max(snapshot.end_offset, 0) if (snapshot := field(p, "snapshot_id")) is not None else 0,
        )
        for topic in body.responses
        for p in topic.partitions
    ]
    error = field(body, "error_code", ErrorCode.none)
    return {
        "throttle_ms": to_ms(body.throttle_time),
        "error": error,
        "session_id": field(body, "session_id", 0),
        "partitions": partitions,
    }


def as_it_is_parsed(version: int, payload: bytes) -> dict[str, Any]:
    reply = parse_fetch_response(version, memoryview(payload))
    partitions = [(*p[:-3], bytes(p.records), p.diverging or NO_EPOCH, p.archived_end) for p in reply.partitions]
    return {**reply._asdict(), "partitions": partitions}


@given(version=versions, body=response)
def test_it_reads_every_version(version: int, body: dict[str, Any]) -> None:
    payload = encoded(version, body)
    assert as_it_is_parsed(version, payload) == as_it_is_decoded(version, payload)


usual_partition = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 300),
        "high_watermark": int64,
        "last_stable_offset": int64,
        "log_start_offset": int64,
        "preferred_read_replica": int32,
        "records": st.none() | st.binary(max_size=300),
    }
)
usual_topic = st.fixed_dictionaries(
    {"topic_id": st.uuids().filter(lambda id_: id_.int), "partitions": st.lists(usual_partition, max_size=3)}
)


@given(session_id=int32, responses=st.lists(usual_topic, max_size=3), data=st.data())
def test_what_followers_mostly_get_is_read_as_by_the_schema(
    session_id: int, responses: list[Any], data: st.DataObject
) -> None:
    payload = bytearray(encoded(15, {"session_id": session_id, "responses": responses}))
    assert as_it_is_parsed(15, payload) == as_it_is_decoded(15, payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = as_it_is_parsed(15, payload)
    except ProtocolError:
        return
    assert parsed == as_it_is_decoded(15, payload)


@given(version=versions, body=response, data=st.data())
def test_a_response_cut_anywhere_is_a_protocol_error(version: int, body: dict[str, Any], data: st.DataObject) -> None:
    payload = encoded(version, body)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(ProtocolError, match=f"FETCH response version {version}"):
        parse_fetch_response(version, memoryview(payload)[:cut])


@given(version=versions, junk=st.binary(max_size=200))
def test_junk_is_read_or_refused_and_nothing_else(version: int, junk: bytes) -> None:
    try:
        parse_fetch_response(version, memoryview(junk))
    except ProtocolError:
        pass


def test_an_array_that_cannot_fit_is_refused_before_anyone_counts_to_it() -> None:
    payload = bytes(8) + (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="an array of 2147483647 elements"):
        parse_fetch_response(4, memoryview(payload))


def test_records_are_a_view_into_the_response_and_not_a_copy() -> None:
    body = {"responses": [{"topic": "t", "topic_id": uuid.uuid4(), "partitions": [{"records": b"some records"}]}]}
    payload = bytearray(encoded(12, body))
    (partition,) = parse_fetch_response(12, memoryview(payload)).partitions
    assert partition.records.obj is payload
    assert bytes(partition.records) == b"some records"
