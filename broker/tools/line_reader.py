"""Lines of text to records, as kafka-console-producer's `LineMessageReader` reads them. Pure.

Called by produce.py. A line is a value; with `parse.key` and `parse.headers` it is
`headers<delimiter>key<separator>value`. Raises ConfigError for an unknown property and, with the line's number, for
a line without the separators it must have; `ignore.error` takes such a line as a value instead.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from broker.errors import ConfigError
from broker.records.record import Header
from broker.settings import parse_properties, setting

__all__ = ["LineReader", "ProducedRecord", "ReaderSettings", "separator_of"]


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\([tnr0\\])")


class ProducedRecord(NamedTuple):
    """What a line says."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """The `--property` keys of `pykafka produce`, in Kafka's names."""

    parse_key: bool = setting("parse.key", False, "The line has a key.")
    parse_headers: bool = setting("parse.headers", False, "The line has headers, before the key.")
    key_separator: str = setting("key.separator", "\\t", "Between key and value.")
    headers_delimiter: str = setting("headers.delimiter", "\\t", "After the headers.")
    headers_separator: str = setting("headers.separator", ",", "Between two headers.")
    headers_key_separator: str = setting("headers.key.separator", ":", "Between a header's name and its value.")
    null_marker: str = setting("null.marker", "", "A key, value or header value that is this text is null.")
    ignore_error: bool = setting("ignore.error", False, "A line without its separators is all value.")


class LineReader:
    """Reads one line after the other; counts them for its errors."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._settings = settings = parse_properties(ReaderSettings, properties)
        self._key_separator = separator_of("key.separator", properties, settings.key_separator)
        self._headers_delimiter = separator_of("headers.delimiter", properties, settings.headers_delimiter)
        self._headers_separator = separator_of("headers.separator", properties, settings.headers_separator)
        self._headers_key_separator = separator_of("headers.key.separator", properties, settings.headers_key_separator)
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
        except ConfigError:
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
            raise ConfigError(
                f"line {self.line_number}: no {what} {separator.decode()!r} in {shown!r}; "
                "another one is set with --property, ignore.error=true takes such a line as a value"
            )
        return before, after

    def _null(self, field: bytes | None) -> bytes | None:
        return None if field is not None and field == self._null_marker else field


def separator_of(name: str, properties: Mapping[str, str], default: str) -> bytes:
    r"""A separator as typed in a shell or file, where `\t` is two characters; blanks count, unlike in other settings.

    Raises ConfigError when it is empty.
    """
    text = properties.get(name, default)
    if not text:
        raise ConfigError(f"{name} must not be empty")
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], text).encode()
