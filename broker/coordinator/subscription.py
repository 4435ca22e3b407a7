"""The topics in a consumer's subscription, as far as the coordinator must know them.

The metadata of the "consumer" protocol type is opaque to the group machine but for this: an offset
of a topic that somebody still subscribes to neither expires nor may be deleted
(`ConsumerProtocolSubscription.json`: version i16, topics [string], then what is not read here).
"""

from __future__ import annotations

from broker.coordinator.record_reader import MalformedRecord, RecordReader

__all__ = ["CONSUMER_PROTOCOL_TYPE", "subscribed_topics"]

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member's subscription; None when it is not one that can be read."""
    reader = RecordReader(metadata)
    try:
        if reader.i16() < 0:
            return None
        return frozenset(reader.string() for _ in range(reader.array_length()))
    except MalformedRecord:
        return None
