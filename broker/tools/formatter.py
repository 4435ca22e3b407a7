"""How `pykafka consume` shows a record: Kafka's `DefaultMessageFormatter`, JSON lines, nothing, or your own.

A formatter is a function of a record that gives the bytes to be written. `make_formatter(name, properties)` finds
it by name; `module:function` names one of your own, a function of the properties that gives such a function.
Raises ConfigError for an unknown name or property.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Protocol

from broker.errors import ConfigError
from broker.records.record import Header
from broker.settings import did_you_mean, parse_properties, setting
from broker.tools.line_reader import separator_of

__all__ = ["FORMATTERS", "Formatter", "FormatterSettings", "ShownRecord", "make_formatter"]


class ShownRecord(Protocol):
    """What a formatter reads of a consumed record; timestamps in ms."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[Header, ...]: ...


Formatter = Callable[[ShownRecord], bytes]

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatterSettings:
    """The `--property` keys of `pykafka consume`, in Kafka's names."""

    print_timestamp: bool = setting("print.timestamp", False, "Show type and time in ms.")
    print_partition: bool = setting("print.partition", False, "Show the partition.")
    print_offset: bool = setting("print.offset", False, "Show the offset.")
    print_headers: bool = setting("print.headers", False, "Show the headers.")
    print_key: bool = setting("print.key", False, "Show the key.")
    print_value: bool = setting("print.value", True, "Show the value.")
    key_separator: str = setting("key.separator", "\\t", "Between what is shown of a record.")
    headers_separator: str = setting("headers.separator", ",", "Between two headers.")
    line_separator: str = setting("line.separator", "\\n", "After a record.")
    null_literal: str = setting("null.literal", "null", "Shown for null.")


def default_formatter(properties: Mapping[str, str]) -> Formatter:
    """Text as Kafka's console shows it: what was asked for, in a fixed order, the value last."""
    settings = parse_properties(FormatterSettings, properties)
    separator = separator_of("key.separator", properties, settings.key_separator)
    headers_separator = separator_of("headers.separator", properties, settings.headers_separator)
    end = separator_of("line.separator", properties, settings.line_separator)
    null = settings.null_literal.encode()

    def text(field: bytes | None) -> bytes:
        return null if field is None else field

    def show_headers(record: ShownRecord) -> bytes:
        pairs = (name.encode() + b":" + text(value) for name, value in record.headers)
        return headers_separator.join(pairs) or b"NO_HEADERS"

    columns: list[tuple[bool, Formatter]] = [
        (settings.print_timestamp, lambda r: f"{TIMESTAMP_TYPES[r.timestamp_type]}:{r.timestamp}".encode()),
        (settings.print_partition, lambda r: b"Partition:%d" % r.partition),
        (settings.print_offset, lambda r: b"Offset:%d" % r.offset),
        (settings.print_headers, show_headers),
        (settings.print_key, lambda r: text(r.key)),
        (settings.print_value, lambda r: text(r.value)),
    ]
    shown = [column for wanted, column in columns if wanted]
    return lambda record: separator.join(column(record) for column in shown) + end


def json_formatter(properties: Mapping[str, str]) -> Formatter:
    """One JSON object a line with everything there is; bytes that are no UTF-8 as `{"base64": …}`."""
    _refuse(properties, "json")

    def show(record: ShownRecord) -> bytes:
        document = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": TIMESTAMP_TYPES[record.timestamp_type],
            "headers": [[name, _json_bytes(value)] for name, value in record.headers],
            "key": _json_bytes(record.key),
            "value": _json_bytes(record.value),
        }
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    return show


def noop_formatter(properties: Mapping[str, str]) -> Formatter:
    """Shows nothing: reads for the reading's sake."""
    _refuse(properties, "noop")
    return lambda record: b""


FORMATTERS: dict[str, Callable[[Mapping[str, str]], Formatter]] = {
    "default": default_formatter,
    "json": json_formatter,
    "noop": noop_formatter,
}


def make_formatter(name: str, properties: Mapping[str, str]) -> Formatter:
    """The formatter called `name`, or made by `module:function`."""
    if ":" not in name:
        if name not in FORMATTERS:
            raise ConfigError(f"--formatter {name}: unknown{did_you_mean(name, FORMATTERS)}; or give module:function")
        return FORMATTERS[name](properties)
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--formatter {name}: {error}") from error
    formatter: Formatter = factory(properties)
    return formatter


def _refuse(properties: Mapping[str, str], name: str) -> None:
    if properties:
        raise ConfigError(f"--property {next(iter(properties))}: the formatter {name!r} has no properties")


def _json_bytes(field: bytes | None) -> str | dict[str, str] | None:
    if field is None:
        return None
    try:
        return field.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(field).decode()}
