"""Frames whose arrays announce more than there is: refused before memory is reserved for them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from broker.errors import ProtocolError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import (
    Request,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)


def fetch(version: int, partitions: int = 3) -> bytes:
    asked = [{"partition": i, "partition_max_bytes": 7} for i in range(partitions)]
    return encode_request(ApiKey.FETCH, version, 1, "x", {"topics": [{"topic": "topic", "partitions": asked}]})[4:]


@pytest.mark.parametrize("length", [1 << 20, (1 << 31) - 1])
def test_an_array_longer_than_the_frame_is_refused(length: int) -> None:
    legacy = encode_request(ApiKey.METADATA, 4, 1, "x", {"topics": []})[4:]
    at = len(legacy) - 5
    assert legacy[at : at + 4] == b"\0\0\0\0"
    with pytest.raises(ProtocolError, match=f"array of {length} elements"):
        decode_request(legacy[:at] + struct.pack(">i", length) + legacy[at + 4 :])


def test_so_is_one_in_the_compact_encoding() -> None:
    compact = encode_request(ApiKey.METADATA, 12, 1, "x", {"topics": []})[4:]
    at = len(compact) - 4
    assert compact[at] == 1
    with pytest.raises(ProtocolError, match="array of 268435454 elements"):
        decode_request(compact[:at] + b"\xff\xff\xff\x7f" + compact[at + 1 :])


def test_so_is_one_in_a_response() -> None:
    request = Request(ApiKey.METADATA, 4, 1, None, None, 0)
    frame = encode_response(request, {"brokers": (), "topics": ()})[4:]
    assert frame[8:12] == b"\0\0\0\0"
    with pytest.raises(ProtocolError, match="array of 2147483647 elements"):
        decode_response(ApiKey.METADATA, 4, frame[:8] + b"\x7f\xff\xff\xff" + frame[12:])


def test_an_array_that_may_not_be_null_is_refused() -> None:
    frame = encode_request(ApiKey.CREATE_TOPICS, 4, 1, "x", {"topics": ()})[4:]
    at = frame.index(b"\0\0\0\0", 11)
    with pytest.raises(ProtocolError, match="array of -1 elements"):
        decode_request(frame[:at] + b"\xff\xff\xff\xff" + frame[at + 4 :])


@pytest.mark.parametrize("version", range(4, 17))
@pytest.mark.parametrize("partitions", [0, 1, 2, 200])
def test_what_is_whole_passes(version: int, partitions: int) -> None:
    body: Any = decode_request(fetch(version, partitions)).body
    assert len(body.topics[0].partitions) == partitions


def test_tags_are_stepped_over_whether_known_or_not() -> None:
    frame = fetch(12, 2)
    element = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 7)
    at = frame.index(element) + len(element)
    assert frame[at] == 0
    tagged = frame[:at] + b"\x01\x63\x03abc" + frame[at + 1 :]
    assert decode_request(tagged).body == decode_request(frame).body
    with pytest.raises(ProtocolError, match="bytes are missing"):
        decode_request(frame[:at] + b"\x01\x63\x7fabc" + frame[at + 1 :])


def test_a_port_that_is_unsigned_has_two_bytes() -> None:
    """As in the answer of Kafka 3.9 about its controllers."""
    listener = {"name": "CONTROLLER", "host": "localhost", "port": 29393}
    body = {"topics": (), "nodes": [{"node_id": 1, "listeners": [listener]}], "error_message": None}
    frame = encode_response(Request(ApiKey.DESCRIBE_QUORUM, 2, 1, None, None, 0), body)[4:]
    assert decode_response(ApiKey.DESCRIBE_QUORUM, 2, frame)[1].nodes[0].listeners[0].port == 29393


@pytest.mark.parametrize("version", [0, 4])
def test_a_header_that_is_cut_is_refused_even_before_an_empty_body(version: int) -> None:
    """Version 0 of ListGroups has no field whose reading could fail."""
    frame = encode_request(ApiKey.LIST_GROUPS, version, 1, "client", {})[4:]
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:length])


@pytest.mark.parametrize("length", [-2, -(1 << 15)])
def test_only_the_length_minus_one_means_null(length: int) -> None:
    frame = encode_request(ApiKey.JOIN_GROUP, 5, 1, None, {"group_id": "", "member_id": "", "protocol_type": ""})[4:]
    null = b"\xff\xff"
    client_id, instance_id = 8, frame.rindex(null)
    decode_request(frame)
    for at in (client_id, instance_id):
        assert frame[at : at + 2] == null
        with pytest.raises(ProtocolError, match=f"has the length {length}"):
            decode_request(frame[:at] + struct.pack(">h", length) + frame[at + 2 :])


@pytest.mark.parametrize("byte", [2, 0x7F, 0xFF])
def test_a_boolean_is_0_or_1(byte: int) -> None:
    for version in (4, 9):
        frame = encode_request(ApiKey.METADATA, version, 1, "x", {"topics": [], "allow_auto_topic_creation": True})[4:]
        at = frame.rindex(b"\1")
        assert decode_request(frame[:at] + b"\0" + frame[at + 1 :]).body.allow_auto_topic_creation is False
        with pytest.raises(ProtocolError):
            decode_request(frame[:at] + bytes((byte,)) + frame[at + 1 :])
