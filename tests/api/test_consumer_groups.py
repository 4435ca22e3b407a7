"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848), and what other APIs say to and of consumer groups."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.api.test_group_offsets import await_coordinator
from tests.api.test_groups import RawMember
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions


class ConsumerMember:
    """One member of a consumer group."""

    def __init__(self, ask: Requests, group: str, instance: str | None = None) -> None:
        self.ask, self.group, self.instance = ask, group, instance
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.epoch = 0
        self.owned: set[tuple[uuid.UUID, int]] = set()

    def beat(self, version: int | None = None, **fields: Any) -> Any:
        """A heartbeat; what it gets it owns."""
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "topic_partitions": None,
            **fields,
        }
        answer = self.ask.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body, version)
        if answer.error_code is ErrorCode.none:
            self.member_id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                self.owned = {(one.topic_id, number) for one in topics for number in one.partitions}
        return answer

    def owning(self) -> list[dict[str, Any]]:
        by_topic: dict[uuid.UUID, list[int]] = {}
        for topic_id, number in self.owned:
            by_topic.setdefault(topic_id, []).append(number)
        return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_topic.items()]

    def join(self, *topics: str, version: int | None = None, **fields: Any) -> Any:
        joining = {"rebalance_timeout": 30_000, "topic_partitions": [], "subscribed_topic_names": list(topics)}
        return self.beat(version, **{**joining, **fields})

    def until_owns(self, count: int) -> None:
        """Send heartbeats, as a client does, until the member has this many partitions."""
        for _ in range(20):
            self.beat(topic_partitions=self.owning())
            if len(self.owned) == count:
                return
        raise AssertionError(f"{self.member_id} has {len(self.owned)} partitions, not {count}")

    def commit(self, topic: str, offset: int, epoch: int | None = None, version: int = 9) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.epoch if epoch is None else epoch,
            "member_id": self.member_id,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        (answer,) = self.ask.ask(ApiKey.OFFSET_COMMIT, body, version).topics
        return ErrorCode(answer.partitions[0].error_code)

    def fetch(self, topic: str, epoch: int | None = None) -> tuple[ErrorCode, int]:
        asked = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch if epoch is None else epoch,
            "topics": [{"name": topic, "partition_indexes": [0]}],
        }
        (answer,) = self.ask.ask(ApiKey.OFFSET_FETCH, {"groups": [asked], "require_stable": True}, 9).groups
        offset = answer.topics[0].partitions[0].committed_offset if answer.topics else -1
        return ErrorCode(answer.error_code), offset


def share(*members: ConsumerMember) -> None:
    """Send heartbeats, as clients do, until each has two partitions."""
    for _ in range(20):
        for member in members:
            member.beat(topic_partitions=member.owning())
        if all(len(member.owned) == 2 for member in members):
            return
    raise AssertionError([len(member.owned) for member in members])


@pytest.fixture
def member(ask: Requests, group: str, topic: str) -> ConsumerMember:
    """The only member of a group, with four partitions of `topic`."""
    ask.create(topic, partitions=4)
    await_coordinator(ask, group)
    member = ConsumerMember(ask, group)
    assert member.join(topic).error_code is ErrorCode.none
    assert len(member.owned) == 4
    return member


def described(ask: Requests, group: str, version: int | None = None) -> Any:
    body = {"group_ids": [group], "include_authorized_operations": True}
    return ask.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, body, version).groups[0]


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_every_version_joins_stays_and_leaves(ask: Requests, group: str, topic: str, version: int) -> None:
    ask.create(topic, partitions=2)
    await_coordinator(ask, group)
    member = ConsumerMember(ask, group)
    if version == 0:
        member.member_id = ""
    joined = member.join(topic, version=version)
    assert (joined.error_code, joined.error_message) == (ErrorCode.none, None)
    assert member.epoch > 0
    assert len(member.owned) == 2
    again = member.beat(version, topic_partitions=member.owning())
    assert (again.error_code, again.member_epoch) == (ErrorCode.none, member.epoch)
    assert member.beat(version, member_epoch=-1).member_epoch == -1
    assert member.beat(version, member_epoch=5).error_code is ErrorCode.unknown_member_id


def test_two_members_share_and_one_takes_over(member: ConsumerMember, topic: str) -> None:
    other = ConsumerMember(member.ask, member.group)
    assert not other.join(topic).assignment.topic_partitions
    first = member.beat(topic_partitions=member.owning())
    assert (len(member.owned), first.heartbeat_interval.total_seconds()) == (2, 1)
    share(member, other)
    assert member.owned.isdisjoint(other.owned)
    assert other.beat(member_epoch=-1).error_code is ErrorCode.none
    member.until_owns(4)
    answer = member.beat(topic_partitions=member.owning())
    assert answer.heartbeat_interval.total_seconds() == 5, "the group is stable"


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_DESCRIBE))
def test_every_version_describes(ask: Requests, member: ConsumerMember, topic: str, version: int) -> None:
    found = described(ask, member.group, version)
    assert (found.error_code, found.group_id, found.group_state) == (ErrorCode.none, member.group, "Stable")
    assert found.group_epoch == found.assignment_epoch == member.epoch
    assert found.assignor_name == "uniform"
    (one,) = found.members
    assert (one.member_id, one.member_epoch, one.subscribed_topic_names) == (member.member_id, member.epoch, (topic,))
    (assigned,) = one.assignment.topic_partitions
    assert (assigned.topic_name, sorted(assigned.partitions)) == (topic, [0, 1, 2, 3])
    assert one.target_assignment == one.assignment
    assert version < 1 or one.member_type == 1


def test_other_apis_know_a_consumer_group(ask: Requests, member: ConsumerMember) -> None:
    group = member.group
    listed = {one.group_id: one for one in ask.ask(ApiKey.LIST_GROUPS, {"types_filter": ["Consumer"]}).groups}
    assert (listed[group].group_type, listed[group].group_state, listed[group].protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    classic = ask.ask(ApiKey.LIST_GROUPS, {"types_filter": ["classic"]}).groups
    assert group not in {one.group_id for one in classic}
    found = ask.ask(ApiKey.DESCRIBE_GROUPS, {"groups": [group]}).groups[0]
    assert (found.error_code, found.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert found.error_message == f"Group {group} is not a classic group."
    old = ask.ask(ApiKey.DESCRIBE_GROUPS, {"groups": [group]}, 5).groups[0]
    assert (old.error_code, old.group_state) == (ErrorCode.none, "Dead")
    refused = ask.ask(ApiKey.DELETE_GROUPS, {"groups_names": [group]}).results[0]
    assert refused.error_code is ErrorCode.non_empty_group
    member.beat(member_epoch=-1)
    assert described(ask, group).group_state == "Empty"
    assert ask.ask(ApiKey.DELETE_GROUPS, {"groups_names": [group]}).results[0].error_code is ErrorCode.none
    gone = described(ask, group)
    assert (gone.error_code, gone.error_message) == (ErrorCode.group_id_not_found, f"Group {group} not found.")


def test_a_classic_group_is_no_consumer_group(ask: Requests, group: str) -> None:
    await_coordinator(ask, group)
    member = RawMember(ask, group)
    member.join()
    found = described(ask, group)
    assert found.error_code is ErrorCode.group_id_not_found
    assert found.error_message == f"Group {group} is not a consumer group."


def test_offsets_are_committed_and_fetched_with_the_epoch(member: ConsumerMember, topic: str) -> None:
    assert member.commit(topic, 7) is ErrorCode.none
    assert member.fetch(topic) == (ErrorCode.none, 7)
    assert member.commit(topic, 8, epoch=member.epoch + 1) is ErrorCode.stale_member_epoch
    assert member.commit(topic, 8, epoch=0) is ErrorCode.stale_member_epoch
    assert member.commit(topic, 8, version=8) is ErrorCode.unsupported_version
    assert member.fetch(topic, epoch=member.epoch + 1)[0] is ErrorCode.stale_member_epoch
    stranger = ConsumerMember(member.ask, member.group)
    stranger.epoch = member.epoch
    assert stranger.commit(topic, 8) is ErrorCode.unknown_member_id
    assert stranger.fetch(topic)[0] is ErrorCode.unknown_member_id
    assert member.fetch(topic) == (ErrorCode.none, 7)


def test_a_commit_that_crosses_a_new_epoch_succeeds_for_partitions_that_stay(
    member: ConsumerMember, topic: str
) -> None:
    """KIP-1251."""
    before = member.epoch
    other = ConsumerMember(member.ask, member.group)
    other.join(topic)
    share(member, other)
    assert member.epoch > before
    kept = {number for _, number in member.owned}
    expected = ErrorCode.none if 0 in kept else ErrorCode.stale_member_epoch
    assert member.commit(topic, 5, epoch=before) is expected


def test_an_admin_commits_for_an_empty_group_only(member: ConsumerMember, topic: str) -> None:
    admin = ConsumerMember(member.ask, member.group)
    admin.member_id = ""
    assert admin.commit(topic, 3, epoch=-1) is ErrorCode.unknown_member_id
    member.beat(member_epoch=-1)
    assert admin.commit(topic, 3, epoch=-1) is ErrorCode.none


def test_offsets_of_subscribed_topics_are_not_deleted(ask: Requests, member: ConsumerMember, topic: str) -> None:
    member.commit(topic, 7)
    body = {"group_id": member.group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    (refused,) = ask.ask(ApiKey.OFFSET_DELETE, body).topics
    assert refused.partitions[0].error_code is ErrorCode.group_subscribed_to_topic
    member.beat(member_epoch=-1)
    (done,) = ask.ask(ApiKey.OFFSET_DELETE, body).topics
    assert done.partitions[0].error_code is ErrorCode.none


def test_a_group_has_its_own_heartbeat_interval(ask: Requests, member: ConsumerMember) -> None:
    config = {"name": "consumer.heartbeat.interval.ms", "config_operation": 0, "value": "7000"}
    resource = {"resource_type": 32, "resource_name": member.group, "configs": [config]}
    ask.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
    assert member.beat().heartbeat_interval.total_seconds() == 7


def test_a_pattern_gets_topics_that_come_later(ask: Requests, group: str, topic: str) -> None:
    await_coordinator(ask, group)
    member = ConsumerMember(ask, group)
    member.join(subscribed_topic_regex=f"{topic}-[ab]")
    assert not member.owned
    for name in ("a", "b", "c"):
        ask.create(f"{topic}-{name}", partitions=1)
    member.until_owns(2)
    ask.delete(f"{topic}-a")
    member.until_owns(1)


def test_more_partitions_are_assigned_at_once(ask: Requests, member: ConsumerMember, topic: str) -> None:
    more = {"topics": [{"name": topic, "count": 6, "assignments": None}], "timeout": 30_000, "validate_only": False}
    ask.ask(ApiKey.CREATE_PARTITIONS, more)
    member.until_owns(6)


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        ({"member_epoch": -3}, ErrorCode.invalid_request, "-3"),
        ({"server_assignor": "no-such"}, ErrorCode.unsupported_assignor, "range"),
        ({"subscribed_topic_regex": "(?=a)b"}, ErrorCode.invalid_regular_expression, "(?=a)b"),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression, "("),
        ({"rebalance_timeout": -1}, ErrorCode.invalid_request, "rebalance time-out"),
        ({"member_id": ""}, ErrorCode.invalid_request, "member id"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    ask: Requests, group: str, topic: str, fields: dict[str, Any], code: ErrorCode, told: str
) -> None:
    await_coordinator(ask, group)
    answer = ConsumerMember(ask, group).join(topic, **fields)
    assert answer.error_code is code
    assert told in answer.error_message
    listed = ask.ask(ApiKey.LIST_GROUPS, {}).groups
    assert group not in {one.group_id for one in listed}, "a group that nobody has joined"


def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets(
    ask: Requests, group: str, topic: str
) -> None:
    ask.create(topic, partitions=1)
    await_coordinator(ask, group)
    classic = RawMember(ask, group)
    classic.join()
    classic.sync(5)
    classic.leave(5)
    member = ConsumerMember(ask, group)
    member.member_id = ""
    assert member.commit(topic, 9, epoch=-1) is ErrorCode.none
    member = ConsumerMember(ask, group)
    assert member.join(topic).error_code is ErrorCode.none
    assert member.fetch(topic) == (ErrorCode.none, 9)
    member.beat(member_epoch=-1)
    classic = RawMember(ask, group)
    assert classic.join().error_code is ErrorCode.none
    assert classic.sync(5).error_code is ErrorCode.none
    assert described(ask, group).error_code is ErrorCode.group_id_not_found


def test_members_keep_their_epochs_when_the_coordinator_is_killed(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str
) -> None:
    broker = broker_factory()
    with Requests(broker.bootstrap) as ask:
        ask.create(topic, partitions=4)
        await_coordinator(ask, group)
        first, second = ConsumerMember(ask, group), ConsumerMember(ask, group)
        first.join(topic)
        second.join(topic)
        first.beat(topic_partitions=first.owning())  # it shall give up two, and has not yet
        assert first.commit(topic, 4) is ErrorCode.none
        before = described(ask, group)
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        await_coordinator(ask, group)
        after = described(ask, group)
        assert after._replace(members=()) == before._replace(members=())
        assert {one.member_id: one for one in after.members} == {one.member_id: one for one in before.members}
        first.ask = second.ask = ask
        share(first, second)
        assert first.owned.isdisjoint(second.owned)
        assert first.fetch(topic) == (ErrorCode.none, 4)
