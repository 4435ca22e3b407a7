"""Topics, partitions and points in time as they are written on a command line.

Called by groups.py, offsets.py and transactions.py. Raises UsageError for text in no known form, UnknownTopic for what
is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from broker.client.admin import Admin
from broker.client.cluster_metadata import UnknownTopic
from broker.client.partition_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from broker.protocol.topic_partition import TopicPartition
from broker.tools.usage import UsageError

__all__ = ["log_ends", "named_partitions", "parse_time", "parse_timestamp"]

_TIMESTAMPS = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


def named_partitions(admin: Admin, texts: Iterable[str]) -> list[TopicPartition]:
    """`flights` is all its partitions, `flights:0,2` are two of them. All topics are asked about at once."""
    parts = [text.partition(":") for text in texts]
    for topic, colon, indexes in parts:
        if colon and not all(index.strip().isdecimal() for index in indexes.split(",")):
            raise UsageError(f"{topic}:{indexes}: expected TOPIC or TOPIC:PARTITION,…")
    described = admin.describe_topics(topic for topic, _, _ in parts)
    found = []
    for topic, colon, indexes in parts:
        existing = list(described[topic].partitions)
        wanted = [int(index) for index in indexes.split(",")] if colon else existing
        for index in wanted:
            if index not in existing:
                raise UnknownTopic(f"topic {topic!r} has {len(existing)} partitions, but no {index}")
        found += [TopicPartition(topic, index) for index in wanted]
    return found


def parse_time(option: str, text: str) -> int:
    """`2026-01-31`, `2026-01-31T12:00:00.000+01:00` (UTC if it does not say) or ms since 1970, as ms."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: expected ms since 1970, or a time such as 2026-01-31T12:00:00") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_timestamp(option: str, text: str) -> int:
    """What ListOffsets is asked: earliest, latest, max-timestamp, or a time."""
    return _TIMESTAMPS[text] if text in _TIMESTAMPS else parse_time(option, text)


def log_ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where they end, those of topics that are gone left out."""
    topics = admin.cluster.topics()
    there = [tp for tp in partitions if tp.topic in topics and tp.partition in topics[tp.topic].partitions]
    return {tp: found.offset for tp, found in list_offsets(admin.cluster, dict.fromkeys(there, LATEST)).items()}
