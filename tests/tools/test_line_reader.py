"""Lines to records: separators, headers, nulls, and lines that do not fit."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from broker.tools.line_reader import LineReader, ProducedRecord


def read(line: bytes, **properties: str) -> ProducedRecord:
    return LineReader({key.replace("_", "."): value for key, value in properties.items()}).read(line)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_is_a_value_without_its_end(end: bytes) -> None:
    assert read(b"a line" + end) == ProducedRecord(None, b"a line", ())


def test_an_empty_line_is_an_empty_value() -> None:
    assert read(b"\n") == ProducedRecord(None, b"", ())


@pytest.mark.parametrize(
    ("line", "separator", "expected"),
    [
        (b"k\tv", None, (b"k", b"v")),
        (b"k:v", ":", (b"k", b"v")),
        (b"k:v:w", ":", (b"k", b"v:w")),
        (b":v", ":", (b"", b"v")),
        (b"k:", ":", (b"k", b"")),
        (b"k\tv", "\\t", (b"k", b"v")),
        ("k→v".encode(), "→", (b"k", b"v")),
        (b"k v", " ", (b"k", b"v")),
        (b"k\\v", "\\\\", (b"k", b"v")),
    ],
)
def test_the_first_separator_ends_the_key(
    line: bytes, separator: str | None, expected: tuple[bytes | None, bytes | None]
) -> None:
    record = read(line, parse_key="true", **({"key_separator": separator} if separator else {}))
    assert (record.key, record.value) == expected


def test_headers_stand_before_the_key() -> None:
    record = read(b"a:1,b:,a:2\tk\tv", parse_headers="true", parse_key="true")
    assert record == ProducedRecord(b"k", b"v", (("a", b"1"), ("b", b""), ("a", b"2")))


def test_the_null_marker_makes_nulls() -> None:
    record = read(b"a:NULL\tNULL\tNULL", parse_headers="true", parse_key="true", null_marker="NULL")
    assert record == ProducedRecord(None, None, (("a", None),))
    assert read(b"NULL\tk\tv", parse_headers="true", parse_key="true", null_marker="NULL").headers == ()


def test_a_line_without_its_separator_is_named_by_number() -> None:
    reader = LineReader({"parse.key": "true", "key.separator": ":"})
    reader.read(b"k:v")
    with pytest.raises(ConfigError, match="line 2: no key separator ':' in 'no colon'"):
        reader.read(b"no colon\n")


def test_ignore_error_takes_such_a_line_as_a_value() -> None:
    assert read(b"no tab", parse_key="true", ignore_error="true") == ProducedRecord(None, b"no tab", ())


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"parse_keys": "true"}, "did you mean 'parse.key'"),
        ({"parse_key": "yes"}, "parse.key=yes: expected a value of type boolean"),
        ({"key_separator": ""}, "key.separator must not be empty"),
    ],
)
def test_a_wrong_property_is_refused(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(b"", **properties)
