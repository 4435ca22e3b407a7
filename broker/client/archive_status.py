"""How far the archives of partitions are: what is archived, what is local, how much waits, and why.

`pykafka log archive status` and the console in the browser show it. Any Kafka with tiered storage answers where the
offsets are (ListOffsets -2, -5, -4, -1). Bytes and problems only pykafka's brokers know, each of what it leads. A
broker that does not answer hides nothing else: what it knows is None.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker.client.admin import Admin
from broker.client.partition_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, known_offsets
from broker.errors import PykafkaError
from broker.protocol.archive_status import ArchiveStatus, decode_statuses
from broker.protocol.described_config import ARCHIVE_STATUS, ResourceType
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_ENABLED = "remote.storage.enable"
_MOST_ASKED = 100
"""Topics whose leaders do not answer: one request each."""


def archive_statuses(admin: Admin, topics: Iterable[str] = ()) -> list[ArchiveStatus]:
    """Of the partitions of `topics`; without topics, of all partitions that have an archive. Raises UnknownTopic."""
    named = list(topics)
    described = admin.describe_topics(named or None)
    partitions = [TopicPartition(name, index) for name, one in sorted(described.items()) for index in one.partitions]
    offsets = {time: known_offsets(admin.cluster, partitions, time) for time in (LATEST_TIERED, EARLIEST_LOCAL)}
    known = archives_of_leaders(admin)
    if not named:
        told = offsets[LATEST_TIERED]
        archived = {tp.topic for tp in partitions if tp in known or told.get(tp, -1) >= 0}
        silent = {tp.topic for tp in partitions if tp not in told} - archived if told else set()
        archived |= {name for name in sorted(silent)[:_MOST_ASKED] if _has_archive(admin, name)}
        partitions = [
            tp
            for tp in partitions
            if tp in known or told.get(tp, -1) >= 0 or (told and tp not in told and tp.topic in archived)
        ]
    offsets |= {time: known_offsets(admin.cluster, partitions, time) for time in (EARLIEST, LATEST)}
    open_ = _open_transactions(admin, [tp for tp in partitions if tp in known and known[tp].lag_segments])
    return [_status(known.get(tp, ArchiveStatus(tp)), offsets, open_.get(tp, "")) for tp in partitions]


def _has_archive(admin: Admin, topic: str) -> bool:
    """By its setting: of a topic whose leaders do not answer nothing else tells."""
    try:
        found = admin.describe_configs(ResourceType.TOPIC, topic, [_ENABLED]).get(_ENABLED)
    except PykafkaError as error:
        logger.debug("whether %s has an archive: %s", topic, error)
        return False
    return found is not None and found.value == "true"


def _status(
    known: ArchiveStatus, offsets: dict[int, dict[TopicPartition, int]], open_transaction: str
) -> ArchiveStatus:
    tiered, end = offsets[LATEST_TIERED].get(known.tp, -1), offsets[LATEST].get(known.tp)
    silent = "" if end is not None else "its leader does not answer"
    return known._replace(
        start=offsets[EARLIEST].get(known.tp),
        archived_end=tiered + 1 if tiered >= 0 else None,
        local_start=offsets[EARLIEST_LOCAL].get(known.tp),
        end=end,
        problem="; ".join(filter(None, (known.problem, open_transaction))) or silent,
    )


def archives_of_leaders(admin: Admin) -> dict[TopicPartition, ArchiveStatus]:
    """What brokers know of each archived partition that they lead, without offsets, as far as they answer."""
    found: dict[TopicPartition, ArchiveStatus] = {}
    for node in admin.cluster.brokers():
        try:
            entries = admin.describe_configs(ResourceType.BROKER, str(node.id), [ARCHIVE_STATUS])
        except PykafkaError as error:
            logger.debug("broker %s does not say how far its archives are: %s", node.id, error)
            continue
        entry = entries.get(ARCHIVE_STATUS)  # no other Kafka has it
        if entry is not None:
            try:
                for tp, one in decode_statuses(entry.value or "[]").items():
                    problem = one.problem and f"broker {node.id} at {node.host}:{node.port}: {one.problem}"
                    found[tp] = one._replace(problem=problem)
            except (ValueError, TypeError, KeyError) as error:
                logger.warning("a broker's %s cannot be read: %r", ARCHIVE_STATUS, error)
    return found


def _open_transactions(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
    """Whose open transaction holds the copy up: only what lies before it is copied."""
    if not partitions:
        return {}
    try:
        producers = admin.describe_producers(partitions)
    except PykafkaError as error:
        logger.debug("the open transactions are not known: %s", error)
        return {}
    found = {}
    for tp, states in producers.items():
        begun = [(one.transaction_start_offset, one.producer_id) for one in states if one.transaction_start_offset >= 0]
        if begun:
            offset, producer_id = min(begun)
            found[tp] = f"producer {producer_id} has a transaction open since offset {offset}"
    return found
