"""Tagged fields that a schema does not know are ignored wherever they stand (KIP-482)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_request, decode_response, encode_request, encode_response

UNKNOWN = b"\x01\x63\x03xyz"
"""One tagged field: number 99, three bytes."""


def frame(api: ApiKey, version: int, body: Mapping[str, Any]) -> bytes:
    return encode_request(api, version, 1, "x", body)[4:]


def test_behind_the_body_and_in_its_structs() -> None:
    body = {"topics": [{"name": "a"}, {"name": "b"}], "allow_auto_topic_creation": True}
    plain = frame(ApiKey.METADATA, 12, body)
    first = plain.index(b"\x02a") + 2
    assert plain[first] == plain[-1] == 0
    tagged = plain[:first] + UNKNOWN + plain[first + 1 : -1] + UNKNOWN
    assert decode_request(tagged).body == decode_request(plain).body


def test_in_the_header() -> None:
    plain = frame(ApiKey.METADATA, 12, {"topics": None})
    at = 8 + 2 + 1
    assert plain[at] == 0
    tagged = plain[:at] + UNKNOWN + plain[at + 1 :]
    assert decode_request(tagged).body == decode_request(plain).body
    assert decode_request(tagged).client_id == "x"


def test_in_a_response() -> None:
    answer = encode_response(Request(ApiKey.METADATA, 12, 7, None, None, 0), {"brokers": (), "topics": ()})[4:]
    tagged = answer[:4] + UNKNOWN + answer[5:-1] + UNKNOWN
    assert decode_response(ApiKey.METADATA, 12, tagged) == decode_response(ApiKey.METADATA, 12, answer)


def test_beside_and_inside_those_that_are_known() -> None:
    """Fetch 12 knows tag 0 of the body, the cluster's id; 16 knows tag 1, a struct with tags of its own."""
    known = frame(ApiKey.FETCH, 12, {"cluster_id": "abc"})
    section = known[known.index(b"\x01\x00\x04\x04abc") :]
    beside = known[: -len(section)] + b"\x02" + section[1:] + UNKNOWN[1:]
    assert decode_request(beside).body == decode_request(known).body
    nested = frame(ApiKey.FETCH, 16, {"replica_state": {"replica_id": 5, "replica_epoch": 6}})
    struct = b"\x01\x01\x0d" + (5).to_bytes(4, "big") + (6).to_bytes(8, "big") + b"\x00"
    assert nested.endswith(struct)
    inside = nested[: -len(struct)] + b"\x01\x01" + bytes([13 + 5]) + struct[3:-1] + UNKNOWN
    assert decode_request(inside).body == decode_request(nested).body


def test_one_that_is_cut_off_is_refused() -> None:
    plain = frame(ApiKey.METADATA, 12, {"topics": None})
    with pytest.raises(ProtocolError):
        decode_request(plain[:-1] + UNKNOWN[:-1])


@given(st.lists(st.tuples(st.integers(10, 1000), st.binary(max_size=200)), min_size=1, max_size=200))
def test_however_many(tags: list[tuple[int, bytes]]) -> None:
    plain = frame(ApiKey.METADATA, 12, {"topics": [{"name": "a"}]})
    section = varint(len(tags)) + b"".join(varint(number) + varint(len(data)) + data for number, data in tags)
    assert decode_request(plain[:-1] + section).body == decode_request(plain).body


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
