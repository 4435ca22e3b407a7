r"""Records as text: lines to records for `pykafka produce`, records to text for `pykafka consume`. Pure.

`LineReader` reads lines as Kafka's `LineMessageReader` does. A formatter is a function of a record that returns the
bytes to write: Kafka's `DefaultMessageFormatter`, JSON lines, nothing, kcat's `-f` format string, or the user's own
`module:function`, a function of the `--property` pairs that returns such a function. Raises ConfigError.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker.client.consumer import ConsumerRecord
from broker.control_characters import escaped_json
from broker.errors import ConfigError, PykafkaError
from broker.records.record import Header
from broker.settings import did_you_mean, parse_properties, setting

_ESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_ESCAPE = re.compile(rb"\\(?:([tnr0\\])|x([0-9a-fA-F]{1,2}))")


def _unescape(text: str) -> bytes:
    r"""`\t`, `\n`, `\r`, `\0`, `\\` and `\x1f`, as typed in a shell or file where they are two characters or more."""
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]] if match[1] else bytes([int(match[2], 16)]), text.encode())


def _separator(name: str, properties: Mapping[str, str], default: str) -> bytes:
    """A separator, not stripped of blanks as other settings are. Raises ConfigError when it is empty."""
    text = properties.get(name, default)
    if not text:
        raise ConfigError(f"{name} must not be empty")
    return _unescape(text)


# --- lines to records -----------------------------------------------------------------------------------------------


class ProducedRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """The `--property` keys of `pykafka produce`, in Kafka's names."""

    parse_key: bool = setting(False, "The line has a key.")
    parse_headers: bool = setting(False, "The line has headers, before the key.")
    key_separator: str = setting("\\t", "Between key and value.")
    headers_delimiter: str = setting("\\t", "After the headers.")
    headers_separator: str = setting(",", "Between two headers.")
    headers_key_separator: str = setting(":", "Between a header's name and its value.")
    null_marker: str = setting("", "A key, value or header value that is this text is null.")
    ignore_error: bool = setting(False, "A line without its separators is all value.")


class LineReader:
    """Reads one line after the other. Errors name the line's number.

    A line is a value, or with `parse.key` and `parse.headers` `headers<delimiter>key<separator>value`.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._settings = settings = parse_properties(ReaderSettings, properties)
        self._key_separator = _separator("key.separator", properties, settings.key_separator)
        self._headers_delimiter = _separator("headers.delimiter", properties, settings.headers_delimiter)
        self._headers_separator = _separator("headers.separator", properties, settings.headers_separator)
        self._headers_key_separator = _separator("headers.key.separator", properties, settings.headers_key_separator)
        self._null_marker = settings.null_marker.encode() or None
        self.line_number = 0

    def read(self, line: bytes) -> ProducedRecord:
        """The record of a line, with or without its line end."""
        self.line_number += 1
        rest = line.removesuffix(b"\n").removesuffix(b"\r")
        key: bytes | None = None
        headers: tuple[Header, ...] = ()
        try:
            if self._settings.parse_headers:
                text, rest = self._split(rest, self._headers_delimiter, "headers delimiter")
                headers = self._parse_headers(text)
            if self._settings.parse_key:
                key, rest = self._split(rest, self._key_separator, "key separator")
        except PykafkaError:
            if not self._settings.ignore_error:
                raise
        return ProducedRecord(self._null(key), self._null(rest), headers)

    def _parse_headers(self, text: bytes) -> tuple[Header, ...]:
        if not text or text == self._null_marker:
            return ()
        pairs = (
            self._split(header, self._headers_key_separator, "header key separator")
            for header in text.split(self._headers_separator)
        )
        return tuple((name.decode(errors="replace"), self._null(value)) for name, value in pairs)

    def _split(self, text: bytes, separator: bytes, what: str) -> tuple[bytes, bytes]:
        before, found, after = text.partition(separator)
        if not found:
            shown = text[:80].decode(errors="replace")
            raise PykafkaError(
                f"line {self.line_number}: no {what} {separator.decode(errors='replace')!r} in {shown!r}; "
                "set another one with --property, or ignore.error=true to take such a line as a value"
            )
        return before, after

    def _null(self, field: bytes | None) -> bytes | None:
        return None if field is not None and field == self._null_marker else field


# --- records to text ------------------------------------------------------------------------------------------------


Formatter = Callable[[ConsumerRecord], bytes]

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatterSettings:
    """The `--property` keys of `pykafka consume`, in Kafka's names."""

    print_timestamp: bool = setting(False, "Show type and time in ms.")
    print_partition: bool = setting(False, "Show the partition.")
    print_offset: bool = setting(False, "Show the offset.")
    print_headers: bool = setting(False, "Show the headers.")
    print_key: bool = setting(False, "Show the key.")
    print_value: bool = setting(True, "Show the value.")
    key_separator: str = setting("\\t", "Between what is shown of a record.")
    headers_separator: str = setting(",", "Between two headers.")
    line_separator: str = setting("\\n", "After a record.")
    null_literal: str = setting("null", "Shown for null.")


def default_formatter(properties: Mapping[str, str]) -> Formatter:
    """Text as Kafka's console shows it: the wanted fields in a fixed order, the value last."""
    settings = parse_properties(FormatterSettings, properties)
    separator = _separator("key.separator", properties, settings.key_separator)
    headers_separator = _separator("headers.separator", properties, settings.headers_separator)
    end = _separator("line.separator", properties, settings.line_separator)
    null = settings.null_literal.encode()

    def text(field: bytes | None) -> bytes:
        return null if field is None else field

    def show_headers(record: ConsumerRecord) -> bytes:
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
    """One JSON object per line with all fields. Bytes that are not UTF-8 become `{"base64": …}`."""
    _refuse(properties, "json")

    def show(record: ConsumerRecord) -> bytes:
        document = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": TIMESTAMP_TYPES[record.timestamp_type],
            "headers": [[name, as_json_data(value)] for name, value in record.headers],
            "key": as_json_data(record.key),
            "value": as_json_data(record.value),
        }
        return escaped_json(json.dumps(document, ensure_ascii=False)).encode() + b"\n"

    return show


def noop_formatter(properties: Mapping[str, str]) -> Formatter:
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


def _length(field: bytes | None) -> int:
    return -1 if field is None else len(field)


_PLACES: dict[str, Formatter] = {
    "t": lambda r: r.topic.encode(),
    "p": lambda r: b"%d" % r.partition,
    "o": lambda r: b"%d" % r.offset,
    "k": lambda r: r.key or b"",
    "s": lambda r: r.value or b"",
    "v": lambda r: r.value or b"",
    "K": lambda r: b"%d" % _length(r.key),
    "S": lambda r: b"%d" % _length(r.value),
    "R": lambda r: struct.pack(">i", _length(r.value)),
    "T": lambda r: b"%d" % r.timestamp,
    "h": lambda r: b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in r.headers),
    "%": lambda r: b"%",
}


def format_string(text: str) -> Formatter:
    r"""kcat's `-f`: `%t` topic, `%p` partition, `%o` offset, `%k` key, `%s` or `%v` value, `%T` timestamp in ms.

    `%h` is the headers as `name=value,…` with NULL for a null value; `%K` and `%S` are the bytes of key and value, -1
    for null; `%R` is those of the value as a big-endian int32. No line end is added. Raises ConfigError for another
    letter.
    """
    parts: list[Formatter] = []
    for literal, place in re.findall(r"([^%]+)|%(.?)", text, re.DOTALL):
        if literal:
            parts.append(_constant(_unescape(literal)))
        elif place in _PLACES:
            parts.append(_PLACES[place])
        else:
            raise ConfigError(f"--format: %{place} is unknown; use {' '.join('%' + letter for letter in _PLACES)}")
    return lambda record: b"".join([part(record) for part in parts])


def _constant(text: bytes) -> Formatter:
    return lambda record: text


def _refuse(properties: Mapping[str, str], name: str) -> None:
    if properties:
        raise ConfigError(f"--property {next(iter(properties))}: the formatter {name!r} has no properties")


def as_json_data(field: bytes | None) -> str | dict[str, str] | None:
    """A value or key in JSON: text if it is UTF-8, else `{"base64": …}`."""
    if field is None:
        return None
    try:
        return field.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(field).decode()}
