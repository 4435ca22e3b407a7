"""Decodes and encodes frames of every API and version, by kio's schemas.

Used by the broker's router and by the client. Handlers and callers do not depend on versions. A body to send is a plain
mapping with kio's field names. It may have the fields of any version: fields that the version lacks are dropped, and
missing fields get the schema's default or zero; times may be `int` milliseconds. A decoded body is a named tuple with
kio's field names and types (times are `timedelta` or `datetime`, an id of zeros is None); `field()` reads a field that
some versions lack. Raises ProtocolError for invalid bytes and UnsupportedVersion for what kio lacks.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v1.header import RequestHeader
from kio.static.constants import EntityType

from broker.errors import ProtocolError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import entity_class, fields_of
from broker.protocol.struct_reader import Reader, read_varint, reader, skip_tags
from broker.protocol.struct_writer import Writer, writer
from broker.protocol.wire import nullable_string

_PREFIX, _HEAD = struct.Struct(">hhi"), struct.Struct(">hhih")
_INT16, _CORRELATION_ID = struct.Struct(">h"), struct.Struct(">i")
_RESPONSE = struct.Struct(">ii"), struct.Struct(">iix")
"""Length and correlation id, and the header's tagged fields, of which there are none."""
_read_header = reader(RequestHeader)
_MISSING: Any = object()
_MILLISECOND = datetime.timedelta(milliseconds=1)
_MALFORMED = (ValueError, LookupError, OverflowError, struct.error, MemoryError)

_API_KEYS = {int(api): api for api in ApiKey}
"""Faster than `ApiKey(key)`, which each request would pay for."""
_REPEATED_APIS = frozenset(
    {
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
        *(ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT),
    }
)
"""Clients repeat these requests with another correlation id, so decoded ones are cached."""
_REPEATED_BYTES = 512

_FIRST_OF_TRANSACTIONS_2: dict[int, int] = {ApiKey.PRODUCE: 12, ApiKey.END_TXN: 5}
_FIRST_TRANSACTIONAL = 3
"""Version of Produce from which on a request has a transactional id."""
_COPIED_BYTES = 1000
"""Shorter pieces of a frame are joined."""


class Request(NamedTuple):
    """A decoded request; `size` is that of its frame, in bytes."""

    api: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    size: int


class _Codec(NamedTuple):
    """The reader and writer of a body, and whether its header has tagged fields."""

    read: Reader
    write: Writer
    tagged: bool


def _codec(entity: Any) -> _Codec:
    return _Codec(reader(entity), writer(entity), entity.__header_schema__.__flexible__)


@functools.cache
def _request_codec(api: int, version: int) -> _Codec:
    return _codec(entity_class(api, version, EntityType.request))


@functools.cache
def _response_codec(api: int, version: int) -> _Codec:
    return _codec(entity_class(api, version, EntityType.response))


@functools.cache
def known_versions(api: int) -> tuple[int, int]:
    """The lowest and highest version of `api` that kio knows. Raises UnsupportedVersion."""
    try:
        versions = schema_name_map[api_key_map[api]]
    except KeyError:
        raise UnsupportedVersion(f"API {api} is not known to this side") from None
    return min(versions), max(versions)


class Head(NamedTuple):
    """The beginning of a request, read once by `read_head`."""

    frame: bytes | bytearray | memoryview
    """The whole request, without its 4-byte length."""
    key: int
    version: int
    correlation_id: int
    client_id: str | None
    """None too where it is malformed; bytes that are no UTF-8 are replaced."""
    at: int
    """Where the tagged fields of the header begin, or the body; -1 if the client id is malformed."""

    def decode(self) -> Request:
        """The whole request. Records are a view of the frame, writable if the frame is."""
        frame, key, version, correlation_id, client_id, at = self
        size = len(frame)
        if key in _REPEATED_APIS and size <= _REPEATED_BYTES and at > 0:
            body = _decode_repeated(key, version, bytes(frame[at:]))
        else:
            body = _decode(key, version, memoryview(frame) if key == ApiKey.PRODUCE else bytes(frame), at)
        return Request(_API_KEYS[key], version, correlation_id, client_id, body, size)

    @property
    def wants_no_answer(self) -> bool:
        """Whether it is a Produce request with acks=0. False for one whose beginning is malformed; no more is read."""
        return self.key == ApiKey.PRODUCE and self._acks[0] == 0

    @property
    def wants_all_replicas(self) -> bool:
        """Whether it is a Produce request with acks=all. False for one whose beginning is malformed."""
        return self.key == ApiKey.PRODUCE and self._acks[0] == -1

    @property
    def relies_on_features(self) -> bool:
        """Whether the client uses version 2 of transactions (KIP-890), of which ApiVersions told. Not with acks=0."""
        first = _FIRST_OF_TRANSACTIONS_2.get(self.key)
        if first is None or self.version < first:
            return False
        acks, is_transactional = self._acks if self.key == ApiKey.PRODUCE else (None, True)
        return is_transactional and acks != 0

    @property
    def _acks(self) -> tuple[int | None, bool]:
        """The acks of a Produce request, and whether it has a transactional id, which stands before them.

        (None, False) for one whose beginning is malformed.
        """
        frame, at, length = self.frame, self.at, -1
        try:
            if at < 0:
                return None, False
            if _request_codec(self.key, self.version).tagged:
                length, at = read_varint(frame, skip_tags(frame, at, len(frame)))
                length -= 1
            elif self.version >= _FIRST_TRANSACTIONAL:
                length, at = _INT16.unpack_from(frame, at)[0], at + _INT16.size
            return _INT16.unpack_from(frame, at + max(length, 0))[0], length >= 0
        except (*_MALFORMED, UnsupportedVersion):
            return None, False


def read_head(frame: bytes | bytearray | memoryview) -> Head:
    """The head of a request in any version, without its length. Raises ProtocolError for less than 8 bytes."""
    size = len(frame)
    if size < _HEAD.size:
        if size < _PREFIX.size:
            raise ProtocolError(f"a request of {size} bytes has no header")
        key, version, correlation_id = _PREFIX.unpack_from(frame)
        return Head(frame, key, version, correlation_id, None, -1)
    key, version, correlation_id, length = _HEAD.unpack_from(frame)
    client_id, at = None, _HEAD.size + length
    if length < 0 or at > size:
        at = _HEAD.size if length == -1 else -1
    else:
        try:
            client_id = str(frame[_HEAD.size : at], "utf-8")
        except UnicodeDecodeError:
            client_id, at = str(frame[_HEAD.size : at], "utf-8", "replace"), -1
    return tuple.__new__(Head, (frame, key, version, correlation_id, client_id, at))  # half the time of Head(…)


def wants_no_answer(frame: bytes | bytearray | memoryview) -> bool:
    """As `Head.wants_no_answer`, of a frame that nobody has looked at yet. False for one without a whole header."""
    return len(frame) >= _PREFIX.size and read_head(frame).wants_no_answer


def decode_request(frame: bytes | bytearray | memoryview) -> Request:
    """Decode a whole request, without its 4-byte length, as `Head.decode`."""
    return read_head(frame).decode()


def _decode(key: int, version: int, frame: bytes | memoryview, at: int) -> Any:
    codec = _request_codec(key, version)
    try:
        if at < 0:
            _read_header(frame, 0, len(frame))  # says what is malformed
        return _read_body(codec, frame, at)[0]
    except _MALFORMED as error:
        raise ProtocolError(f"API {key} version {version}: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=2048)
def _decode_repeated(key: int, version: int, body: bytes) -> Any:
    return _decode(key, version, body, 0)


def with_correlation_id(message: bytes, correlation_id: int) -> bytes:
    """The same message with another correlation id: a request without its length, or a response with it.

    In both the correlation id is at byte 4.
    """
    return message[:4] + _CORRELATION_ID.pack(correlation_id) + message[8:]


def decode_response(api: ApiKey, version: int, payload: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """Decode a whole response, without its length: (correlation id, body)."""
    correlation_id, body, _ = read_response(api, version, bytes(payload))
    return correlation_id, body


def read_response(api: ApiKey, version: int, payload: bytes | memoryview) -> tuple[int, Any, int]:
    """(correlation id, body, where it ends) of a response, without its length. Records are a view of a memoryview."""
    codec = _response_codec(api, version)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(payload)
        body, end = _read_body(codec, payload, _CORRELATION_ID.size)
    except _MALFORMED as error:
        raise ProtocolError(f"{api.name} response version {version}: {type(error).__name__}: {error}") from error
    return correlation_id, body, end


def _read_body(codec: _Codec, data: bytes | memoryview, at: int) -> tuple[Any, int]:
    """(the body, where it ends) behind the tagged fields of a header. Bytes after it are let pass, as Kafka does."""
    end = len(data)
    if codec.tagged:
        at = skip_tags(data, at, end) if data[at] else at + 1
    return codec.read(data, at, end)


def encode_request(
    api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    """A request frame, length first."""
    return b"".join(request_frame(api, version, correlation_id, client_id, body))


def request_frame(
    api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> list[bytes | bytearray | memoryview]:
    """The same in parts to send in order, without a copy of the record batches of a Produce request."""
    codec = _request_codec(api, version)
    head = b"".join(
        (_PREFIX.pack(api, version, correlation_id), nullable_string(client_id, False), b"\0" * codec.tagged)
    )
    pieces: list[Any] = [b"", head]
    codec.write(pieces.append, body.get)
    sizes = list(map(len, pieces))
    pieces[0] = _CORRELATION_ID.pack(sum(sizes))
    if api is not ApiKey.PRODUCE or max(sizes) < _COPIED_BYTES:
        return [b"".join(pieces)]
    parts: list[bytes | bytearray | memoryview] = []
    begin = 0
    for index in [index for index, size in enumerate(sizes) if size >= _COPIED_BYTES]:
        parts += (b"".join(pieces[begin:index]), pieces[index])
        begin = index + 1
    return [*parts, b"".join(pieces[begin:])]


def encode_response(request: Request, body: Mapping[str, Any]) -> bytes:
    """The response frame for `request`, in its version, length first."""
    codec = _response_codec(request.api, request.version)
    pieces: list[Any] = []
    codec.write(pieces.append, body.get)
    answer = b"".join(pieces)
    return _RESPONSE[codec.tagged].pack(len(answer) + 4 + codec.tagged, request.correlation_id) + answer


def encode_response_parts(request: Request, body: Mapping[str, Any]) -> list[Any]:
    """The same in parts, for a body whose records are file ranges: these are parts of their own, and have a `len`."""
    codec = _response_codec(request.api, request.version)
    pieces: list[Any] = [b""]
    codec.write(pieces.append, body.get)
    size = sum(map(len, pieces)) + 4 + codec.tagged
    pieces[0] = _RESPONSE[codec.tagged].pack(size, request.correlation_id)
    runs = itertools.groupby(pieces, lambda piece: isinstance(piece, bytes))
    return [part for joined, run in runs for part in ([b"".join(run)] if joined else run)]


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
    if fields_of(entity)[0].name != "throttle_time":
        return None
    return 9 if entity.__header_schema__.__flexible__ else 8


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
        return value // _MILLISECOND
    return (value - datetime.datetime.fromtimestamp(0, datetime.UTC)) // _MILLISECOND
