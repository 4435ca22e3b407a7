"""The mirror's memory: a compacted topic on the target with the progress and the offset syncs of each partition.

It is written in the same transaction as the records, so it says exactly what was mirrored. Consumer-group offsets would
do for the progress, but brokers forget those of a group without members after `offsets.retention.minutes`, and a mirror
that was stopped for a week would begin again.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.fetcher import Fetcher, FetchStream
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.client.produce_request import Stamp
from broker.errors import BrokerError, CorruptBatch, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.records.builder import BatchBuilder
from broker.records.record import decode_records

_PREFIX: Final = "pykafka-offset-syncs."
_SUFFIX: Final = ".internal"
_MOST_BYTES: Final = 512 << 10
_OPEN_TRANSACTION_S: Final = 60.0


def sync_topic(name: str) -> str:
    return f"{_PREFIX}{name}{_SUFFIX}"


def is_sync_topic(topic: str) -> bool:
    return topic.startswith(_PREFIX) and topic.endswith(_SUFFIX)


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far one partition is mirrored. Ids are None from brokers that are too old to have them."""

    source: TopicPartition
    target: TopicPartition
    source_cluster: str | None
    source_topic_id: str | None
    target_topic_id: str | None
    offset: int
    """Of the source: the next one to copy."""
    leader_epoch: int
    syncs: Sequence[Sequence[int]]
    """(source offset, target offset, count), see OffsetSyncs."""

    def key(self) -> bytes:
        return json.dumps([self.source.topic, self.source.partition]).encode()

    def value(self) -> bytes:
        document = {
            "targetTopic": self.target.topic,
            "sourceCluster": self.source_cluster,
            "sourceTopicId": self.source_topic_id,
            "targetTopicId": self.target_topic_id,
            "offset": self.offset,
            "leaderEpoch": self.leader_epoch,
            "syncs": [list(sync) for sync in self.syncs],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Progress:
        """Raises CorruptBatch for what no mirror has written."""
        try:
            topic, partition = json.loads(key)
            fields: dict[str, Any] = json.loads(value)
            return cls(
                TopicPartition(topic, partition),
                TopicPartition(fields["targetTopic"], partition),
                fields["sourceCluster"],
                fields["sourceTopicId"],
                fields["targetTopicId"],
                int(fields["offset"]),
                int(fields["leaderEpoch"]),
                [tuple(map(int, sync)) for sync in fields["syncs"]],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptBatch(f"a record with the key {key!r} is not the progress of a mirror: {error!r}") from None


def ensure_compacted_topic(admin: Admin, topic: str, replication: int) -> None:
    """Create a topic with one partition that keeps the newest record of each key, unless it exists."""
    try:
        admin.cluster.topic(topic)
    except UnknownTopic:
        configs = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "message.timestamp.type": "CreateTime"}
        try:
            admin.create_topic(topic, 1, replication, configs)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise


def read_progress(cluster: Cluster, topic: str) -> dict[TopicPartition, Progress]:
    """The newest progress of each partition; none without the topic.

    Call it after `init_transactional_id`, when no transaction of an earlier run is open. Raises CorruptBatch.
    """
    tp = TopicPartition(topic, 0)
    try:
        end = _stable_end(cluster, tp)
        start = list_offsets(cluster, {tp: EARLIEST})[tp].offset
    except UnknownTopic:
        return {}
    found: dict[TopicPartition, Progress] = {}
    with Fetcher(cluster, tp, isolation_level="read_committed") as fetcher:
        for fetched in FetchStream(fetcher, start, end):
            for record in decode_records(fetched.records, low=start, aborted=fetched.aborted):
                if record.key is not None and record.value is not None:
                    progress = Progress.parse(record.key, record.value)
                    found[progress.source] = progress
    return found


def _stable_end(cluster: Cluster, tp: TopicPartition) -> int:
    """The end of the partition, when no transaction is open in it."""
    deadline = time.monotonic() + _OPEN_TRANSACTION_S
    while True:
        end = list_offsets(cluster, {tp: LATEST}, isolation_level="read_uncommitted")[tp].offset
        stable = list_offsets(cluster, {tp: LATEST}, isolation_level="read_committed")[tp].offset
        if stable >= end:
            return end
        if time.monotonic() > deadline:
            raise PykafkaError(
                f"a transaction is open in {tp}: `pykafka transactions find-hanging --topic {tp.topic}` on the target "
                "shows whose"
            )
        time.sleep(cluster.backoff_s(1))


def record_batches(pairs: Iterable[tuple[bytes, bytes]], stamp: Callable[[], Stamp]) -> Iterator[bytes]:
    """Batches of a transaction with these keys and values, each stamped by `stamp()` after the one before was sent."""
    now_ms = time.time_ns() // 1_000_000
    builder: BatchBuilder | None = None
    for key, value in pairs:
        if builder is None or not builder.append(now_ms, key, value):
            if builder is not None:
                yield builder.build()
            producer_id, epoch, sequence = stamp()
            builder = BatchBuilder(
                max_bytes=_MOST_BYTES,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=True,
            )
            builder.append(now_ms, key, value)
    if builder is not None:
        yield builder.build()
