"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups: every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import PartitionState
from tests.api.test_group_offsets import await_coordinator, commit, committed
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import SERVED, Requests, versions
from tests.support.waiting import eventually

# The versions of the other three that clients of a JoinGroup version speak.
GENERATIONS = [
    (join, min(join, SERVED[ApiKey.SYNC_GROUP][1]), min(join, SERVED[ApiKey.HEARTBEAT][1]), min(join, 5))
    for join in versions(ApiKey.JOIN_GROUP)
]


class RawMember:
    """The only member of a group, in one version of the protocol."""

    def __init__(self, ask: Requests, group: str, version: int = 9, instance: str | None = None) -> None:
        self.ask, self.group, self.version, self.instance = ask, group, version, instance
        self.member_id, self.generation = "", -1

    def named(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }

    def join_body(self) -> dict[str, Any]:
        return {
            **self.named(),
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"subscription"}],
            "reason": "a test",
        }

    def join_once(self) -> Any:
        return self.ask.ask(ApiKey.JOIN_GROUP, self.join_body(), self.version)

    def join(self) -> Any:
        answer = self.join_once()
        self.member_id = answer.member_id
        if answer.error_code is ErrorCode.member_id_required:
            return self.join()
        self.generation = answer.generation_id
        return answer

    def sync(self, version: int) -> Any:
        assignments = [{"member_id": self.member_id, "assignment": b"work"}]
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        return self.ask.ask(ApiKey.SYNC_GROUP, {**self.named(), "assignments": assignments, **names}, version)

    def heartbeat(self, version: int) -> ErrorCode:
        return ErrorCode(self.ask.ask(ApiKey.HEARTBEAT, self.named(), version).error_code)

    def leave(self, version: int) -> Any:
        member = {"member_id": self.member_id, "group_instance_id": self.instance, "reason": "a test"}
        body = {"group_id": self.group, "member_id": self.member_id, "members": [member]}
        return self.ask.ask(ApiKey.LEAVE_GROUP, body, version)


@pytest.fixture
def stable(ask: Requests, group: str) -> RawMember:
    """A stable group of one."""
    await_coordinator(ask, group)
    member = RawMember(ask, group)
    member.join()
    member.sync(5)
    return member


@pytest.mark.parametrize(("join", "sync", "heartbeat", "leave"), GENERATIONS)
def test_every_version_joins_syncs_beats_and_leaves(
    ask: Requests, group: str, join: int, sync: int, heartbeat: int, leave: int
) -> None:
    await_coordinator(ask, group)
    member = RawMember(ask, group, join)
    joined = member.join()
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.none, 1, "range")
    assert joined.leader == joined.member_id == member.member_id
    assert [(m.member_id, m.metadata) for m in joined.members] == [(member.member_id, b"subscription")]
    synced = member.sync(sync)
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"work")
    assert member.heartbeat(heartbeat) is ErrorCode.none
    left = member.leave(leave)
    assert left.error_code is ErrorCode.none
    if leave >= 3:
        assert [m.error_code for m in left.members] == [ErrorCode.none]
    assert member.heartbeat(heartbeat) is ErrorCode.unknown_member_id


def test_a_leaving_member_that_is_not_there_is_told_where_its_version_has_it(ask: Requests, group: str) -> None:
    await_coordinator(ask, group)
    stranger = RawMember(ask, group)
    stranger.member_id = "stranger"
    assert stranger.leave(2).error_code is ErrorCode.unknown_member_id
    answer = stranger.leave(5)
    assert (answer.error_code, answer.members[0].error_code) == (ErrorCode.none, ErrorCode.unknown_member_id)


def test_returning_static_leader_skips_the_assignment(ask: Requests, group: str) -> None:
    """KIP-814, from JoinGroup version 9. The leader still gets the list of members."""
    await_coordinator(ask, group)
    member = RawMember(ask, group, instance="one")
    member.join()
    member.sync(5)
    for version, skips in ((9, True), (8, False)):
        back = RawMember(ask, group, version, instance="one")
        joined = back.join()
        assert joined.generation_id == 1
        assert (getattr(joined, "skip_assignment", False), len(joined.members)) == (skips, int(skips))
        assert back.sync(5).assignment == b"work"
        assert member.heartbeat(4) is ErrorCode.fenced_instance_id
        member = back


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_every_version_describes(ask: Requests, stable: RawMember, version: int) -> None:
    body = {"groups": [stable.group, stable.group + "-not"], "include_authorized_operations": True}
    found, absent = ask.ask(ApiKey.DESCRIBE_GROUPS, body, version).groups
    assert (found.error_code, found.group_state, found.protocol_data) == (ErrorCode.none, "Stable", "range")
    (member,) = found.members
    assert (member.member_id, member.client_host) == (stable.member_id, "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"subscription", b"work")
    if version >= 3:
        assert found.authorized_operations == 0b1101_0100_1000
    assert absent.group_state == "Dead"
    assert absent.error_code is (ErrorCode.none if version < 6 else ErrorCode.group_id_not_found)


def test_operations_are_told_only_to_who_asks(ask: Requests, stable: RawMember) -> None:
    (found,) = ask.ask(ApiKey.DESCRIBE_GROUPS, {"groups": [stable.group]}).groups
    assert found.authorized_operations == -(2**31)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_every_version_lists(ask: Requests, stable: RawMember, version: int) -> None:
    answer = ask.ask(ApiKey.LIST_GROUPS, {"states_filter": (), "types_filter": ()}, version)
    assert answer.error_code is ErrorCode.none
    (found,) = [entry for entry in answer.groups if entry.group_id == stable.group]
    assert found.protocol_type == "consumer"
    assert version < 4 or found.group_state == "Stable"
    assert version < 5 or found.group_type == "classic"


@pytest.mark.parametrize(
    ("states", "types", "is_listed"),
    [
        (("stable",), (), True),
        (("Empty", "Stable"), ("CLASSIC",), True),
        (("PreparingRebalance",), (), False),
        (("NoSuchState",), (), False),
        ((), ("consumer",), False),
        ((), ("consumer", "classic"), True),
        ((), ("no-such-type",), False),
    ],
)
def test_list_is_filtered(
    ask: Requests, stable: RawMember, states: tuple[str, ...], types: tuple[str, ...], is_listed: bool
) -> None:
    answer = ask.ask(ApiKey.LIST_GROUPS, {"states_filter": states, "types_filter": types})
    assert (stable.group in {entry.group_id for entry in answer.groups}) is is_listed


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_every_version_deletes(ask: Requests, stable: RawMember, version: int) -> None:
    def delete() -> list[ErrorCode]:
        body = {"groups_names": [stable.group, stable.group + "-not"]}
        return [result.error_code for result in ask.ask(ApiKey.DELETE_GROUPS, body, version).results]

    assert delete() == [ErrorCode.non_empty_group, ErrorCode.group_id_not_found]
    stable.leave(5)
    assert delete() == [ErrorCode.none, ErrorCode.group_id_not_found]


def test_offsets_are_deleted_one_by_one(ask: Requests, topic: str, group: str) -> None:
    await_coordinator(ask, group)
    ask.create(topic, 2)
    commit(ask, group, {(topic, 0): 1})
    commit(ask, group, {(topic, 1): 2})

    def delete(name: str, *partitions: int) -> Any:
        asked = [{"name": topic, "partitions": [{"partition_index": index} for index in partitions]}]
        return ask.ask(ApiKey.OFFSET_DELETE, {"group_id": name, "topics": asked})

    answer = delete(group, 0, 7)
    assert answer.error_code is ErrorCode.none
    results = {p.partition_index: p.error_code for p in answer.topics[0].partitions}
    assert results == {0: ErrorCode.none, 7: ErrorCode.unknown_topic_or_partition}
    assert committed(ask, group, None) == {(topic, 1): (2, "at 2")}
    assert delete(group + "-not", 0).error_code is ErrorCode.group_id_not_found
    assert delete("", 0).error_code is ErrorCode.invalid_group_id


def test_offsets_of_other_groups_than_consumers_are_kept_while_they_have_members(
    ask: Requests, topic: str, stable: RawMember
) -> None:
    ask.create(topic)
    asked = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    answer = ask.ask(ApiKey.OFFSET_DELETE, {"group_id": stable.group, "topics": asked})
    # Its subscription cannot be read, so any topic may be one it reads.
    assert answer.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic


def test_group_follows_its_partition_to_another_broker_and_back(
    broker_factory: Callable[..., BrokerProcess], zookeeper: str, topic: str, group: str
) -> None:
    """The leader changes in ZooKeeper, as in a reassignment by Kafka. After that nothing is served from memory."""
    chroot = f"{zookeeper}/moving-{group}"
    broker = broker_factory(
        {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}, zookeeper=chroot
    )
    zk = ZooKeeper(chroot, 6_000)
    zk.start()
    registry, tp = Registry(zk), TopicPartition("__consumer_offsets", 0)

    def lead(leader: int) -> None:
        state = registry.partition_states([tp])[tp]
        registry.write_states(
            {tp: PartitionState(leader, state.leader_epoch + 1, (leader,), state.controller_epoch, state.version)}
        )
        ChangeNotifications(zk).notify_config_change(f"topics/{tp.topic}")

    try:
        with Requests(broker.bootstrap) as ask, Requests(broker.bootstrap) as waiting:
            await_coordinator(ask, group)
            ask.create(topic)
            member = RawMember(ask, group)
            member.join()
            assert member.sync(5).error_code is ErrorCode.none
            other = RawMember(waiting, group)
            other.member_id = other.join_once().member_id
            waiting.send(ApiKey.JOIN_GROUP, other.join_body())
            eventually(lambda: member.heartbeat(4) is ErrorCode.rebalance_in_progress)
            registry.register_broker(BrokerInfo.plaintext(99, "127.0.0.1", 1))
            record = registry.topics()[tp.topic].reassigned(tp.partition, (0, 99), (), ())
            zk.set(f"/brokers/topics/{tp.topic}", record.encode())
            lead(99)
            assert waiting.receive(ApiKey.JOIN_GROUP).error_code is ErrorCode.not_coordinator
            eventually(lambda: member.heartbeat(4) is ErrorCode.not_coordinator)
            lead(0)
            eventually(lambda: member.heartbeat(4) is ErrorCode.none)
    finally:
        zk.close()
