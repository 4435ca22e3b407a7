"""Groups of the ZooKeeper generation: what members write about themselves, and who gets what; pure.

Called by zookeeper_consumer.py. The format and the rule are those of Kafka's `ZookeeperConsumerConnector`: a
member has threads, named after it; per topic the partitions go in ranges to the sorted threads. Every
member works that out for itself from the same registries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from broker.client.assignors import Member, assign_range
from broker.client.topic_filter import TopicFilter
from broker.errors import ConfigError, ProtocolError
from broker.protocol.topic_partition import TopicPartition

__all__ = ["decode_threads", "encode_subscription", "owned_by", "thread_of"]

_STATIC, _WHITE_LIST, _BLACK_LIST = "static", "white_list", "black_list"
_VERSION: Final = 1


def encode_subscription(wanted: TopicFilter, now_ms: int) -> bytes:
    """What `/consumers/G/ids/C` holds, for one thread. Raises ConfigError for what the format has no word for."""
    if wanted.pattern is not None and wanted.exclude is not None and wanted.pattern.pattern != ".*":
        raise ConfigError("in a ZooKeeper group, subscribe to a pattern or exclude one, not both")
    if wanted.exclude is not None and not wanted.names:
        kind, topics = _BLACK_LIST, [wanted.exclude.pattern]
    elif wanted.pattern is not None:
        kind, topics = _WHITE_LIST, [wanted.pattern.pattern]
    else:
        kind, topics = _STATIC, wanted.of(())
    node = {
        "version": _VERSION,
        "subscription": dict.fromkeys(topics, 1),
        "pattern": kind,
        "timestamp": str(now_ms),
    }
    return json.dumps(node, separators=(",", ":")).encode()


def decode_threads(consumer_id: str, data: bytes, existing: Iterable[str]) -> dict[str, list[str]]:
    """Which topics each thread of a member wants. Raises ProtocolError for what no consumer writes."""
    try:
        node = json.loads(data)
        kind, threads = node.get("pattern", _STATIC), {str(topic): int(n) for topic, n in node["subscription"].items()}
        topics: dict[str, int] = {}
        for name, count in threads.items():
            if kind == _WHITE_LIST:
                named = TopicFilter.parse(None, name, None).of(existing)
            elif kind == _BLACK_LIST:
                named = TopicFilter.parse(None, None, name).of(existing)
            else:
                named = [name]
            topics.update(dict.fromkeys(named, count))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ProtocolError(f"the subscription of consumer {consumer_id!r} cannot be read: {error}") from error
    wanted: dict[str, list[str]] = {}
    for topic, count in topics.items():
        for index in range(count):
            wanted.setdefault(thread_of(consumer_id, index), []).append(topic)
    return wanted


def thread_of(consumer_id: str, index: int = 0) -> str:
    """How a thread of a member is called in `/owners`."""
    return f"{consumer_id}-{index}"


def owned_by(consumer_id: str, members: Mapping[str, bytes], partitions: Mapping[str, int]) -> list[TopicPartition]:
    """The share of our one thread, when `members` (id → what it wrote) have it to themselves; none for a stranger."""
    threads: dict[str, list[str]] = {}
    for member_id, data in members.items():
        threads |= decode_threads(member_id, data, partitions)
    shares = assign_range([Member(thread, topics) for thread, topics in threads.items()], partitions)
    return shares.get(thread_of(consumer_id), [])
