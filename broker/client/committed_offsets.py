"""A consumer group's committed offsets: fetch and commit.

Called by the consumer, the console and the Spark connector's group offset store. An offset is the next one
to read. Without membership (`generation_id` -1) a commit is taken only while the group has no members,
which is what tools and batch jobs want.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.client.cluster import Cluster
from broker.client.coordinator import Coordinator
from broker.client.partition_offsets import NO_EPOCH, Position
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

__all__ = ["NO_MEMBER", "CommittedOffset", "GroupMetadata", "GroupOffsets", "Membership"]


class Membership(NamedTuple):
    """Who commits: a member of a generation, so that one who was put out cannot (KIP-62)."""

    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


NO_MEMBER = Membership()


class GroupMetadata(NamedTuple):
    """A group and who speaks for it; Kafka's `ConsumerGroupMetadata` (KIP-447)."""

    group_id: str
    member: Membership = NO_MEMBER


class CommittedOffset(NamedTuple):
    """The next offset to read, the text that was committed beside it, and the leader epoch it is of (-1: not known)."""

    offset: int
    metadata: str
    leader_epoch: int = NO_EPOCH


class GroupOffsets:
    """The committed offsets of `group`. Thread-safe."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.cluster = cluster
        self.group = group
        self._coordinator = Coordinator(cluster, group)

    def fetch(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Committed offsets of `partitions`, or all there are; one without a commit is left out."""
        return {tp: one.offset for tp, one in self.committed(partitions, timeout_s=timeout_s).items()}

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The same with the metadata. Offsets that a transaction is committing are waited for (KIP-447)."""
        topics = (
            None
            if partitions is None
            else [{"name": topic, "partition_indexes": indexes} for topic, indexes in _by_topic(partitions).items()]
        )
        if topics == []:
            return {}
        return self.cluster.retrying(lambda: self._fetch_once(topics), timeout_s=timeout_s)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | Position],
        metadata: str = "",
        *,
        member: Membership = NO_MEMBER,
        timeout_s: float | None = None,
    ) -> None:
        """Store `offsets`, with a text of the caller's beside each.

        Raises BrokerError: `unknown_member_id`, `illegal_generation`, `rebalance_in_progress` when the group has
        other members or moved on; `offset_metadata_too_large`. Partitions are stored one by one, but nearly
        always all or none.
        """
        if not offsets:
            return
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for tp, offset in offsets.items():
            at = offset if isinstance(offset, Position) else Position(offset, NO_EPOCH)
            row = {
                "partition_index": tp.partition,
                "committed_offset": at.offset,
                "committed_leader_epoch": at.leader_epoch,
                "committed_metadata": metadata,
            }
            topics[tp.topic].append(row)
        body = {
            "generation_id_or_member_epoch": member.generation_id,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "retention_time": -1,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }
        self.cluster.retrying(lambda: self._commit_once(body), timeout_s=timeout_s)

    def _fetch_once(self, topics: list[dict[str, Any]] | None) -> dict[TopicPartition, CommittedOffset]:
        answer = self._coordinator.request(ApiKey.OFFSET_FETCH, {"topics": topics, "require_stable": True})
        self._coordinator.check(field(answer, "error_code", ErrorCode.none), "fetching the offsets")
        offsets = {}
        for topic in answer.topics:
            for row in topic.partitions:
                self._coordinator.check(row.error_code, f"fetching the offset of {topic.name}-{row.partition_index}")
                if row.committed_offset >= 0:
                    tp = TopicPartition(str(topic.name), int(row.partition_index))
                    epoch = int(field(row, "committed_leader_epoch", NO_EPOCH))
                    offsets[tp] = CommittedOffset(int(row.committed_offset), row.metadata or "", epoch)
        return offsets

    def _commit_once(self, body: Mapping[str, Any]) -> None:
        answer = self._coordinator.request(ApiKey.OFFSET_COMMIT, body)
        for topic in answer.topics:
            for row in topic.partitions:
                what = f"committing the offset of {topic.name}-{row.partition_index}"
                self._coordinator.check(row.error_code, what)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    return topics
