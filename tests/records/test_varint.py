"""broker/records/varint.py"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import decode_varint as kafka_decode
from kafka.record.util import encode_varint as kafka_encode

from broker.errors import CorruptBatch
from broker.records.varint import SMALL_VARINTS, encode_varint, read_unsigned_varint, read_varint

int64s = st.integers(-(1 << 63), (1 << 63) - 1)


@given(int64s)
def test_what_is_written_is_read(number: int) -> None:
    encoded = encode_varint(number)
    assert read_varint(b"\xff" + encoded + b"\xff", 1) == (number, 1 + len(encoded))


@given(int64s)
def test_bytes_are_those_of_kafka_python(number: int) -> None:
    written = bytearray()
    kafka_encode(number, written.append)
    assert encode_varint(number) == written
    assert kafka_decode(bytearray(encode_varint(number)), 0)[0] == number


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (-(1 << 63), "ff" * 9 + "01"),
    ],
)
def test_known_encodings(number: int, encoded: str) -> None:
    assert encode_varint(number).hex() == encoded


def test_small_varints_are_the_varints_of_their_index() -> None:
    assert [read_varint(encoded, 0) for encoded in SMALL_VARINTS] == [
        (number, 1 if number < 64 else 2) for number in range(8192)
    ]


@pytest.mark.parametrize("cut", [b"", b"\x80", b"\xff" * 9])
def test_a_cut_varint_is_corrupt(cut: bytes) -> None:
    with pytest.raises(CorruptBatch, match="past the end"):
        read_varint(cut, 0)


def test_more_than_ten_bytes_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="longer than 10 bytes"):
        read_unsigned_varint(b"\xff" * 10 + b"\x01", 0)
