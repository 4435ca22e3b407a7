"""Consumer groups (KIP-848) in a running coordinator: appends, replay, hand-over, deletion, patterns, other kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import pytest

from broker.coordinator import group_coordinator
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group import Now
from broker.coordinator.group_kinds import GroupReplay
from broker.coordinator.group_messages import CommitRequest, LeavingMember
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.modern_group_messages import HeartbeatReply, HeartbeatRequest
from broker.coordinator.topic_pattern import TopicPattern
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import PartitionInfo, Topic
from tests.support.consumer_groups import snapshot
from tests.support.coordinators import Groups, running_groups, settle


def topic(name: str, partitions: int) -> Topic:
    info = PartitionInfo(leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
    return Topic(name, uuid5(UUID(int=7), name), dict.fromkeys(range(partitions), info))


TOPICS = {"t": topic("t", 4)}


@pytest.fixture
async def groups() -> AsyncIterator[Groups]:
    async with running_groups(Groups(topics=TOPICS)) as groups:
        yield groups


def joining(member: str, **fields: Any) -> HeartbeatRequest:
    request = HeartbeatRequest(
        "g", member, 0, rebalance_timeout_ms=30_000, topic_names=frozenset({"t"}), owned=frozenset()
    )
    return replace(request, **fields)


async def join(groups: Groups, member: str, **fields: Any) -> HeartbeatReply:
    return await groups.coordinator.consumer_heartbeat(joining(member, **fields))


async def beat(groups: Groups, member: str, epoch: int, **fields: Any) -> HeartbeatReply:
    return await groups.coordinator.consumer_heartbeat(HeartbeatRequest("g", member, epoch, **fields))


def group_of(groups: Groups) -> ConsumerGroup:
    (group,) = groups.coordinator.all_groups()
    assert isinstance(group, ConsumerGroup)
    return group


async def test_members_that_join_at_once_cost_a_few_appends(groups: Groups) -> None:
    groups.store.gate.clear()
    joins = [asyncio.ensure_future(join(groups, f"m{number}")) for number in range(300)]
    await groups.store.until_waiting()
    await settle()
    assert not any(one.done() for one in joins), "answered before it is stored"
    groups.store.gate.set()
    replies = await asyncio.gather(*joins)
    assert {one.error for one in replies} == {ErrorCode.none}
    assert groups.store.appends <= 4
    assert group_of(groups).member_count == 300


async def test_a_heartbeat_that_changes_nothing_appends_nothing(groups: Groups) -> None:
    reply = await join(groups, "m")
    appends = groups.store.appends
    for _ in range(5):
        assert (await beat(groups, "m", reply.member_epoch)).error is ErrorCode.none
    assert groups.store.appends == appends


async def test_the_next_coordinator_continues_with_the_same_epochs_and_targets(groups: Groups) -> None:
    await join(groups, "a")
    await join(groups, "b")
    before = groups.coordinator.consumer_group("g")
    assert before.state_name == "Reconciling"
    async with running_groups(Groups(groups.store, groups.clock, topics=TOPICS)) as again:
        after = again.coordinator.consumer_group("g")
        assert snapshot(after) == snapshot(before)
        assert (await beat(again, "a", after.membership.members["a"].epoch)).error is ErrorCode.none


async def test_topics_that_changed_while_nobody_coordinated_are_noticed(groups: Groups) -> None:
    epoch = (await join(groups, "a")).member_epoch
    async with running_groups(Groups(groups.store, groups.clock, topics={"t": topic("t", 6)})) as again:
        reply = await beat(again, "a", epoch, owned=frozenset())
        assert reply.member_epoch > epoch
        assert len(reply.assignment or ()) == 6


async def test_topics_that_change_during_the_replay_are_noticed(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = (await join(groups, "a")).member_epoch
    again = Groups(groups.store, groups.clock, topics=TOPICS)
    built = GroupReplay.build

    def build(replay: GroupReplay, now: Now) -> None:
        built(replay, now)
        if replay.groups:
            again.topics["t"] = topic("t", 6)

    monkeypatch.setattr(GroupReplay, "build", build)
    async with running_groups(again):
        reply = await beat(again, "a", epoch, owned=frozenset())
        assert len(reply.assignment or ()) == 6


async def test_who_joins_a_classic_group_that_is_being_deleted_shall_try_again(groups: Groups) -> None:
    await groups.commit(7)
    groups.store.gate.clear()
    deleting = asyncio.ensure_future(groups.coordinator.delete_groups(["g"]))
    await groups.store.until_waiting()
    assert (await join(groups, "a")).error is ErrorCode.coordinator_not_available
    groups.store.gate.set()
    assert (await deleting)["g"] is ErrorCode.none
    assert (await join(groups, "a")).error is ErrorCode.none


async def test_requests_that_wait_are_told_that_the_group_has_moved(groups: Groups) -> None:
    groups.store.gate.clear()
    waiting = asyncio.ensure_future(join(groups, "a"))
    await groups.store.until_waiting()
    groups.coordinator.unload(groups.coordinator.partition_for("g"))
    assert (await waiting).error is ErrorCode.not_coordinator
    groups.store.gate.set()


async def test_a_change_that_cannot_be_stored_has_not_happened(groups: Groups) -> None:
    groups.store.fail_with = BrokerError(ErrorCode.not_enough_replicas)
    reply = await join(groups, "a")
    assert reply.error is ErrorCode.coordinator_not_available
    assert reply.error_message
    assert group_of(groups).member_count == 0
    groups.store.fail_with = None
    assert (await join(groups, "a")).error is ErrorCode.none


async def test_a_client_need_not_wait_for_a_slow_append(groups: Groups) -> None:
    groups.store.gate.clear()
    joining = asyncio.ensure_future(join(groups, "a"))
    await groups.store.until_waiting()
    groups.advance(6_000)
    assert (await joining).error is ErrorCode.coordinator_not_available
    groups.store.gate.set()
    await settle()
    reply = await join(groups, "a")
    assert (reply.error, group_of(groups).member_count) == (ErrorCode.none, 1)


async def test_a_member_that_is_not_heard_from_is_removed(groups: Groups) -> None:
    await join(groups, "a")
    groups.advance(46_000)
    await settle()
    assert group_of(groups).member_count == 0
    assert (await beat(groups, "a", 2)).error is ErrorCode.unknown_member_id


async def test_offsets_of_a_transaction_are_committed_with_the_epoch(groups: Groups) -> None:
    epoch = (await join(groups, "a")).member_epoch
    partition = TopicPartition("t", 0)

    async def commit(member_epoch: int, member: str = "a") -> ErrorCode:
        request = CommitRequest(
            "g", {partition: OffsetAndMetadata(5)}, member_epoch, member, producer=ProducerIdAndEpoch(1, 0)
        )
        return (await groups.coordinator.commit_offsets(request))[partition]

    assert await commit(epoch + 1) is ErrorCode.illegal_generation
    assert await commit(epoch, "b") is ErrorCode.unknown_member_id
    assert await commit(epoch) is ErrorCode.none
    groups.coordinator.transaction_ended(groups.coordinator.partition_for("g"), 1, commit=True)
    assert await groups.committed() == {"t": 5}


async def test_nothing_is_left_of_a_deleted_group(groups: Groups) -> None:
    reply = await join(groups, "a")
    assert (await groups.coordinator.delete_groups(["g"]))["g"] is ErrorCode.non_empty_group
    await groups.commit(5, generation=reply.member_epoch, member="a")
    await beat(groups, "a", -1)
    assert (await groups.coordinator.delete_groups(["g"]))["g"] is ErrorCode.none
    assert groups.coordinator.all_groups() == []
    async with running_groups(Groups(groups.store, groups.clock, topics=TOPICS)) as again:
        assert again.coordinator.all_groups() == []


async def test_an_empty_group_is_deleted_with_its_last_offset(groups: Groups) -> None:
    await join(groups, "a")
    await beat(groups, "a", -1)
    groups.coordinator._expire()
    await settle()
    assert groups.coordinator.all_groups() == []


async def test_a_classic_group_without_members_gives_its_place_and_its_offsets(groups: Groups) -> None:
    await groups.commit(7)
    member = await groups.stable_member()
    assert (await join(groups, "a")).error is ErrorCode.group_id_not_found, "it has a member"
    groups.advance(11_000)
    await settle()
    assert (await groups.coordinator.heartbeat("g", 1, member)) is ErrorCode.unknown_member_id
    await join(groups, "a")
    assert group_of(groups).kind == "consumer"
    assert await groups.committed() == {"t": 7}
    async with running_groups(Groups(groups.store, groups.clock, topics=TOPICS)) as again:
        assert group_of(again).member_count == 1
        assert await again.committed() == {"t": 7}
        await beat(again, "a", -1)
        await again.stable_member()
        assert (await again.coordinator.describe("g")).state == "Stable"
    async with running_groups(Groups(groups.store, groups.clock, topics=TOPICS)) as again:
        assert (await again.coordinator.describe("g")).state == "Stable", "the records of the consumer group are gone"


async def test_a_generation_that_an_earlier_release_stored_goes_on(groups: Groups) -> None:
    """That release skips the records of the consumer group, and deletes none of them."""
    await join(groups, "a")
    async with running_groups(Groups(clock=groups.clock)) as earlier:
        member = await earlier.stable_member()
        (partition,) = earlier.store.runs
        groups.store.runs[partition] += earlier.store.runs[partition]
    async with running_groups(Groups(groups.store, groups.clock, topics=TOPICS)) as again:
        assert await again.coordinator.heartbeat("g", 1, member) is ErrorCode.none
        assert (await beat(again, "a", 1)).error is ErrorCode.group_id_not_found
        await again.coordinator.leave("g", [LeavingMember(member)])
        assert (await again.coordinator.delete_groups(["g"]))["g"] is ErrorCode.none
    async with running_groups(Groups(groups.store, groups.clock, topics=TOPICS)) as again:
        assert again.coordinator.all_groups() == []


async def test_a_pattern_matches_what_the_client_may_describe(groups: Groups) -> None:
    groups.topics |= {"ev-a": topic("ev-a", 1), "ev-secret": topic("ev-secret", 1)}
    groups.coordinator.topics_changed(["ev-a", "ev-secret"])

    def allows(name: str) -> bool:
        return name != "ev-secret"

    reply = await join(groups, "a", topic_names=frozenset(), topic_regex="ev-.*", client=allows)
    for _ in range(100):
        await asyncio.to_thread(int)  # the topics are looked up in such a thread
        reply = await beat(groups, "a", reply.member_epoch, owned=frozenset())
        if reply.assignment:
            break
    assert {one.topic_id for one in reply.assignment or ()} == {topic("ev-a", 1).topic_id}


async def test_the_check_of_a_pattern_does_not_hold_the_event_loop(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    monkeypatch.setattr(group_coordinator, "TopicPattern", lambda _: threads.append(threading.current_thread()))
    await join(groups, "a", topic_regex="t.*", client=lambda _: True)
    assert threads
    assert threading.main_thread() not in threads


async def test_a_right_that_is_given_later_counts_after_the_refresh_interval(groups: Groups) -> None:
    groups.topics["ev-secret"] = topic("ev-secret", 1)
    groups.coordinator.topics_changed(["ev-secret"])
    allowed: set[str] = set()
    allows = allowed.__contains__
    reply = await join(groups, "a", topic_names=frozenset(), topic_regex="ev-.*", client=allows)
    await asyncio.to_thread(int)
    allowed.add("ev-secret")
    for _ in range(30):
        groups.advance(30_000)
        await asyncio.to_thread(int)
        await settle()
        reply = await beat(groups, "a", reply.member_epoch, owned=frozenset(), client=allows)
        assert reply.error is ErrorCode.none
        if reply.assignment:
            break
    assert len(reply.assignment or ()) == 1


async def test_a_pattern_that_costs_too_much_has_no_topics_and_holds_up_no_other(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def allows(name: str) -> bool:
        return True

    matching = TopicPattern.matching

    def costly(pattern: TopicPattern, topics: Iterable[str]) -> frozenset[str]:
        if matching(pattern, ["costly"]):
            raise BrokerError(ErrorCode.invalid_regular_expression, "too many steps")
        return matching(pattern, topics)

    monkeypatch.setattr(TopicPattern, "matching", costly)
    await join(groups, "a", topic_names=frozenset(), topic_regex="costly", client=allows)
    reply = await join(groups, "b", topic_names=frozenset(), topic_regex="t", client=allows)
    for _ in range(100):
        await asyncio.to_thread(int)  # the topics are looked up in such a thread
        reply = await beat(groups, "b", reply.member_epoch, owned=frozenset(), client=allows)
        if reply.assignment:
            break
    assert len(reply.assignment or ()) == 4
    assert caplog.text.count("too many steps") == 1, "its topics are known, also while the next members are gathered"


async def test_members_that_join_one_after_the_other_in_a_moment_share_an_append(groups: Groups) -> None:
    joins = []
    for number in range(20):
        joins.append(asyncio.ensure_future(join(groups, f"m{number}")))
        await asyncio.sleep(0)
    replies = await asyncio.gather(*joins)
    assert [len(one.assignment or ()) for one in replies[:5]] == [1, 1, 1, 1, 0], "nobody has to give up anything"
    assert groups.store.appends == 1


@pytest.mark.parametrize("member_id", ["", "a"])
async def test_a_group_that_a_refused_heartbeat_named_is_not_made(groups: Groups, member_id: str) -> None:
    assert (await beat(groups, member_id, 7)).error is not ErrorCode.none
    assert groups.coordinator.all_groups() == []
