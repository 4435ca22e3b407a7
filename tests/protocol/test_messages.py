"""kio behind one door: every API in every version goes out and comes back; hostile bytes raise ProtocolError."""

from __future__ import annotations

import datetime
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ErrorCode, ProtocolError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    field,
    known_versions,
    read_head,
    to_ms,
)

EVERY = [(api, version) for api in ApiKey for version in range(known_versions(api)[0], known_versions(api)[1] + 1)]


@pytest.mark.parametrize(("api", "version"), EVERY, ids=[f"{api.name}-{version}" for api, version in EVERY])
def test_an_empty_body_goes_out_and_comes_back_in_every_version(api: ApiKey, version: int) -> None:
    frame = encode_request(api, version, 7, "me", {})
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    request = decode_request(frame[4:])
    assert (request.api, request.version, request.correlation_id, request.client_id) == (api, version, 7, "me")
    answer = encode_response(request, {})
    correlation_id, _ = decode_response(api, version, answer[4:])
    assert correlation_id == 7


def test_fields_a_version_lacks_are_dropped_and_missing_ones_take_their_default() -> None:
    body = {"brokers": [{"node_id": 1, "host": "h", "port": 9, "rack": "r"}], "cluster_id": "c", "topics": []}
    old = decode_request(encode_request(ApiKey.METADATA, 0, 1, None, {})[4:])
    new = decode_request(encode_request(ApiKey.METADATA, 12, 1, None, {"topics": None})[4:])
    _, first = decode_response(ApiKey.METADATA, 0, encode_response(old, body)[4:])
    _, last = decode_response(ApiKey.METADATA, 12, encode_response(new, body)[4:])
    assert field(first, "cluster_id", "absent") == "absent"
    assert last.cluster_id == "c"
    assert last.brokers[0].rack == "r"
    assert last.controller_id == -1


def test_times_are_given_in_milliseconds() -> None:
    body = {"acks": 1, "timeout": 1500, "topic_data": []}
    request = decode_request(encode_request(ApiKey.PRODUCE, 9, 1, None, body)[4:])
    assert to_ms(request.body.timeout) == 1500
    partition = {"index": 0, "error_code": 3, "base_offset": 5, "log_append_time": 1_700_000_000_123}
    answer = {"responses": [{"name": "t", "partition_responses": [partition]}]}
    _, response = decode_response(ApiKey.PRODUCE, 9, encode_response(request, answer)[4:])
    decoded = response.responses[0].partition_responses[0]
    assert decoded.error_code is ErrorCode.unknown_topic_or_partition
    assert to_ms(decoded.log_append_time) == 1_700_000_000_123


def test_no_time_is_minus_one() -> None:
    assert to_ms(None) == -1
    assert to_ms(datetime.timedelta(milliseconds=-1)) == -1


def test_an_api_kio_does_not_know_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersion, match="9999"):
        known_versions(9999)
    with pytest.raises(UnsupportedVersion):
        encode_request(ApiKey.PRODUCE, 99, 1, None, {})


def test_stray_bytes_at_the_end_are_let_pass_as_kafka_does() -> None:
    request = decode_request(encode_request(ApiKey.METADATA, 12, 1, None, {})[4:] + b"xyz")
    assert request.body.topics == ()
    correlation_id, _ = decode_response(ApiKey.METADATA, 12, encode_response(request, {})[4:] + b"x")
    assert correlation_id == 1


@given(st.binary(max_size=200))
def test_random_bytes_raise_a_protocol_error_or_decode(data: bytes) -> None:
    try:
        decode_request(data)
    except ProtocolError:
        return
    assert len(data) >= 8


@given(st.sampled_from(EVERY), st.data())
def test_a_mutated_request_raises_a_protocol_error_or_decodes(case: tuple[ApiKey, int], data: st.DataObject) -> None:
    frame = bytearray(encode_request(case[0], case[1], 1, "client", {})[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        request = decode_request(frame)
    except ProtocolError:
        return
    assert request.api is case[0]


def test_a_head_needs_a_whole_header() -> None:
    with pytest.raises(ProtocolError, match="7 bytes"):
        read_head(b"1234567")


@pytest.mark.parametrize(
    ("length", "text", "client_id", "is_whole"),
    [
        (2, b"me", "me", True),
        (0, b"", "", True),
        (-1, b"", None, True),
        (-2, b"", None, False),
        (3, b"me", None, False),
        (2, b"m\xff", "m\ufffd", False),
    ],
)
def test_a_head_tells_a_client_id_that_is_malformed(
    length: int, text: bytes, client_id: str | None, is_whole: bool
) -> None:
    """The request has a key all the same, by which it is refused or admitted before its body is read."""
    head = read_head(struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, 7, length) + text)
    assert (head.key, head.version, head.correlation_id) == (ApiKey.LIST_GROUPS, 0, 7)
    assert (head.client_id, head.at >= 0) == (client_id, is_whole)
    if is_whole:
        assert head.decode().client_id == client_id
    else:
        with pytest.raises(ProtocolError, match="API 16 version 0: "):
            head.decode()


def test_a_time_may_be_absent_where_kios_schema_knows_no_null() -> None:
    request = decode_request(encode_request(ApiKey.DESCRIBE_TRANSACTIONS, 0, 1, None, {})[4:])
    body = {"transaction_states": [{"transactional_id": "t", "transaction_start_time": -1}]}
    _, answer = decode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, encode_response(request, body)[4:])
    assert to_ms(answer.transaction_states[0].transaction_start_time) == -1
