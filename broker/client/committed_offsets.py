"""A consumer group's committed offsets: fetch and commit.

A committed offset is the next offset to read. A commit without membership (`generation_id` -1), as tools and batch jobs
send it, is accepted only while the group has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.coordinator import Coordinator, topic_of
from broker.client.leader_requests import partition_rows
from broker.client.partition_offsets import NO_EPOCH, Position
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition, topic_rows

_MANY_SINCE: Final = 8
_AT_ONCE: Final = 200
"""Groups of one request: other requests wait for it at the broker."""


class Membership(NamedTuple):
    """A member and its generation, by their names in requests. A member that was removed cannot commit (KIP-62)."""

    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


NO_MEMBER = Membership()


class GroupMetadata(NamedTuple):
    """A group and one of its members; Kafka's `ConsumerGroupMetadata` (KIP-447)."""

    group_id: str
    member: Membership = NO_MEMBER


class CommittedOffset(NamedTuple):
    """The next offset to read, the text committed with it, and its leader epoch (-1 if unknown)."""

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
        """The committed offsets of `partitions` or of all; partitions without one are left out."""
        return {tp: committed.offset for tp, committed in self.committed(partitions, timeout_s=timeout_s).items()}

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """As `fetch`, with metadata and leader epoch. Waits for offsets that a transaction is committing (KIP-447)."""
        topics = None
        if partitions is not None:
            topics = topic_rows(((tp, tp.partition) for tp in partitions), partitions="partition_indexes")
            if not topics:
                return {}

        def codes(answer: Any) -> Iterator[tuple[ErrorCode, str, str]]:
            (group,) = _group_rows(answer)
            yield field(group, "error_code", ErrorCode.none), "fetching the offsets", ""
            for tp, row in partition_rows(group.topics).items():
                yield row.error_code, f"fetching the offset of {tp}", topic_of(row.error_code, tp)

        body = {"topics": topics, "require_stable": True, "groups": [{"group_id": self.group, "topics": topics}]}
        answer = self._coordinator.ask(ApiKey.OFFSET_FETCH, body, codes, timeout_s=timeout_s)
        return _offsets_of(_group_rows(answer)[0])

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | Position],
        metadata: str = "",
        *,
        member: Membership = NO_MEMBER,
        timeout_s: float | None = None,
    ) -> None:
        """Commit `offsets`, each with the text `metadata`.

        Raises BrokerError: `unknown_member_id`, `illegal_generation` or `rebalance_in_progress` when the group has
        other members or a new generation; `offset_metadata_too_large`. Usually all offsets are stored, or none.
        """
        if not offsets:
            return
        rows = {}
        for tp, offset in offsets.items():
            at = offset if isinstance(offset, Position) else Position(offset, NO_EPOCH)
            rows[tp] = {
                "partition_index": tp.partition,
                "committed_offset": at.offset,
                "committed_leader_epoch": at.leader_epoch,
                "committed_metadata": metadata,
            }
        body = {
            "generation_id_or_member_epoch": member.generation_id,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "retention_time": -1,
            "topics": topic_rows(rows.items()),
        }
        self._coordinator.ask(ApiKey.OFFSET_COMMIT, body, commit_codes, timeout_s=timeout_s)


def offsets_of_groups(
    connection: BrokerConnection, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """The committed offsets of groups that this broker coordinates, for those who only watch: offsets that a
    transaction is committing are not waited for, and groups that the broker refuses are left out.

    One request for many groups from Kafka 3.0 on (KIP-709), else one for each.
    """
    if connection.version(ApiKey.OFFSET_FETCH) >= _MANY_SINCE:
        found: dict[str, Any] = {}
        for start in range(0, len(groups), _AT_ONCE):
            asked = [{"group_id": name, "topics": None} for name in groups[start : start + _AT_ONCE]]
            answer = connection.request(ApiKey.OFFSET_FETCH, {"groups": asked, "require_stable": False})
            found.update((str(row.group_id), row) for row in _group_rows(answer))
    else:
        body = {"topics": None, "require_stable": False}
        found = {name: connection.request(ApiKey.OFFSET_FETCH, {"group_id": name, **body}) for name in groups}
    return {name: _offsets_of(row) for name, row in found.items() if field(row, "error_code", ErrorCode.none) == 0}


def _group_rows(answer: Any) -> Sequence[Any]:
    """The groups of an OffsetFetch response; before version 8 the response is about one."""
    return field(answer, "groups", None) or [answer]


def _offsets_of(group: Any) -> dict[TopicPartition, CommittedOffset]:
    return {
        tp: CommittedOffset(
            int(row.committed_offset), row.metadata or "", int(field(row, "committed_leader_epoch", NO_EPOCH))
        )
        for tp, row in partition_rows(group.topics).items()
        if row.committed_offset >= 0
    }


def commit_codes(answer: Any) -> Iterator[tuple[ErrorCode, str, str]]:
    """The error codes of an OffsetCommit or TxnOffsetCommit response, each with what it is about."""
    for tp, row in partition_rows(answer.topics).items():
        yield row.error_code, f"committing the offset of {tp}", topic_of(row.error_code, tp)
