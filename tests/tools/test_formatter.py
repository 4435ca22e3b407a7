"""Records as text: Kafka's layout, JSON, and what cannot be shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from broker.errors import ConfigError
from broker.records.record import Header
from broker.tools.formatter import Formatter, ShownRecord, make_formatter


class Shown(NamedTuple):
    topic: str = "t"
    partition: int = 3
    offset: int = 42
    timestamp: int = 1_700_000_000_000
    timestamp_type: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[Header, ...] = (("a", b"1"), ("b", None))


def upper(properties: Mapping[str, str]) -> Formatter:
    """A formatter of a user's own."""

    def show(record: ShownRecord) -> bytes:
        return (record.value or b"").upper() + properties["end"].encode()

    return show


def test_the_value_alone_is_the_default() -> None:
    assert make_formatter("default", {})(Shown()) == b"v\n"


def test_everything_is_shown_in_kafkas_order() -> None:
    names = ("timestamp", "partition", "offset", "headers", "key", "value")
    shown = make_formatter("default", {f"print.{name}": "true" for name in names})(Shown())
    assert shown == b"CreateTime:1700000000000\tPartition:3\tOffset:42\ta:1,b:null\tk\tv\n"


def test_separators_and_the_null_literal_can_be_set() -> None:
    properties = {
        "print.key": "true",
        "print.headers": "true",
        "key.separator": " | ",
        "line.separator": "\\0",
        "null.literal": "-",
    }
    shown = make_formatter("default", properties)(Shown(key=None, headers=()))
    assert shown == b"NO_HEADERS | - | v\0"


def test_the_brokers_time_is_named() -> None:
    shown = make_formatter("default", {"print.timestamp": "true", "print.value": "false"})(Shown(timestamp_type=1))
    assert shown == b"LogAppendTime:1700000000000\n"


def test_json_tells_text_from_bytes_and_null() -> None:
    line = make_formatter("json", {})(Shown(key=None, value=b"\xff\x00"))
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


def test_noop_shows_nothing() -> None:
    assert make_formatter("noop", {})(Shown()) == b""


def test_a_formatter_of_ones_own_is_found_by_name() -> None:
    assert make_formatter("tests.tools.test_formatter:upper", {"end": "!"})(Shown()) == b"V!"


@pytest.mark.parametrize(
    ("name", "properties", "complaint"),
    [
        ("jsn", {}, "--formatter jsn: unknown; did you mean 'json'"),
        ("no.such.module:f", {}, "No module named 'no'"),
        ("tests.tools.test_formatter:missing", {}, "has no attribute 'missing'"),
        ("default", {"print.keys": "true"}, "did you mean 'print.key'"),
        ("json", {"print.key": "true"}, "the formatter 'json' has no properties"),
    ],
)
def test_a_wrong_name_or_property_is_refused(name: str, properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_formatter(name, properties)
