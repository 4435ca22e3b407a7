"""Produce frames: every version, records that are not copied, and hostile bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ErrorCode, ProtocolError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import (
    Request,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_head,
    request_frame,
    to_ms,
    wants_no_answer,
)

VERSIONS = st.integers(3, 12)
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)
PARTITION = st.fixed_dictionaries(
    {"index": st.integers(-(2**31), 2**31 - 1), "records": st.none() | st.binary(max_size=300)}
)
TOPIC = st.fixed_dictionaries({"name": NAMES, "partition_data": st.lists(PARTITION, max_size=4)})
BODY = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | NAMES,
        "acks": st.integers(-1, 1),
        "timeout": st.integers(0, 2**31 - 1),
        "topic_data": st.lists(TOPIC, max_size=3),
    }
)
IDS = st.integers(-1, 2**31 - 1)
RESULT = st.fixed_dictionaries(
    {
        "index": st.integers(0, 2**31 - 1),
        "error_code": st.sampled_from([ErrorCode.none, ErrorCode.corrupt_message, ErrorCode.not_leader_or_follower]),
        "base_offset": st.integers(-1, 2**63 - 1),
        "log_append_time": st.just(-1) | st.integers(0, 10**13),
        "log_start_offset": st.integers(-1, 2**63 - 1),
    },
    optional={
        "error_message": st.none() | NAMES,
        "current_leader": st.fixed_dictionaries({"leader_id": IDS, "leader_epoch": IDS}),
    },
)
ENDPOINT = st.fixed_dictionaries({"node_id": IDS, "host": NAMES, "port": IDS, "rack": st.none() | NAMES})
ANSWER = st.fixed_dictionaries(
    {
        "responses": st.lists(
            st.fixed_dictionaries({"name": NAMES, "partition_responses": st.lists(RESULT, max_size=3)}), max_size=3
        ),
        "node_endpoints": st.lists(ENDPOINT, max_size=3, unique_by=lambda at: at["node_id"]),
    }
)


def _frame(version: int, body: Any, client_id: str | None = "c") -> bytearray:
    return bytearray(encode_request(ApiKey.PRODUCE, version, 7, client_id, body)[4:])


@given(VERSIONS, BODY, st.none() | NAMES)
def test_a_request_is_read_as_it_was_written(version: int, body: dict[str, Any], client_id: str | None) -> None:
    request = decode_request(_frame(version, body, client_id))
    assert (request.version, request.correlation_id, request.client_id) == (version, 7, client_id)
    assert request.body.transactional_id == body["transactional_id"]
    assert (request.body.acks, to_ms(request.body.timeout)) == (body["acks"], body["timeout"])
    assert wants_no_answer(_frame(version, body, client_id)) == (body["acks"] == 0)
    uses_version_2 = version >= 12 and body["transactional_id"] is not None and body["acks"] != 0
    assert read_head(_frame(version, body, client_id)).relies_on_features == uses_version_2
    read = [
        (t.name, [(p.index, None if p.records is None else bytes(p.records)) for p in t.partition_data])
        for t in request.body.topic_data
    ]
    sent = [(t["name"], [(p["index"], p["records"]) for p in t["partition_data"]]) for t in body["topic_data"]]
    assert read == sent


@given(VERSIONS, BODY, st.none() | NAMES)
def test_a_request_in_parts_is_the_same_request(version: int, body: dict[str, Any], client_id: str | None) -> None:
    parts = request_frame(ApiKey.PRODUCE, version, 7, client_id, body)
    assert b"".join(parts) == encode_request(ApiKey.PRODUCE, version, 7, client_id, body)


def test_records_are_sent_from_where_they_lie() -> None:
    batches = [b"a" * 1000, b"b" * 2000]
    sent = [{"index": number, "records": batch} for number, batch in enumerate(batches)]
    body = {"acks": 1, "timeout": 1, "topic_data": [{"name": "t", "partition_data": sent}]}
    assert [part for part in request_frame(ApiKey.PRODUCE, 9, 1, "c", body) if len(part) >= 1000] == batches


def test_records_are_a_view_of_the_frame_that_can_be_patched() -> None:
    body = {"acks": 1, "timeout": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}]}
    frame = _frame(9, body)
    records = decode_request(frame).body.topic_data[0].partition_data[0].records
    records[0] = ord("X")
    assert b"Xbc" in frame


@given(VERSIONS, ANSWER)
def test_a_response_is_read_as_it_was_written(version: int, answer: dict[str, Any]) -> None:
    payload = encode_response(Request(ApiKey.PRODUCE, version, 7, None, None, 0), answer)
    assert struct.unpack_from(">i", payload)[0] == len(payload) - 4
    correlation_id, body = decode_response(ApiKey.PRODUCE, version, payload[4:])
    assert correlation_id == 7
    for topic, sent in zip(body.responses, answer["responses"], strict=True):
        assert topic.name == sent["name"]
        for partition, wanted in zip(topic.partition_responses, sent["partition_responses"], strict=True):
            assert (partition.index, partition.error_code) == (wanted["index"], wanted["error_code"])
            assert partition.base_offset == wanted["base_offset"]
            if version >= 5:
                assert partition.log_start_offset == wanted["log_start_offset"]
            if version >= 8:
                assert partition.error_message == wanted.get("error_message")
            if version >= 10:
                told = partition.current_leader
                leader = wanted.get("current_leader", {"leader_id": -1, "leader_epoch": -1})
                assert {"leader_id": told.leader_id, "leader_epoch": told.leader_epoch} == leader
    if version >= 10:
        names = ("node_id", "host", "port", "rack")
        assert [{name: getattr(at, name) for name in names} for at in body.node_endpoints] == answer["node_endpoints"]


@given(VERSIONS, BODY, st.data())
def test_a_cut_frame_is_a_protocol_error(version: int, body: dict[str, Any], data: st.DataObject) -> None:
    frame = _frame(version, body)
    with pytest.raises(ProtocolError):
        decode_request(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(VERSIONS, BODY, st.data())
def test_a_damaged_frame_raises_protocol_error_or_is_read(
    version: int, body: dict[str, Any], data: st.DataObject
) -> None:
    frame = _frame(version, body)
    at = data.draw(st.integers(8, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        decode_request(frame)
    except ProtocolError:
        pass


@given(VERSIONS, BODY, st.binary(max_size=100))
def test_other_frames_want_an_answer(version: int, body: dict[str, Any], noise: bytes) -> None:
    head = len(_frame(version, {**body, "acks": 0, "topic_data": []}))
    cut = _frame(version, body)[: head - 10]  # within the transactional id, acks or the time-out
    assert not wants_no_answer(cut)
    assert not read_head(cut).relies_on_features
    assert not wants_no_answer(b"\0\1" + noise), "Fetch"


@given(VERSIONS, BODY)
def test_only_the_beginning_of_a_frame_is_read_to_know_whether_it_wants_an_answer(
    version: int, body: dict[str, Any]
) -> None:
    """A connection asks that of every request it is handling: to decode the topics again would double the work."""
    empty = len(_frame(version, {**body, "topic_data": []}))
    cut = _frame(version, {**body, "acks": 0, "topic_data": [{"name": "t", "partition_data": []}]})[: empty - 4]
    assert wants_no_answer(cut + b"\xff" * 4)


@pytest.mark.parametrize("version", [3, 12])
def test_an_array_announced_longer_than_its_frame_is_refused(version: int) -> None:
    body: dict[str, Any] = {"transactional_id": None, "acks": 1, "timeout": 1, "topic_data": []}
    frame = _frame(version, body)
    if version == 3:
        frame[-4:] = struct.pack(">i", 2**31 - 1)
    else:
        frame[-2:] = b"\xff\xff\xff\xff\x07\x00"
    with pytest.raises(ProtocolError, match="elements"):
        decode_request(frame)
