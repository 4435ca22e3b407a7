"""Committed offsets through the running coordinator: store, fetch, fail, expire, delete."""

from __future__ import annotations

import asyncio

import pytest

from broker.coordinator.group_messages import NO_OFFSET, CommitRequest, LeavingMember
from broker.coordinator.group_records import GroupKey, OffsetAndMetadata, decode_key
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.coordinators import Groups, running_groups, settle

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
WEEK_MS = 10_080 * 60_000


async def test_what_is_committed_is_fetched(groups: Groups) -> None:
    request = CommitRequest("g", {T0: OffsetAndMetadata(5, 2, "note"), T1: OffsetAndMetadata(6)})
    assert await groups.coordinator.commit_offsets(request) == {T0: ErrorCode.none, T1: ErrorCode.none}
    stored = OffsetAndMetadata(5, 2, "note", groups.clock.now_ms())
    some = await groups.coordinator.fetch_offsets("g", [T0, U0])
    assert some.offsets == {T0: stored, U0: NO_OFFSET}
    assert set((await groups.coordinator.fetch_offsets("g")).offsets) == {T0, T1}


async def test_group_without_offsets_has_none(groups: Groups) -> None:
    reply = await groups.coordinator.fetch_offsets("g", [T0])
    assert (reply.error, reply.offsets) == (ErrorCode.none, {T0: NO_OFFSET})
    assert (await groups.coordinator.list_groups())[1] == []


async def test_offsets_survive_a_restart() -> None:
    async with running_groups() as groups:
        for offset in range(5):
            await groups.commit(offset)
        await groups.commit(9, topic="u")
        before = await groups.coordinator.fetch_offsets("g")
    async with running_groups(Groups(groups.store, groups.clock)) as again:
        assert await again.coordinator.fetch_offsets("g") == before


async def test_empty_group_id_may_commit(groups: Groups) -> None:
    assert await groups.commit(3, group="") is ErrorCode.none
    assert await groups.committed("") == {"t": 3}


async def test_only_members_commit_to_a_group_with_members(groups: Groups) -> None:
    member = await groups.stable_member()
    assert await groups.commit(1) is ErrorCode.unknown_member_id
    assert await groups.commit(1, generation=2, member=member) is ErrorCode.illegal_generation
    assert await groups.commit(1, generation=1, member=member) is ErrorCode.none
    assert await groups.committed() == {"t": 1}


async def test_too_long_metadata_fails_its_partition_only(groups: Groups) -> None:
    request = CommitRequest("g", {T0: OffsetAndMetadata(1, -1, "x" * 4_097), T1: OffsetAndMetadata(2, -1, "x" * 4_096)})
    results = await groups.coordinator.commit_offsets(request)
    assert results == {T0: ErrorCode.offset_metadata_too_large, T1: ErrorCode.none}
    assert set((await groups.coordinator.fetch_offsets("g")).offsets) == {T1}


async def test_topic_that_fits_no_record_fails_its_partition_only(groups: Groups) -> None:
    long = TopicPartition("t" * 40_000, 0)
    request = CommitRequest("g", {long: OffsetAndMetadata(1), T1: OffsetAndMetadata(2)})
    results = await groups.coordinator.commit_offsets(request)
    assert results == {long: ErrorCode.invalid_commit_offset_size, T1: ErrorCode.none}


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (BrokerError(ErrorCode.not_enough_replicas), ErrorCode.coordinator_not_available),
        (BrokerError(ErrorCode.not_leader_or_follower), ErrorCode.not_coordinator),
        (BrokerError(ErrorCode.message_too_large), ErrorCode.invalid_commit_offset_size),
        (OSError("disk full"), ErrorCode.not_coordinator),
    ],
)
async def test_what_is_not_stored_is_not_committed(groups: Groups, raised: Exception, told: ErrorCode) -> None:
    await groups.commit(1)
    groups.store.fail_with = raised
    assert await groups.commit(2) is told
    assert await groups.committed() == {"t": 1}


async def test_commit_is_not_seen_before_it_is_stored(groups: Groups) -> None:
    groups.store.gate.clear()
    committing = asyncio.ensure_future(groups.commit(1))
    await groups.store.until_waiting()
    assert await groups.committed() == {}
    groups.store.gate.set()
    assert await committing is ErrorCode.none
    assert await groups.committed() == {"t": 1}


async def test_commit_whose_caller_went_away_counts_when_it_is_stored(groups: Groups) -> None:
    groups.store.gate.clear()
    committing = asyncio.ensure_future(groups.commit(1))
    await groups.store.until_waiting()
    committing.cancel()
    groups.store.gate.set()
    await settle()
    assert await groups.committed() == {"t": 1}
    assert await groups.commit(2) is ErrorCode.none


async def test_commits_at_the_same_time_end_in_their_order(groups: Groups) -> None:
    results = await asyncio.gather(*(groups.commit(offset) for offset in range(100)))
    assert set(results) == {ErrorCode.none}
    assert await groups.committed() == {"t": 99}
    assert groups.store.appends < 10


async def test_offset_with_a_retention_of_its_own_expires_by_it(groups: Groups) -> None:
    request = CommitRequest("g", {T0: OffsetAndMetadata(1)}, retention_time_ms=60_000)
    await groups.coordinator.commit_offsets(request)
    await groups.commit(2, topic="u")
    groups.clock.advance(700_000)
    groups.coordinator._timer.run_due()
    await settle()
    assert await groups.committed() == {"u": 2}


async def test_forgotten_group_disappears_from_memory_and_log() -> None:
    async with running_groups() as groups:
        member = await groups.stable_member()
        await groups.commit(1, generation=1, member=member)
        await groups.coordinator.leave("g", [LeavingMember(member)])
        groups.clock.advance(WEEK_MS - 1_000)
        groups.coordinator._timer.run_due()
        await settle()
        assert await groups.committed() == {"t": 1}
        groups.clock.advance(600_000)
        groups.coordinator._timer.run_due()
        await settle()
        assert (await groups.coordinator.list_groups())[1] == []
    latest = dict(groups.store.records[groups.coordinator.partition_for("g")])
    assert set(latest.values()) == {None}


async def test_delete_of_groups() -> None:
    async with running_groups() as groups:
        await groups.stable_member("busy")
        await groups.commit(1, group="idle")
        results = await groups.coordinator.delete_groups(["busy", "idle", "nobody"])
        assert results == {
            "busy": ErrorCode.non_empty_group,
            "idle": ErrorCode.none,
            "nobody": ErrorCode.group_id_not_found,
        }
        assert await groups.committed("idle") == {}
    async with running_groups(Groups(groups.store, groups.clock)) as again:
        assert [listed.group_id for listed in (await again.coordinator.list_groups())[1]] == ["busy"]


async def test_delete_that_cannot_be_stored_deletes_nothing(groups: Groups) -> None:
    await groups.commit(1)
    groups.store.fail_with = BrokerError(ErrorCode.not_enough_replicas)
    assert await groups.coordinator.delete_groups(["g"]) == {"g": ErrorCode.coordinator_not_available}
    groups.store.fail_with = None
    assert await groups.committed() == {"t": 1}
    assert await groups.commit(2) is ErrorCode.none


async def test_group_is_not_deleted_under_a_commit_nor_a_commit_taken_under_a_delete(groups: Groups) -> None:
    groups.store.gate.clear()
    committing = asyncio.ensure_future(groups.commit(1))
    await groups.store.until_waiting()
    assert await groups.coordinator.delete_groups(["g"]) == {"g": ErrorCode.coordinator_not_available}
    groups.store.gate.set()
    await committing
    groups.store.gate.clear()
    deleting = asyncio.ensure_future(groups.coordinator.delete_groups(["g"]))
    await groups.store.until_waiting()
    assert await groups.commit(2) is ErrorCode.coordinator_not_available
    groups.store.gate.set()
    assert await deleting == {"g": ErrorCode.none}
    assert await groups.commit(3) is ErrorCode.none
    assert await groups.committed() == {"t": 3}


async def test_delete_of_offsets() -> None:
    async with running_groups() as groups:
        await groups.commit(1)
        await groups.commit(2, topic="u")
        error, results = await groups.coordinator.delete_offsets("g", [T0, T1])
        assert (error, results) == (ErrorCode.none, {T0: ErrorCode.none, T1: ErrorCode.none})
        assert await groups.committed() == {"u": 2}
        assert (await groups.coordinator.delete_offsets("nobody", [T0]))[0] is ErrorCode.group_id_not_found
    async with running_groups(Groups(groups.store, groups.clock)) as again:
        assert await again.committed() == {"u": 2}


async def test_offsets_of_deleted_topics_are_forgotten(groups: Groups) -> None:
    await groups.commit(1, group="one")
    await groups.commit(2, group="two", topic="u")
    await groups.coordinator.forget_partitions([T0, T1])
    assert (await groups.committed("one"), await groups.committed("two")) == ({}, {"u": 2})


async def test_records_lie_in_the_partition_of_their_group() -> None:
    async with running_groups() as groups:
        for name in ("one", "two", "three"):
            await groups.stable_member(name)
    for partition, records in groups.store.records.items():
        for raw_key, _ in records:
            key = decode_key(raw_key)
            assert isinstance(key, GroupKey)
            assert groups.coordinator.partition_for(key.group_id) == partition
