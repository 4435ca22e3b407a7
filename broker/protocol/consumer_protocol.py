"""The messages that members of a consumer group exchange inside JoinGroup and SyncGroup.

Used by the client's group member, and by the broker where a group changes its protocol (KIP-848). A subscription says
what a member wants, an assignment what the group's leader gives it. Both begin with a version (int16). Of a newer
version a reader uses the fields it knows (Kafka's `ConsumerProtocol`). Raises ProtocolError for other bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kio.index import load_entity_schema
from kio.static.constants import EntityType

from broker.errors import ProtocolError
from broker.protocol.messages import field
from broker.protocol.struct_reader import reader
from broker.protocol.struct_writer import encode
from broker.protocol.topic_partition import TopicPartition, by_topic

PROTOCOL_TYPE: Final = "consumer"
"""The `protocol_type` of a consumer group."""

_SUBSCRIPTION, _ASSIGNMENT = "consumer_protocol_subscription", "consumer_protocol_assignment"
_HIGHEST: Final = 3
_WRITTEN: Final = {_SUBSCRIPTION: 2, _ASSIGNMENT: 1}  # version 3 adds a rack, which none of our assignors reads

_VERSION = struct.Struct(">h")


class Subscription(NamedTuple):
    """The topics a member wants, the partitions it owns now (KIP-429) and since which generation (KIP-792)."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    user_data: bytes | None = None
    """Data of the assignor."""


def encode_subscription(subscription: Subscription) -> bytes:
    """A member's metadata for a JoinGroup request."""
    body = {
        "topics": sorted(subscription.topics),
        "user_data": subscription.user_data,
        "owned_partitions": _by_topic(subscription.owned),
        "generation_id": subscription.generation_id,
    }
    return _encode(_SUBSCRIPTION, body)


def decode_subscription(data: bytes) -> Subscription:
    """A member's metadata from a JoinGroup response."""
    body = _decode(_SUBSCRIPTION, data)
    owned = tuple(_flatten(field(body, "owned_partitions", ())))
    return Subscription(tuple(body.topics), owned, int(field(body, "generation_id", -1)), body.user_data)


def subscribed_topics(data: bytes) -> frozenset[str] | None:
    """The topics of a member's metadata, None if it cannot be read. What came after version 0 is not looked at."""
    try:
        return frozenset(_decode(_SUBSCRIPTION, data, 0).topics)
    except ProtocolError:
        return None


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """One member's assignment for a SyncGroup request."""
    return _encode(_ASSIGNMENT, {"assigned_partitions": _by_topic(partitions)})


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The assignment in a SyncGroup response; empty bytes, which idle members get, mean no partitions."""
    return _flatten(_decode(_ASSIGNMENT, data).assigned_partitions) if data else []


def assignment_user_data(data: bytes) -> bytes:
    """What the assignor of the group's leader keeps in an assignment."""
    return bytes(_decode(_ASSIGNMENT, data).user_data or b"") if data else b""


@functools.cache
def _schema(name: str, version: int) -> Any:
    return load_entity_schema(name, version, EntityType.data)


def _encode(name: str, body: Mapping[str, Any]) -> bytes:
    version = _WRITTEN[name]
    return _VERSION.pack(version) + encode(_schema(name, version), body)


def _decode(name: str, data: bytes, highest: int = _HIGHEST) -> Any:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{name} of {len(data)} bytes has no version")
    version = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError(f"{name} has version {version}")
    read = reader(_schema(name, min(version, highest)))
    try:
        return read(data, _VERSION.size, len(data))[0]  # ignores what a newer version adds at the end
    except (ValueError, LookupError, OverflowError, struct.error, MemoryError) as error:
        raise ProtocolError(f"{name} version {version}: {type(error).__name__}: {error}") from error


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics = by_topic((tp, tp.partition) for tp in sorted(partitions))
    return [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()]


def _flatten(rows: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(str(row.topic), int(index)) for row in rows for index in row.partitions]
