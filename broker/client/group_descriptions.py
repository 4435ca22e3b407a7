"""The state and members of groups of every kind, each kind by an API of its own. Called by admin.py.

A classic group is described by DescribeGroups, which knows no other; a group of KIP-848 by ConsumerGroupDescribe, a
share group by ShareGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.client.admin_types import GroupDescription, GroupListing, MemberDescription
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.coordinator import Coordinator
from broker.client.leader_requests import partition_rows
from broker.errors import ErrorCode, ProtocolError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

_CLASSIC: Final = "classic"
_APIS: Final = {
    _CLASSIC: ApiKey.DESCRIBE_GROUPS,
    "consumer": ApiKey.CONSUMER_GROUP_DESCRIBE,
    "share": ApiKey.SHARE_GROUP_DESCRIBE,
}
"""By the type of the group, as ListGroups tells it."""

_AT_ONCE: Final = 200
"""Groups of one request: other requests wait for it at the broker."""


def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Ask as for a classic group, and if there is none, as for the other kinds that the broker serves."""
    found = _describe(cluster, group, _CLASSIC)
    for kind in ("consumer", "share"):
        if found.state != "Dead":
            break
        try:
            found = _describe(cluster, group, kind)
        except UnsupportedVersion:
            continue
    return found


def members_of_groups(
    cluster: Cluster, node: Node, groups: Iterable[GroupListing]
) -> dict[str, tuple[MemberDescription, ...]]:
    """The members of groups that this broker coordinates, by requests about many. Refused ones are left out."""
    found: dict[str, tuple[MemberDescription, ...]] = {}
    by_type: dict[str, list[str]] = {}
    for group in groups:
        by_type.setdefault(group.group_type.lower() or _CLASSIC, []).append(group.group_id)
    for kind, names in by_type.items():
        if kind not in _APIS:
            continue
        for start in range(0, len(names), _AT_ONCE):
            rows = cluster.connection(node).request(_APIS[kind], _body(names[start : start + _AT_ONCE])).groups
            found.update((str(row.group_id), _members(row)) for row in rows if row.error_code is ErrorCode.none)
    return found


class ShareOffset(NamedTuple):
    """Where a share group begins in a partition: all before is done. `lag`: the records from there on that are not
    done; None from a broker that does not tell (before Kafka 4.2)."""

    start: int
    lag: int | None


def share_group_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, ShareOffset]:
    """Those of its partitions that a member has read from."""
    answer = Coordinator(cluster, group).ask(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        _all_offsets([group]),
        lambda answer: [(answer.groups[0].error_code, "describing the offsets")],
    )
    return _share_offsets(answer.groups[0])


def offsets_of_share_groups(
    connection: BrokerConnection, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, ShareOffset]]:
    """The same of share groups that this broker coordinates, for those who only watch: refused ones are left out."""
    found = {}
    for start in range(0, len(groups), _AT_ONCE):
        asked = _all_offsets(groups[start : start + _AT_ONCE])
        rows = connection.request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, asked).groups
        found.update({str(row.group_id): _share_offsets(row) for row in rows if row.error_code is ErrorCode.none})
    return found


class GroupLag(NamedTuple):
    """How far a group is behind in its partitions. Sums are of those that are known; None is never a zero."""

    lag: int | None
    """Records behind the committed offsets; None if it is known of no partition."""
    unread: int | None
    """Records in partitions that a member reads without a committed offset: its auto.offset.reset says which it will
    read. None if there are such partitions, and it is known of none."""
    unknown: int
    """Partitions of which it is not known."""

    @classmethod
    def of(cls, partitions: Iterable[tuple[bool, int | None]]) -> GroupLag:
        """`partitions`: of each, whether it has a committed offset, and its lag, or else what is unread in it."""
        counts: dict[bool, list[int | None]] = {True: [], False: []}
        for is_committed, count in partitions:
            counts[is_committed].append(count)
        known = {kind: [one for one in of if one is not None] for kind, of in counts.items()}
        return cls(
            sum(known[True]) if known[True] else None,
            sum(known[False]) if known[False] or not counts[False] else None,
            sum(len(counts[kind]) - len(known[kind]) for kind in counts),
        )

    @property
    def total(self) -> int | None:
        """The lag with what is unread; None if neither is known."""
        return None if self.lag is None and not self.unread else (self.lag or 0) + (self.unread or 0)


def _all_offsets(groups: Sequence[str]) -> Mapping[str, Any]:
    return {"groups": [{"group_id": group, "topics": None} for group in groups]}


def _share_offsets(group: Any) -> dict[TopicPartition, ShareOffset]:
    return {
        tp: ShareOffset(row.start_offset, lag if (lag := int(field(row, "lag", -1))) >= 0 else None)
        for tp, row in partition_rows(group.topics, topic="topic_name").items()
        if row.error_code is ErrorCode.none and row.start_offset >= 0
    }


def _body(names: list[str]) -> Mapping[str, Any]:
    """For each of the APIs; the older one has another name for the groups."""
    return {"groups": names, "group_ids": names, "include_authorized_operations": False}


def _describe(cluster: Cluster, group: str, kind: str) -> GroupDescription:
    def codes(answer: Any) -> Iterator[tuple[ErrorCode, str]]:
        (row,) = answer.groups
        if row.error_code is not ErrorCode.group_id_not_found:  # brokers before KIP-1043 answer Dead instead
            yield row.error_code, "describing the state"

    (row,) = Coordinator(cluster, group).ask(_APIS[kind], _body([group]), codes).groups
    missing = row.error_code is ErrorCode.group_id_not_found
    return GroupDescription(
        group,
        "Dead" if missing else row.group_state or "Dead",
        field(row, "protocol_type", PROTOCOL_TYPE if kind == "consumer" else kind),
        row.protocol_data if kind == _CLASSIC else row.assignor_name,
        cluster.coordinator(group),
        _members(row),
        _CLASSIC if missing else kind,
        int(field(row, "group_epoch", -1)),
        int(field(row, "assignment_epoch", -1)),
    )


def _members(group: Any) -> tuple[MemberDescription, ...]:
    return tuple(sorted(_member(row, field(group, "protocol_type")) for row in group.members))


def _member(row: Any, protocol: str | None) -> MemberDescription:
    """`protocol`: the protocol type of a classic group, which has no more than the first fields."""
    target = field(row, "target_assignment")
    return MemberDescription(
        row.member_id,
        field(row, "group_instance_id", field(row, "instance_id")),
        row.client_id,
        row.client_host.removeprefix("/"),
        _partitions(row.assignment) if protocol is None else _assigned(row, protocol),
        int(field(row, "member_epoch", -1)),
        None if target is None else _partitions(target),
        tuple(field(row, "subscribed_topic_names", ())),
        field(row, "subscribed_topic_regex") or None,
        field(row, "member_type") == 0,
    )


def _assigned(row: Any, protocol: str) -> tuple[TopicPartition, ...]:
    try:
        return tuple(sorted(decode_assignment(row.member_assignment))) if protocol == PROTOCOL_TYPE else ()
    except ProtocolError:  # the group leader wrote something else
        return ()


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    rows = assignment.topic_partitions
    return tuple(sorted(TopicPartition(str(row.topic_name), int(p)) for row in rows for p in row.partitions))
