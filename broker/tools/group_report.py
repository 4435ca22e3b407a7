"""What `pykafka groups describe` knows of a group: each partition with its offsets, lag and member.

Called by groups.py, which prints it. Built from what `Admin` says of a group, and of a group of the ZooKeeper
generation from its registries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.client.admin import Admin
from broker.client.admin_types import GroupDescription
from broker.protocol.topic_partition import TopicPartition
from broker.tools.output import print_table
from broker.tools.partitions import log_ends

__all__ = [
    "GroupPartition",
    "group_document",
    "group_partitions",
    "partition_document",
    "print_members",
    "print_partitions",
    "print_states",
    "zookeeper_partitions",
]

_COLUMNS = ("topic", "partition", "current-offset", "log-end-offset", "lag", "consumer-id", "host", "client-id")
_MEMBER_COLUMNS = ("group", "consumer-id", "instance-id", "host", "client-id", "partitions", "assignment")
_STATE_COLUMNS = ("group", "coordinator", "state", "assignor", "members", "lag")


class GroupPartition(NamedTuple):
    """One partition as its group sees it; None for what is not known, such as the end of a topic that is gone."""

    topic: str
    partition: int
    committed: int | None
    log_end: int | None
    lag: int | None
    member_id: str | None
    host: str | None
    client_id: str | None


def group_partitions(admin: Admin, group: GroupDescription) -> list[GroupPartition]:
    """What is assigned or committed."""
    committed = admin.group_offsets(group.group_id)
    owners = {tp: member for member in group.members for tp in member.partitions}
    ends = log_ends(admin, committed.keys() | owners.keys())
    rows = []
    for tp in sorted(committed.keys() | owners.keys()):
        owner = owners.get(tp)
        named = (owner.member_id, owner.host, owner.client_id) if owner else (None, None, None)
        rows.append(_row(tp, committed.get(tp), ends.get(tp), named))
    return rows


def zookeeper_partitions(
    admin: Admin, committed: Mapping[TopicPartition, int], owners: Mapping[TopicPartition, str]
) -> list[GroupPartition]:
    """The same of a group that lives in ZooKeeper; an owner is a consumer's thread."""
    ends = log_ends(admin, committed.keys() | owners.keys())
    return [
        _row(tp, committed.get(tp), ends.get(tp), (owners.get(tp), None, None))
        for tp in sorted(committed.keys() | owners.keys())
    ]


def _lag_of(rows: list[GroupPartition]) -> int:
    """Records not yet read, of the partitions where that is known."""
    return sum(row.lag or 0 for row in rows)


def group_document(group: GroupDescription, rows: list[GroupPartition]) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "group": group.group_id,
        "state": group.state,
        "protocolType": group.protocol_type,
        "assignor": group.protocol,
        "coordinator": group.coordinator._asdict(),
        "lag": _lag_of(rows),
        "members": [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.group_instance_id,
                "clientId": member.client_id,
                "host": member.host,
                "partitions": [tp._asdict() for tp in member.partitions],
            }
            for member in group.members
        ],
        "partitions": [partition_document(row) for row in rows],
    }


def partition_document(row: GroupPartition) -> dict[str, Any]:
    """One partition, for programs."""
    return {
        "topic": row.topic,
        "partition": row.partition,
        "currentOffset": row.committed,
        "logEndOffset": row.log_end,
        "lag": row.lag,
        "memberId": row.member_id,
        "host": row.host,
        "clientId": row.client_id,
    }


def print_partitions(group: str, rows: Sequence[GroupPartition]) -> None:
    """A line for each."""
    print_table(("group", *_COLUMNS), [(group, *row) for row in rows])


def print_members(group: GroupDescription) -> None:
    """A line for each member, with what it was given."""
    rows = []
    for one in group.members:
        who = (group.group_id, one.member_id, one.group_instance_id, one.host, one.client_id)
        rows.append((*who, len(one.partitions), _assignment(one.partitions)))
    print_table(_MEMBER_COLUMNS, rows)


def print_states(groups: Iterable[tuple[GroupDescription, list[GroupPartition]]]) -> None:
    """A line for each group."""
    rows = []
    for group, partitions in groups:
        node = f"{group.coordinator.host}:{group.coordinator.port} ({group.coordinator.id})"
        rows.append((group.group_id, node, group.state, group.protocol, len(group.members), _lag_of(partitions)))
    print_table(_STATE_COLUMNS, rows)


def _assignment(partitions: Iterable[TopicPartition]) -> str:
    """`flights(0,1), weather(2)`."""
    topics: dict[str, list[str]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(str(tp.partition))
    return ", ".join(f"{topic}({','.join(indexes)})" for topic, indexes in topics.items())


def _row(
    tp: TopicPartition, committed: int | None, end: int | None, owner: tuple[str | None, str | None, str | None]
) -> GroupPartition:
    lag = None if committed is None or end is None else max(0, end - committed)
    return GroupPartition(tp.topic, tp.partition, committed, end, lag, *owner)
