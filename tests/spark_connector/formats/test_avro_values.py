"""Avro's decimals and times as a person sees them: with all of their digits, or as the number that is there."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from pykafka_ui.records.json_text import json_text
from spark_connector.formats.avro_values import avro_reader
from spark_connector.formats.value_format import AvroSchema

FRAME = b"\0\0\0\0\7"


def long(number: int) -> bytes:
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def shown(schema: dict[str, Any], value: bytes) -> str:
    return json_text(avro_reader(AvroSchema(json.dumps(schema)))(FRAME + value))


@pytest.mark.parametrize(
    ("unscaled", "precision", "scale", "text"),
    [
        (110, 4, 2, "1.10"),
        (1234567, 4, 2, "12345.67"),  # more digits than its precision: Java shows them, too
        (-(10**37) - 1, 38, 10, "-1000000000000000000000000000.0000000001"),
        (0, 38, 10, "0.0000000000"),
    ],
)
def test_a_decimal_has_all_of_its_digits(unscaled: int, precision: int, scale: int, text: str) -> None:
    raw = unscaled.to_bytes(17, signed=True)
    about = {"logicalType": "decimal", "precision": precision, "scale": scale}
    assert shown({"type": "bytes", **about}, long(len(raw)) + raw) == f'"{text}"'
    assert shown({"type": "fixed", "name": "F", "size": 17, **about}, raw) == f'"{text}"'


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        ("timestamp-micros", 1_700_000_000_123_456, '"2023-11-14 22:13:20.123456+00:00"'),
        ("local-timestamp-micros", -1, '"1969-12-31 23:59:59.999999"'),
        ("timestamp-millis", 2**63 - 1, str(2**63 - 1)),  # no calendar has it
        ("time-micros", -1, "-1"),
        ("time-micros", 86_399_999_999, '"23:59:59.999999"'),
        ("timestamp-nanos", 2**53 + 1, str(2**53 + 1)),
    ],
)
def test_a_time_is_shown_or_its_number(kind: str, number: int, text: str) -> None:
    assert shown({"type": "long", "logicalType": kind}, long(number)) == text


def test_a_float_that_is_none_is_said() -> None:
    for number, text in ((float("nan"), "NaN"), (float("-inf"), "-Infinity"), (0.1, "0.1")):
        assert shown({"type": "double"}, struct.pack("<d", number)) == text
