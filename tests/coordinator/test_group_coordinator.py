"""The running group coordinator: waiting, storing, replay, time-outs, cancelled callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.clock import SystemClock
from broker.config.setting_groups import GroupSettings
from broker.coordinator import group_shard
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import JoinRequest, LeavingMember, SyncRequest
from broker.coordinator.record_store import RecordRun
from broker.errors import BrokerError, ErrorCode
from tests.support.coordinators import PARTITIONS, Groups, running_groups, settle
from tests.support.record_stores import GatedRecordStore, MemoryRecordStore


async def test_two_members_join_sync_and_beat() -> None:
    async with running_groups(Groups(initial_delay_ms=3_000)) as groups:
        ids = [(await groups.join(two_steps=True)).member_id for _ in range(2)]
        joins = [asyncio.ensure_future(groups.join(member=member, two_steps=True)) for member in ids]
        await settle()
        groups.advance(6_000)
        replies = await asyncio.gather(*joins)
        generation = replies[0].generation_id
        leader = replies[0].leader
        assert {reply.generation_id for reply in replies} == {generation}
        assert sorted(len(reply.members) for reply in replies) == [0, 2]
        work = {member: member.encode() for member in ids}
        syncs = await asyncio.gather(
            *(
                groups.coordinator.sync(SyncRequest("g", generation, member, work if member == leader else {}))
                for member in ids
            )
        )
        assert [sync.assignment for sync in syncs] == [member.encode() for member in ids]
        for member in ids:
            assert await groups.coordinator.heartbeat("g", generation, member) is ErrorCode.none


async def test_joining_member_waits_until_the_rebalance_is_complete(groups: Groups) -> None:
    member = await groups.stable_member()
    newcomer = asyncio.ensure_future(groups.join())
    await settle()
    assert not newcomer.done()
    rejoined = await groups.join(member=member)
    assert (await newcomer).generation_id == rejoined.generation_id == 2


async def test_caller_that_goes_away_does_not_hold_the_group_up(groups: Groups) -> None:
    member = await groups.stable_member()
    newcomer = asyncio.ensure_future(groups.join())
    await settle()
    newcomer.cancel()
    await asyncio.gather(newcomer, return_exceptions=True)
    rejoined = await groups.join(member=member)
    assert [joined.member_id for joined in rejoined.members] == [member]


async def test_silent_member_expires_when_its_session_ends(groups: Groups) -> None:
    member = await groups.stable_member()
    groups.advance(9_999)
    assert await groups.coordinator.heartbeat("g", 1, member) is ErrorCode.none
    groups.advance(9_999)
    assert (await groups.coordinator.describe("g")).state == "Stable"
    groups.advance(1)
    assert (await groups.coordinator.describe("g")).state == "Empty"
    assert await groups.coordinator.heartbeat("g", 1, member) is ErrorCode.unknown_member_id


async def test_the_loops_own_timer_expires_members_and_ends_the_initial_delay() -> None:
    config = GroupSettings(group_min_session_timeout_ms=1, group_initial_rebalance_delay_ms=20)
    coordinator = GroupCoordinator(MemoryRecordStore(), SystemClock(), config, 1)
    await coordinator.load(0)
    request = JoinRequest("g", "", "client", "/host", "consumer", (("range", b""),), 50)
    joined = await asyncio.wait_for(coordinator.join(request), 60)
    assert joined.generation_id == 1
    async with asyncio.timeout(60):
        while await coordinator.heartbeat("g", 1, joined.member_id) is ErrorCode.none:
            await asyncio.sleep(0.2)  # longer than the session
    assert (await coordinator.describe("g")).state == "Empty"
    await coordinator.close()


async def test_restarted_coordinator_goes_on_with_the_generation() -> None:
    async with running_groups() as groups:
        member = await groups.stable_member()
        await groups.commit(7, generation=1, member=member)
        before = await groups.coordinator.describe("g")
    async with running_groups(Groups(groups.store, groups.clock)) as again:
        assert await again.coordinator.describe("g") == before
        assert await again.coordinator.heartbeat("g", 1, member) is ErrorCode.none
        assert await again.commit(8, generation=1, member=member) is ErrorCode.none
        assert await again.committed() == {"t": 8}


async def test_restarted_coordinator_expires_who_does_not_come_back() -> None:
    async with running_groups() as groups:
        await groups.stable_member()
    groups.clock.advance(3_600_000)
    async with running_groups(Groups(groups.store, groups.clock)) as again:
        again.advance(9_999)
        assert (await again.coordinator.describe("g")).state == "Stable"
        again.advance(1)
        assert (await again.coordinator.describe("g")).state == "Empty"


async def test_sessions_of_a_group_end_although_one_of_its_name_was_removed_before(groups: Groups) -> None:
    """The removed group had a timer, which fired when there was no group."""
    pending = await groups.join(two_steps=True)
    await groups.coordinator.leave("g", [LeavingMember(pending.member_id)])
    groups.coordinator._expire()
    assert groups.coordinator.all_groups() == []
    groups.advance(11_000)
    await groups.stable_member()
    groups.advance(10_000)
    assert (await groups.coordinator.describe("g")).state == "Empty"


async def test_time_spent_on_replay_does_not_count_against_the_members() -> None:
    class SlowStore(GatedRecordStore):
        async def read(self, partition: int) -> AsyncIterator[RecordRun]:
            async for run in super().read(partition):
                yield run
            groups.clock.advance(60_000)

    groups = Groups(SlowStore())
    async with running_groups(groups):
        member = await groups.stable_member()
        partition = groups.coordinator.partition_for("g")
        groups.coordinator.unload(partition)
        await groups.coordinator.load(partition)
        groups.coordinator._timer.run_due()
        assert await groups.coordinator.heartbeat("g", 1, member) is ErrorCode.none


async def test_group_that_has_become_too_large_rebalances_when_it_is_loaded() -> None:
    """Its members can still commit. The last ones to join again are refused (`GroupCoordinator.onGroupLoaded`)."""
    groups = Groups()
    async with running_groups(groups):
        first = await groups.stable_member()
        second = asyncio.ensure_future(groups.join())
        await settle()
        await groups.join("g", first)
        sync = SyncRequest("g", 2, first, {first: b"work"})
        assert (await groups.coordinator.sync(sync)).error is ErrorCode.none
    again = Groups(groups.store, groups.clock, max_size=1)
    async with running_groups(again):
        assert (await again.coordinator.describe("g")).state == "PreparingRebalance"
        back = asyncio.ensure_future(again.join("g", first))
        await settle()
        refused = await again.join("g", (await second).member_id)
        assert refused.error is ErrorCode.group_max_size_reached
        assert (await back).generation_id == 3


async def test_nobody_is_answered_before_the_assignment_is_stored(groups: Groups) -> None:
    member = (await groups.join()).member_id
    groups.store.gate.clear()
    syncing = asyncio.ensure_future(groups.coordinator.sync(SyncRequest("g", 1, member, {member: b"work"})))
    await groups.store.until_waiting()
    await settle()
    assert not syncing.done()
    groups.store.gate.set()
    assert (await syncing).assignment == b"work"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
async def test_assignment_that_cannot_be_stored(groups: Groups, code: ErrorCode, told: ErrorCode) -> None:
    member = (await groups.join()).member_id
    groups.store.fail_with = BrokerError(code)
    assert (await groups.coordinator.sync(SyncRequest("g", 1, member, {member: b"work"}))).error is told
    groups.store.fail_with = None
    assert (await groups.join(member=member)).generation_id == 2


async def test_assignment_that_fits_no_record(groups: Groups) -> None:
    request = JoinRequest("g", "", "c" * 40_000, "/host", "consumer", (("range", b""),), 10_000)
    member = (await groups.coordinator.join(request)).member_id
    answer = await groups.coordinator.sync(SyncRequest("g", 1, member, {}))
    assert answer.error is ErrorCode.unknown_server_error


@pytest.mark.parametrize(("session_ms", "allowed"), [(5_999, False), (6_000, True), (1_800_001, False)])
async def test_session_timeout_must_lie_within_the_limits(groups: Groups, session_ms: int, allowed: bool) -> None:
    request = JoinRequest("g", "", "client", "/host", "consumer", (("range", b""),), session_ms)
    expected = ErrorCode.none if allowed else ErrorCode.invalid_session_timeout
    assert (await groups.coordinator.join(request)).error is expected


async def test_first_version_of_join_waits_for_its_session_timeout(groups: Groups) -> None:
    request = JoinRequest("g", "", "client", "/host", "consumer", (("range", b""),), 10_000)
    assert request.effective_rebalance_timeout_ms == 10_000
    await groups.coordinator.join(request)


@pytest.mark.parametrize("group", ["", "g" * 8_192])
async def test_group_ids_that_cannot_be(groups: Groups, group: str) -> None:
    invalid = ErrorCode.invalid_group_id
    assert (await groups.join(group)).error is invalid
    assert (await groups.coordinator.sync(SyncRequest(group, 1, "m", {}))).error is invalid
    assert await groups.coordinator.heartbeat(group, 1, "m") is invalid
    assert (await groups.coordinator.leave(group, [LeavingMember("m")])).error is invalid


async def test_group_that_does_not_exist(groups: Groups) -> None:
    unknown = ErrorCode.unknown_member_id
    assert (await groups.join(member="m")).error is unknown
    assert (await groups.coordinator.sync(SyncRequest("g", 1, "m", {}))).error is unknown
    assert await groups.coordinator.heartbeat("g", 1, "m") is unknown
    left = await groups.coordinator.leave("g", [LeavingMember("m")])
    assert (left.error, left.members) == (ErrorCode.none, ((LeavingMember("m"), unknown),))
    assert await groups.commit(1, generation=3, member="m") is ErrorCode.illegal_generation
    assert (await groups.coordinator.describe("g")).state == "Dead"


async def test_several_members_leave_at_once(groups: Groups) -> None:
    member = await groups.stable_member()
    reply = await groups.coordinator.leave("g", [LeavingMember(member), LeavingMember("stranger")])
    assert [error for _, error in reply.members] == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert (await groups.coordinator.describe("g")).state == "Empty"


async def test_partition_of_another_broker() -> None:
    groups = Groups()
    assert (await groups.join()).error is ErrorCode.not_coordinator
    assert await groups.commit(1) is ErrorCode.not_coordinator
    assert (await groups.coordinator.fetch_offsets("g")).error is ErrorCode.not_coordinator
    await groups.coordinator.close()


async def test_unload_answers_whoever_waits(groups: Groups) -> None:
    await groups.stable_member()
    newcomer = asyncio.ensure_future(groups.join())
    await settle()
    groups.coordinator.unload(groups.coordinator.partition_for("g"))
    assert (await newcomer).error is ErrorCode.not_coordinator
    assert (await groups.join()).error is ErrorCode.not_coordinator
    groups.advance(60_000)


async def test_close_answers_whoever_waits(groups: Groups) -> None:
    await groups.stable_member()
    newcomer = asyncio.ensure_future(groups.join())
    await settle()
    await groups.coordinator.close()
    assert (await newcomer).error is ErrorCode.coordinator_not_available
    assert (await groups.join()).error is ErrorCode.coordinator_not_available


async def test_while_a_partition_is_loaded() -> None:
    groups = Groups()
    loading = asyncio.ensure_future(groups.load())
    await asyncio.sleep(0)
    group = next(name for name in map(str, range(100)) if groups.coordinator.partition_for(name) == 0)
    in_progress = ErrorCode.coordinator_load_in_progress
    assert (await groups.join(group)).error is in_progress
    assert await groups.commit(1, group=group) is in_progress
    assert await groups.coordinator.heartbeat(group, 1, "m") is ErrorCode.none
    sync = await groups.coordinator.sync(SyncRequest(group, 1, "m", {}))
    assert sync.error is ErrorCode.rebalance_in_progress
    assert (await groups.coordinator.list_groups())[0] is in_progress
    await loading
    assert (await groups.join(group)).error is ErrorCode.none
    await groups.coordinator.close()


async def test_partition_that_cannot_be_read_is_not_served() -> None:
    groups = Groups()
    groups.store.read = lambda partition: (_ for _ in ()).throw(OSError("unreadable"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="unreadable"):
        await groups.coordinator.load(0)
    group = next(name for name in map(str, range(100)) if groups.coordinator.partition_for(name) == 0)
    assert (await groups.join(group)).error is ErrorCode.not_coordinator
    await groups.coordinator.close()


async def test_record_that_cannot_be_read_does_not_take_the_others_away(caplog: pytest.LogCaptureFixture) -> None:
    async with running_groups() as groups:
        await groups.commit(7)
    partition = groups.coordinator.partition_for("g")
    unreadable = (b"\x00\x01torn", b""), (b"\x00\x09later", b"x"), (b"\x00\x02\x00\x01g", b"?")
    groups.store.runs[partition].append(RecordRun(unreadable))
    async with running_groups(Groups(groups.store, groups.clock)) as again:
        assert await again.committed() == {"t": 7}
    assert caplog.text.count("cannot be read") == 2


async def test_list_by_state(groups: Groups) -> None:
    await groups.stable_member("one")
    await groups.commit(1, group="two")
    error, listed = await groups.coordinator.list_groups()
    assert error is ErrorCode.none
    assert {(g.group_id, g.protocol_type or "", g.state_name) for g in listed} == {
        ("one", "consumer", "Stable"),
        ("two", "", "Empty"),
    }
    assert [g.group_id for g in (await groups.coordinator.list_groups(["stable"]))[1]] == ["one"]


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("g", 3), ("console-consumer-1", None), ("polygenelubricants", 0), ("ü\U0001f600", None)],
)
async def test_partition_is_that_of_javas_hash(group: str, partition: int | None) -> None:
    hashed = 0
    units = group.encode("utf-16-be")
    for index in range(0, len(units), 2):
        hashed = (hashed * 31 + int.from_bytes(units[index : index + 2], "big")) % 2**32
    signed = hashed - 2**32 if hashed >= 2**31 else hashed
    expected = 0 if signed == -(2**31) else abs(signed) % PARTITIONS
    assert Groups().coordinator.partition_for(group) == expected
    assert partition is None or partition == expected


async def test_a_commit_that_is_slow_to_be_stored_is_answered_and_takes_effect_when_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_shard, "COMMIT_TIMEOUT_S", 0.0)
    async with running_groups() as groups:
        groups.store.gate.clear()
        assert await groups.commit(7) is ErrorCode.coordinator_not_available
        assert await groups.committed() == {}
        groups.store.gate.set()
        await settle()
        assert await groups.committed() == {"t": 7}


async def test_a_generation_that_is_slow_to_be_stored_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_shard, "COMMIT_TIMEOUT_S", 0.0)
    async with running_groups() as groups:
        joined = await groups.join()
        groups.store.gate.clear()
        sync = SyncRequest("g", 1, joined.member_id, {joined.member_id: b"work"})
        assert (await groups.coordinator.sync(sync)).error is ErrorCode.rebalance_in_progress
        groups.store.gate.set()
        await settle()
        assert (await groups.join(member=joined.member_id)).generation_id == 2
