"""Records as REST Proxy v3 takes them: JSON objects one after the other. Raises ConfigError that says what is wrong."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from broker.errors import ConfigError
from pykafka_ui.records.json_text import DECODER, json_text

_SPACE = re.compile(r"\s*")
_TYPES = ("BINARY", "JSON", "STRING")


@dataclasses.dataclass(frozen=True)
class RecordToSend:
    """A record to write; `timestamp` in ms, None for now."""

    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None
    key_type: str | None = None
    value_type: str | None = None


def concatenated(text: str) -> Iterator[Any]:
    """The JSON values of a text, with nothing or white space between them."""
    at = 0
    while True:
        space = _SPACE.match(text, at)
        assert space is not None  # it matches nothing, too
        at = space.end()
        if at == len(text):
            return
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not JSON: {str(error)[:200]}") from None
        yield value


def parse_record(document: Any) -> RecordToSend:
    """A ProduceRequest: `partition_id`, `headers`, `key`, `value`, `timestamp`, each of which may be left out."""
    if not isinstance(document, dict):
        raise ConfigError("a record must be a JSON object")
    key, key_type = _content(document, "key")
    value, value_type = _content(document, "value")
    partition = document.get("partition_id")
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise ConfigError(f"partition_id={str(partition)[:40]}: there is no such partition")
    return RecordToSend(key, value, partition, _headers(document), _timestamp(document), key_type, value_type)


def time_text(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; "" for a time that has no such form."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return ""


def _content(document: dict[str, Any], name: str) -> tuple[bytes | None, str | None]:
    given = document.get(name)
    if given is None:
        return None, None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in _TYPES:
        raise ConfigError(f"{name}: needs a type: {', '.join(_TYPES)}; schemas are not taken")
    data = given.get("data")
    if data is None:
        return None, kind
    if kind == "JSON":
        return _utf8(name, json_text(data, ":", ",")), kind
    if not isinstance(data, str):
        raise ConfigError(f"{name}: the data of {kind} must be text")
    return (_base64(name, data) if kind == "BINARY" else _utf8(name, data)), kind


def _headers(document: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    headers = document.get("headers") or []
    if not isinstance(headers, list):
        raise ConfigError("headers: must be a list")
    for one in headers:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise ConfigError("headers: each needs a name")
        _utf8("headers", one["name"])
        value = one.get("value")
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"header {one['name']}: its value must be base64")
        found.append((one["name"], None if value is None else _base64(f"header {one['name']}", value)))
    return found


def _timestamp(document: dict[str, Any]) -> int | None:
    given = document.get("timestamp")
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(str(given))
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(f"timestamp={str(given)[:40]}: expected a time such as 2026-01-31T12:00:00Z") from None


def _base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{name}: not base64") from None


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: half a character") from None
