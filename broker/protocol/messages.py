"""Decodes and encodes frames of every API and version with kio.

Used by the broker's router and by the client. Handlers and callers do not depend on versions. A body to send is a plain
mapping with kio's field names. It may have the fields of any version: fields that the version lacks are dropped, and
missing fields get the schema's default or zero. A decoded body is kio's frozen dataclass; `field()` reads a field that
some versions lack. Raises ProtocolError for invalid bytes and UnsupportedVersion for what kio lacks.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from broker.errors import ProtocolError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import build, entity_class
from broker.protocol.frame_check import check_body, without_unknown_tags
from broker.protocol.produce_frames import (
    PRODUCE_VERSIONS,
    decode_produce,
    encode_produce_request,
    encode_produce_response,
)
from broker.protocol.replica_fetch_request import REPLICA_FETCH_VERSION, decode_replica_fetch

_PREFIX = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_MISSING: Any = object()

_REPEATED_APIS = frozenset({ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.HEARTBEAT})
"""Clients repeat these requests with another correlation id, so decoded ones are cached."""
_REPEATED_BYTES = 512


class Request(NamedTuple):
    """A decoded request; `size` is that of its frame, in bytes."""

    api: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    size: int


class _Codec(NamedTuple):
    entity: Any
    read: Any
    write: Any
    header: Any
    read_header: Any
    write_header: Any


@functools.cache
def _codec(api: int, version: int, kind: EntityType) -> _Codec:
    entity = entity_class(api, version, kind)
    header = entity.__header_schema__
    return _Codec(
        entity, entity_reader(entity), entity_writer(entity), header, entity_reader(header), entity_writer(header)
    )


@functools.cache
def known_versions(api: int) -> tuple[int, int]:
    """The lowest and highest version of `api` that kio knows. Raises UnsupportedVersion."""
    try:
        versions = schema_name_map[api_key_map[api]]
    except KeyError:
        raise UnsupportedVersion(f"API {api} is not known to this side") from None
    return min(versions), max(versions)


def peek(frame: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """The API key, version and correlation id at the start of every request."""
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a request of {len(frame)} bytes has no header")
    key, version, correlation_id = _PREFIX.unpack_from(frame)
    return key, version, correlation_id


def peek_client_id(frame: bytes | bytearray | memoryview) -> str | None:
    """The client id of a request in any version; None if it has none that can be read."""
    begin = _PREFIX.size + 2
    length = int.from_bytes(frame[_PREFIX.size : begin], "big", signed=True)
    if length < 0 or len(frame) < begin + length:
        return None
    return bytes(frame[begin : begin + length]).decode(errors="replace")


def decode_request(frame: bytes | bytearray | memoryview) -> Request:
    """Decode a whole request, without its 4-byte length."""
    key, version, correlation_id = peek(frame)
    if key == ApiKey.PRODUCE and version in PRODUCE_VERSIONS:
        return _decode_produce(frame, version, correlation_id)
    if key == ApiKey.FETCH and version == REPLICA_FETCH_VERSION and (found := decode_replica_fetch(frame)) is not None:
        return Request(ApiKey.FETCH, version, correlation_id, *found, len(frame))
    if key in _REPEATED_APIS and len(frame) <= _REPEATED_BYTES:
        client_id, body = _decode_repeated(key, version, with_correlation_id(bytes(frame), 0))
    else:
        client_id, body = _decode(key, version, frame)
    return Request(ApiKey(key), version, correlation_id, client_id, body, len(frame))


def _decode(key: int, version: int, frame: bytes | bytearray | memoryview) -> tuple[str | None, Any]:
    codec = _codec(key, version, EntityType.request)
    header, body = _read(codec, frame, f"API {key} version {version}")
    return header.client_id, body


@functools.lru_cache(maxsize=2048)
def _decode_repeated(key: int, version: int, frame: bytes) -> tuple[str | None, Any]:
    return _decode(key, version, frame)


def with_correlation_id(message: bytes, correlation_id: int) -> bytes:
    """The same message with another correlation id: a request without its length, or a response with it.

    In both the correlation id is at byte 4.
    """
    return message[:4] + _CORRELATION_ID.pack(correlation_id) + message[8:]


def _decode_produce(frame: bytes | bytearray | memoryview, version: int, correlation_id: int) -> Request:
    try:
        client_id, body = decode_produce(frame, version)
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"PRODUCE version {version}: {type(error).__name__}: {error}") from error
    return Request(ApiKey.PRODUCE, version, correlation_id, client_id, body, len(frame))


def decode_response(api: ApiKey, version: int, payload: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """Decode a whole response, without its length: (correlation id, body)."""
    codec = _codec(api, version, EntityType.response)
    header, body = _read(codec, payload, f"{api.name} response version {version}")
    return header.correlation_id, body


def _read(codec: _Codec, data: bytes | bytearray | memoryview, what: str) -> tuple[Any, Any]:
    """(header, body). Ignores bytes after them, as Kafka does: librdkafka sends some."""
    data = memoryview(data).toreadonly()  # kio reads no writable buffer
    try:
        try:
            return _parse(codec, data)
        except KeyError:  # a tag that kio does not know
            return _parse(codec, without_unknown_tags(codec.header, codec.entity, data))
    except (SerialError, ValueError, LookupError, OverflowError, struct.error, MemoryError) as error:
        raise ProtocolError(f"{what}: {type(error).__name__}: {error}") from error


def _parse(codec: _Codec, data: memoryview) -> tuple[Any, Any]:
    header, header_size = codec.read_header(data, 0)
    check_body(codec.entity, data, header_size)
    body, _ = codec.read(data, header_size)
    return header, body


def encode_request(
    api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    """A request frame, length first."""
    codec = _codec(api, version, EntityType.request)
    header = {
        "request_api_key": int(api),
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    return _write(codec, header, body)


def request_frame(
    api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> Sequence[bytes | bytearray | memoryview]:
    """The same in parts to send in order, without a copy of the record batches of a Produce request."""
    if api is ApiKey.PRODUCE and version in PRODUCE_VERSIONS:
        return encode_produce_request(version, correlation_id, client_id, body)
    return [encode_request(api, version, correlation_id, client_id, body)]


def encode_response(request: Request, body: Mapping[str, Any]) -> bytes:
    """The response frame for `request`, in its version, length first."""
    if request.api is ApiKey.PRODUCE and request.version in PRODUCE_VERSIONS:
        return encode_produce_response(request.version, request.correlation_id, body)
    codec = _codec(request.api, request.version, EntityType.response)
    return _write(codec, {"correlation_id": request.correlation_id}, body)


def with_throttle_time(request: Request, parts: Sequence[Any] | None, throttle_ms: int) -> Sequence[Any] | None:
    """An encoded response with another throttle time, where its version has that as its first field."""
    at = _throttle_time_at(request.api, request.version)
    if not parts or at is None:
        return parts
    head = bytearray(parts[0])
    _CORRELATION_ID.pack_into(head, at, throttle_ms)
    return [bytes(head), *parts[1:]]


@functools.cache
def _throttle_time_at(api: int, version: int) -> int | None:
    """The position of the throttle time in a frame, whose length comes first."""
    entity = entity_class(api, version, EntityType.response)
    if next(iter(dataclasses.fields(entity))).name != "throttle_time":
        return None
    return 9 if entity.__header_schema__.__flexible__ else 8


def _write(codec: _Codec, header: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    out.write(b"\0\0\0\0")
    codec.write_header(out, build(codec.header, header))
    codec.write(out, build(codec.entity, body))
    with out.getbuffer() as view:
        struct.pack_into(">i", view, 0, len(view) - 4)
    return out.getvalue()


def field(entity: Any, name: str, default: Any = None) -> Any:
    """The field `name`, or `default` in versions that lack it."""
    value = getattr(entity, name, _MISSING)
    return default if value is _MISSING else value


def to_ms(value: datetime.timedelta | datetime.datetime | int | None) -> int:
    """The milliseconds of a time field; -1 for None, as on the wire."""
    if value is None:
        return -1
    if isinstance(value, int):
        return value
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return (value - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
