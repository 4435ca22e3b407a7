"""The Produce request and response, decoded and encoded by hand so that record bytes are never copied.

Called by messages.py instead of kio. The records of a decoded request are views of its frame; they are patched there
and written to the log from there. The client sends the records of an encoded request from their own buffers. The layout
is flexible from version 9. Tests compare it with kio's codec. Raises ValueError or struct.error for a malformed frame.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.protocol.node_endpoints import CurrentLeader, encode_leader, encode_node_endpoints
from broker.protocol.wire import array_length, nullable_string, string

PRODUCE_VERSIONS = range(3, 13)

_FIRST_FLEXIBLE = 9
_FIRST_WITH_LEADERS = 10
_INT16, _INT32, _ACKS_TIMEOUT = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">hi")
_CORRELATION = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")
_RESULT = struct.Struct(">ihqq")
_RESULT_WITH_START = struct.Struct(">ihqqq")
_PREFIX_BYTES = 8  # API key, version, correlation id


@dataclasses.dataclass(slots=True)
class PartitionData:
    """The data for one partition; `records` is a view of the frame, writable if the frame is."""

    index: int
    records: memoryview | None


class TopicData(NamedTuple):
    name: str
    partition_data: Sequence[PartitionData]


class ProduceRequest(NamedTuple):
    """The body of a Produce request, with kio's field names; `timeout` in ms."""

    transactional_id: str | None
    acks: int
    timeout: int
    topic_data: Sequence[TopicData]


def decode_produce(frame: bytes | bytearray | memoryview, version: int) -> tuple[str | None, ProduceRequest]:
    """(client id, body) of a whole Produce request, without its length."""
    return _Reader(memoryview(frame), version >= _FIRST_FLEXIBLE).read()


def wants_no_answer(frame: bytes | bytearray | memoryview) -> bool:
    """Whether it is a Produce request with acks=0. False for one that is malformed."""
    try:
        api, version, _ = _REQUEST.unpack_from(frame)
        return api == ApiKey.PRODUCE and _Reader(memoryview(frame), version >= _FIRST_FLEXIBLE).head()[2] == 0
    except (ValueError, struct.error):
        return False


class _Reader:
    """Decodes one frame. Checks every length against the rest of the frame before using it."""

    def __init__(self, frame: memoryview, flexible: bool) -> None:
        self._frame = frame
        self._flexible = flexible
        self._at = _PREFIX_BYTES

    def read(self) -> tuple[str | None, ProduceRequest]:
        client_id, transactional_id, acks, timeout = self.head()
        topics = [self._topic() for _ in range(self._count(3))]
        self._tags()
        return client_id, ProduceRequest(transactional_id, acks, timeout, topics)

    def head(self) -> tuple[str | None, str | None, int, int]:
        """The client id, the transactional id, acks and the timeout in ms."""
        client_id = self._text(_INT16)
        self._tags()
        transactional_id = self._string()
        acks, timeout = _ACKS_TIMEOUT.unpack_from(self._frame, self._at)
        self._at += _ACKS_TIMEOUT.size
        return client_id, transactional_id, acks, timeout

    def _topic(self) -> TopicData:
        name = self._string()
        if name is None:
            raise ValueError("a topic without a name")
        partitions = [self._partition() for _ in range(self._count(5))]
        self._tags()
        return TopicData(name, partitions)

    def _partition(self) -> PartitionData:
        (index,) = _INT32.unpack_from(self._frame, self._at)
        self._at += 4
        length = self._varint() - 1 if self._flexible else self._int(_INT32)
        records = None if length < 0 else self._take(length)
        self._tags()
        return PartitionData(index, records)

    def _string(self) -> str | None:
        if not self._flexible:
            return self._text(_INT16)
        length = self._varint() - 1
        return None if length < 0 else str(self._take(length), "utf-8")

    def _text(self, layout: struct.Struct) -> str | None:
        length = self._int(layout)
        return None if length < 0 else str(self._take(length), "utf-8")

    def _count(self, least_bytes: int) -> int:
        """The length of an array whose elements have at least `least_bytes`; 0 for null."""
        count = self._varint() - 1 if self._flexible else self._int(_INT32)
        if count * least_bytes > len(self._frame) - self._at:
            raise ValueError(f"an array of {count} elements in {len(self._frame) - self._at} bytes")
        return max(count, 0)

    def _take(self, length: int) -> memoryview:
        start = self._at
        self._at = end = start + length
        if end > len(self._frame):
            raise ValueError(f"{length} bytes announced, {len(self._frame) - start} left")
        return self._frame[start:end]

    def _int(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._frame, self._at)[0]
        self._at += layout.size
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._frame) or shift > 28:
                raise ValueError("a length that does not end")
            byte = self._frame[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _tags(self) -> None:
        """Skip tagged fields; none is known (KIP-482)."""
        if self._flexible:
            for _ in range(self._varint()):
                self._varint()
                self._take(self._varint())


def encode_produce_request(
    version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> list[bytes | bytearray | memoryview]:
    """A whole request frame, length first, in parts: the batches of `body` (kio's names) and the bytes between them."""
    flexible = version >= _FIRST_FLEXIBLE
    tags = b"\0" if flexible else b""
    head = (
        bytearray(4) + _REQUEST.pack(ApiKey.PRODUCE, version, correlation_id) + nullable_string(client_id, False) + tags
    )
    head += nullable_string(body.get("transactional_id"), flexible) + _ACKS_TIMEOUT.pack(body["acks"], body["timeout"])
    head += array_length(len(body["topic_data"]), flexible)
    parts: list[bytes | bytearray | memoryview] = [head]
    between = head
    for topic in body["topic_data"]:
        between += string(topic["name"], flexible) + array_length(len(topic["partition_data"]), flexible)
        for partition in topic["partition_data"]:
            between += _INT32.pack(partition["index"])
            records = partition["records"]
            if records is None:
                between += b"\0" if flexible else b"\xff\xff\xff\xff"
            else:
                between += array_length(len(records), flexible)
                parts += [records, between := bytearray()]
            between += tags
        between += tags
    between += tags
    _INT32.pack_into(head, 0, sum(map(len, parts)) - 4)
    return parts


def encode_produce_response(version: int, correlation_id: int, body: Mapping[str, Any]) -> bytes:
    """A whole response frame, length first, from a body with kio's field names."""
    flexible = version >= _FIRST_FLEXIBLE
    out = bytearray(_CORRELATION.pack(correlation_id))
    if flexible:
        out += b"\0"
    responses = body.get("responses", ())
    out += array_length(len(responses), flexible)
    for topic in responses:
        out += string(topic["name"], flexible)
        out += array_length(len(topic["partition_responses"]), flexible)
        for partition in topic["partition_responses"]:
            _write_partition(out, version, partition, flexible)
        if flexible:
            out += b"\0"
    out += _INT32.pack(body.get("throttle_time", 0))
    endpoints = body.get("node_endpoints") if version >= _FIRST_WITH_LEADERS else None
    if endpoints:
        found = [CurrentLeader(at["node_id"], -1, at["host"], at["port"], at["rack"]) for at in endpoints]
        out += encode_node_endpoints(found)
    elif flexible:
        out += b"\0"
    return _INT32.pack(len(out)) + out


def _write_partition(out: bytearray, version: int, partition: Mapping[str, Any], flexible: bool) -> None:
    index, code = partition["index"], int(partition.get("error_code", 0))
    base_offset, append_time = partition.get("base_offset", -1), partition.get("log_append_time", -1)
    if version >= 5:
        out += _RESULT_WITH_START.pack(index, code, base_offset, append_time, partition.get("log_start_offset", -1))
    else:
        out += _RESULT.pack(index, code, base_offset, append_time)
    if version >= 8:
        record_errors = partition.get("record_errors", ())
        out += array_length(len(record_errors), flexible)
        for error in record_errors:
            out += _INT32.pack(error["batch_index"])
            out += string(error["batch_index_error_message"], flexible)
            if flexible:
                out += b"\0"
        out += nullable_string(partition.get("error_message"), flexible)
    leader = partition.get("current_leader") if version >= _FIRST_WITH_LEADERS else None
    if leader is not None:
        out += b"\x01" + encode_leader(0, CurrentLeader(leader["leader_id"], leader["leader_epoch"]))
    elif flexible:
        out += b"\0"
