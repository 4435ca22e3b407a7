"""List, describe and delete consumer groups, read and change what they committed: a part of `Admin`.

Groups of the classic protocol. Those of other kinds (KIP-848, share groups) of a later Kafka are listed, and their
committed offsets are read and changed alike, but they are not described.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.client.admin_requests import AdminRequests, by_topic, check
from broker.client.coordinator import Coordinator
from broker.client.group_offsets import GroupOffsets
from broker.client.metadata import CoordinatorKind, Node
from broker.errors import BrokerError, ErrorCode, ProtocolError
from broker.protocol.api_keys import ApiKey
from broker.protocol.consumer_protocol import decode_assignment
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupAdmin", "GroupDescription", "GroupListing", "GroupMember"]

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class GroupListing(NamedTuple):
    """A group that some broker coordinates; `state` and `group_type` are "" where the broker is too old to say."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class GroupMember(NamedTuple):
    """A member, and the partitions it was given (none, when its protocol is not the consumers')."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    """What a coordinator knows of a group. `state`: Empty, PreparingRebalance, CompletingRebalance, Stable or Dead."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor chosen."""
    coordinator: Node
    members: tuple[GroupMember, ...]

    @property
    def active(self) -> bool:
        """Whether it has members, so that nobody else may change its offsets."""
        return self.state not in ("Empty", "Dead", "")


class GroupAdmin(AdminRequests):
    """Groups and their offsets."""

    def list_groups(self, *, states: Sequence[str] = ()) -> list[GroupListing]:
        """Every group by name, of all coordinators; those in one of `states` (any case), if given (KIP-518)."""
        body = {"states_filter": list(states), "types_filter": ()}
        answers = self._ask_all(ApiKey.LIST_GROUPS, body, "listing the groups")
        found = [
            GroupListing(
                str(row.group_id), row.protocol_type, field(row, "group_state", ""), field(row, "group_type", "")
            )
            for answer in answers.values()
            for row in answer.groups
        ]
        wanted = {state.lower() for state in states}
        return sorted(group for group in found if not wanted or group.state.lower() in wanted)

    def describe_group(self, group: str) -> GroupDescription:
        """One group; one that is not known is in state Dead, without members."""

        def ask(coordinator: Coordinator) -> GroupDescription:
            body = {"groups": [group], "include_authorized_operations": False}
            (row,) = coordinator.request(ApiKey.DESCRIBE_GROUPS, body).groups
            if row.error_code is not ErrorCode.group_id_not_found:  # since KIP-1043; Dead before
                coordinator.check(row.error_code, "describing the state")
            consumers = row.protocol_type == CONSUMER_PROTOCOL_TYPE
            return GroupDescription(
                group,
                row.group_state or "Dead",
                row.protocol_type,
                row.protocol_data,
                self.cluster.coordinator(group),
                tuple(sorted(_member(member, consumers) for member in row.members)),
            )

        return self._ask_coordinator(group, CoordinatorKind.GROUP, ask)

    def delete_group(self, group: str) -> None:
        """Forget a group and its offsets. Raises BrokerError `non_empty_group`, `group_id_not_found`."""

        def ask(coordinator: Coordinator) -> None:
            (row,) = coordinator.request(ApiKey.DELETE_GROUPS, {"groups_names": [group]}).results
            coordinator.check(row.error_code, "the deletion")

        self._ask_coordinator(group, CoordinatorKind.GROUP, ask)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All that a group has committed, each the next offset to read."""
        return GroupOffsets(self.cluster, group).fetch()

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for a group without members. Raises BrokerError `unknown_member_id` when it has some."""
        GroupOffsets(self.cluster, group).commit(offsets)

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Forget what was committed of `partitions` (KIP-496): per partition, what was wrong with it.

        `group_subscribed_to_topic`: a member reads it. Raises BrokerError `group_id_not_found`.
        """
        topics = [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in by_topic(partitions).items()
        ]

        def ask(coordinator: Coordinator) -> dict[TopicPartition, BrokerError | None]:
            answer = coordinator.request(ApiKey.OFFSET_DELETE, {"topics": topics})
            coordinator.check(answer.error_code, "deleting the offsets")
            return {
                TopicPartition(str(topic.name), int(row.partition_index)): _failure(row, str(topic.name))
                for topic in answer.topics
                for row in topic.partitions
            }

        return self._ask_coordinator(group, CoordinatorKind.GROUP, ask)


def _member(row: Any, consumers: bool) -> GroupMember:
    partitions: tuple[TopicPartition, ...] = ()
    if consumers and row.member_assignment:
        try:
            partitions = tuple(sorted(decode_assignment(row.member_assignment)))
        except ProtocolError:  # whatever its leader wrote
            partitions = ()
    return GroupMember(
        row.member_id, field(row, "group_instance_id"), row.client_id, row.client_host.removeprefix("/"), partitions
    )


def _failure(row: Any, topic: str) -> BrokerError | None:
    try:
        check(row, f"deleting the offset of {topic}-{row.partition_index}")
    except BrokerError as error:
        return error
    return None
