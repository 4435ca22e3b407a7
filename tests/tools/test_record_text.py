"""Records as text: lines to records, and records in Kafka's layout, as JSON and by a format string."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from broker.client.consumer import ConsumerRecord
from broker.errors import ConfigError, PykafkaError
from broker.tools.record_text import (
    Formatter,
    LineReader,
    ProducedRecord,
    format_string,
    make_formatter,
)

RECORD = ConsumerRecord("t", 3, 42, 1_700_000_000_000, b"k", b"v", (("a", b"1"), ("b", None)), 0)


def upper(properties: Mapping[str, str]) -> Formatter:
    """A formatter of a user's own."""

    def show(record: ConsumerRecord) -> bytes:
        return (record.value or b"").upper() + properties["end"].encode()

    return show


def test_the_value_alone_is_the_default() -> None:
    assert make_formatter("default", {})(RECORD) == b"v\n"


def test_everything_is_shown_in_kafkas_order() -> None:
    names = ("timestamp", "partition", "offset", "headers", "key", "value")
    shown = make_formatter("default", {f"print.{name}": "true" for name in names})(RECORD)
    assert shown == b"CreateTime:1700000000000\tPartition:3\tOffset:42\ta:1,b:null\tk\tv\n"


def test_separators_and_the_null_literal_can_be_set() -> None:
    properties = {
        "print.key": "true",
        "print.headers": "true",
        "key.separator": " | ",
        "line.separator": "\\0",
        "null.literal": "-",
    }
    shown = make_formatter("default", properties)(RECORD._replace(key=None, headers=()))
    assert shown == b"NO_HEADERS | - | v\0"


def test_the_brokers_time_is_named() -> None:
    shown = make_formatter("default", {"print.timestamp": "true", "print.value": "false"})(
        RECORD._replace(timestamp_type=1)
    )
    assert shown == b"LogAppendTime:1700000000000\n"


def test_json_tells_text_from_bytes_and_null() -> None:
    line = make_formatter("json", {})(RECORD._replace(key=None, value=b"\xff\x00"))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_700_000_000_000,
        "timestampType": "CreateTime",
        "headers": [["a", "1"], ["b", None]],
        "key": None,
        "value": {"base64": "/wA="},
    }


@pytest.mark.parametrize("character", ["\x1b", "\x7f", "\x9b", "\x85", "\u2028", "\u202e", "\n", "ü", "€"])
def test_json_stays_one_line_and_moves_no_cursor(character: str) -> None:
    line = make_formatter("json", {})(
        RECORD._replace(value=f"a{character}b".encode(), headers=((f"h{character}", b""),))
    )
    shown = line.decode()
    assert json.loads(line)["value"] == f"a{character}b"
    assert shown.splitlines(keepends=True) == [shown]
    assert (character in shown.removesuffix("\n")) is character.isprintable()


def test_noop_shows_nothing() -> None:
    assert make_formatter("noop", {})(RECORD) == b""


def test_a_formatter_of_ones_own_is_found_by_name() -> None:
    assert make_formatter("tests.tools.test_record_text:upper", {"end": "!"})(RECORD) == b"V!"


@pytest.mark.parametrize(
    ("name", "properties", "complaint"),
    [
        ("jsn", {}, "--formatter jsn: unknown; did you mean 'json'"),
        ("no.such.module:f", {}, "No module named 'no'"),
        ("tests.tools.test_record_text:missing", {}, "has no attribute 'missing'"),
        ("default", {"print.keys": "true"}, "did you mean 'print.key'"),
        ("json", {"print.key": "true"}, "the formatter 'json' has no properties"),
    ],
)
def test_a_wrong_name_or_property_is_refused(name: str, properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_formatter(name, properties)


def test_a_format_string_has_kcats_letters() -> None:
    show = format_string(r"%t [%p] %o %T %k=%s|%v %K %S %h 100%%\t\x41\n")
    assert show(RECORD) == b"t [3] 42 1700000000000 k=v|v 1 1 a=1,b=NULL 100%\tA\n"
    assert show(RECORD._replace(key=None, value=None, headers=())) == b"t [3] 42 1700000000000 =| -1 -1  100%\tA\n"
    assert format_string("%R%s")(RECORD._replace(value=b"abc")) == b"\x00\x00\x00\x03abc"
    assert format_string("%R")(RECORD._replace(value=None)) == b"\xff\xff\xff\xff"
    assert format_string(r"\xff\xC3%k\x1|\0")(RECORD) == b"\xff\xc3k\x01|\0", "bytes, not characters"
    assert format_string("%k")(RECORD._replace(key=b"%s\\n")) == b"%s\\n", "a record's own bytes are no format"


@pytest.mark.parametrize("text", ["%x", "50%"])
def test_an_unknown_letter_of_a_format_string_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is unknown; use %t"):
        format_string(text)


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
    with pytest.raises(PykafkaError, match="line 2: no key separator ':' in 'no colon'"):
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
