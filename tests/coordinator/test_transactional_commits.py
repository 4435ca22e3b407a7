"""Offsets committed in transactions, through the running coordinator: pending, visible, dropped, replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.record_store import RecordRun
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.coordinators import PARTITIONS, Groups, running_groups, settle
from tests.support.record_stores import GatedRecordStore, SyncingRecordStore

T0 = TopicPartition("t", 0)
WEEK_MS = 10_080 * 60_000


class Transactions(Groups):
    """Groups, and the markers that a transaction coordinator would write."""

    async def commit_in(
        self, producer: int, offset: int, *, group: str = "g", topic: str = "t", generation: int = -1, member: str = ""
    ) -> ErrorCode:
        partition = TopicPartition(topic, 0)
        request = CommitRequest(
            group,
            {partition: OffsetAndMetadata(offset)},
            generation,
            member,
            producer=ProducerIdAndEpoch(producer, 0),
        )
        return (await self.coordinator.commit_offsets(request))[partition]

    def end(self, producer: int, *, commit: bool, group: str = "g") -> None:
        partition = self.coordinator.partition_for(group)
        self.store.append_marker(partition, producer, commit=commit)
        self.coordinator.transaction_ended(partition, producer, commit)

    async def unstable(self, group: str = "g") -> set[str]:
        """The topics that OffsetFetch of stable offsets refuses to tell."""
        asked = [TopicPartition(topic, 0) for topic in "tuv"]
        return {tp.topic for tp in (await self.coordinator.fetch_offsets(group, asked, require_stable=True)).unstable}

    def restarted(self) -> Transactions:
        return Transactions(self.store, self.clock)


@pytest.fixture
async def groups() -> AsyncIterator[Transactions]:
    groups = Transactions()
    async with running_groups(groups):
        yield groups


async def test_offsets_hold_when_the_transaction_is_committed(groups: Transactions) -> None:
    await groups.commit(1)
    assert await groups.commit_in(7, 5) is ErrorCode.none
    assert (await groups.committed(), await groups.unstable()) == ({"t": 1}, {"t"})
    reply = await groups.coordinator.fetch_offsets("g", [T0], require_stable=True)
    assert (reply.offsets[T0].offset, set(reply.unstable)) == (-1, {T0})
    assert not (await groups.coordinator.fetch_offsets("g", [T0])).unstable
    groups.end(7, commit=True)
    assert (await groups.committed(), await groups.unstable()) == ({"t": 5}, set())


async def test_offsets_of_an_aborted_transaction_are_dropped(groups: Transactions) -> None:
    await groups.commit(1)
    await groups.commit_in(7, 5)
    groups.end(7, commit=False)
    assert (await groups.committed(), await groups.unstable()) == ({"t": 1}, set())
    await groups.commit_in(7, 6)
    groups.end(7, commit=True)
    assert await groups.committed() == {"t": 6}


@pytest.mark.parametrize("commit", [True, False, None])
async def test_restart_finds_the_transaction_as_it_was(commit: bool | None) -> None:
    groups = Transactions()
    async with running_groups(groups):
        await groups.commit(1)
        await groups.commit_in(7, 5)
        if commit is not None:
            groups.end(7, commit=commit)
    again = groups.restarted()
    async with running_groups(again):
        assert await again.committed() == {"t": 5 if commit else 1}
        assert await again.unstable() == ({"t"} if commit is None else set())
        again.end(7, commit=True)
        assert await again.committed() == {"t": 1 if commit is False else 5}


async def test_a_later_plain_commit_wins_also_after_a_restart() -> None:
    groups = Transactions()
    async with running_groups(groups):
        await groups.commit_in(7, 5)
        await groups.commit(6)
        groups.end(7, commit=True)
        assert await groups.committed() == {"t": 6}
    async with running_groups(groups.restarted()) as again:
        assert await again.committed() == {"t": 6}


async def test_member_of_an_older_generation_is_fenced(groups: Transactions) -> None:
    """KIP-447: a member of an older generation must not commit, even if its transaction is valid."""
    member = await groups.stable_member()
    assert await groups.commit_in(7, 1, generation=1, member="other") is ErrorCode.unknown_member_id
    assert await groups.commit_in(7, 1, generation=0, member=member) is ErrorCode.illegal_generation
    assert await groups.commit_in(7, 1, generation=3, group="new") is ErrorCode.illegal_generation
    assert await groups.unstable() == set()
    assert await groups.commit_in(7, 1, generation=1, member=member) is ErrorCode.none
    # Before version 3 producers say nothing of members.
    assert await groups.commit_in(7, 2) is ErrorCode.none


async def test_member_may_commit_between_join_and_sync(groups: Transactions) -> None:
    member = (await groups.join()).member_id
    assert await groups.commit(1, generation=1, member=member) is ErrorCode.rebalance_in_progress
    assert await groups.commit_in(7, 1, generation=1, member=member) is ErrorCode.none


async def test_offset_is_unstable_before_it_is_stored(groups: Transactions) -> None:
    groups.store.gate.clear()
    committing = asyncio.ensure_future(groups.commit_in(7, 5))
    await groups.store.until_waiting()
    assert await groups.unstable() == {"t"}
    groups.store.fail_with = BrokerError(ErrorCode.invalid_producer_epoch)
    groups.store.gate.set()
    assert await committing is ErrorCode.invalid_producer_epoch
    assert await groups.unstable() == set()
    groups.end(7, commit=True)
    assert await groups.committed() == {}


async def test_marker_that_comes_while_the_offsets_are_synced_ends_them() -> None:
    """This happens when a producer is fenced while its TxnOffsetCommit waits for the disk."""
    store = SyncingRecordStore()
    groups = Transactions(store)  # type: ignore[arg-type]
    async with running_groups(groups):
        store.gate.clear()
        committing = asyncio.ensure_future(groups.commit_in(7, 5))
        await settle()
        groups.end(7, commit=True)
        next_one = asyncio.ensure_future(groups.commit_in(7, 6, topic="u"))
        await settle()
        store.gate.set()
        assert (await committing, await next_one) == (ErrorCode.none, ErrorCode.none)
        assert (await groups.committed(), await groups.unstable()) == ({"t": 5}, {"u"})


async def test_offsets_go_to_the_log_before_a_marker_that_comes_later_whatever_is_under_way() -> None:
    """Behind its marker they would begin a transaction that nobody ends."""
    store = SyncingRecordStore()
    groups = Transactions(store)  # type: ignore[arg-type]
    async with running_groups(groups):
        plain = asyncio.ensure_future(groups.commit(1))
        await settle()
        late, other = (asyncio.ensure_future(groups.commit_in(producer, 5)) for producer in (7, 8))
        await settle()
        groups.end(7, commit=False)
        assert store.appends == 3
        store.gate.set()
        assert await plain is await late is await other is ErrorCode.none
        groups.end(8, commit=True)
        assert (await groups.committed(), await groups.unstable()) == ({"t": 5}, set())


async def test_marker_that_comes_while_the_partition_is_loaded_counts() -> None:
    class SlowStore(GatedRecordStore):
        async def read(self, partition: int) -> AsyncIterator[RecordRun]:
            async for run in super().read(partition):
                yield run
            await self.gate.wait()

    groups = Transactions(SlowStore())
    async with running_groups(groups):
        await groups.commit_in(7, 5)
        await groups.commit_in(8, 6, topic="u")
    again = groups.restarted()
    again.store.gate.clear()
    loading = asyncio.ensure_future(again.coordinator.load(again.coordinator.partition_for("g")))
    await settle()
    again.end(7, commit=True)
    again.end(8, commit=False)
    again.store.gate.set()
    await loading
    assert (await again.committed(), await again.unstable()) == ({"t": 5}, set())
    await again.coordinator.close()


async def test_group_that_a_transaction_moves_does_not_expire(groups: Transactions) -> None:
    await groups.commit_in(7, 5)
    await groups.commit_in(8, 6, topic="u")
    groups.end(8, commit=False)
    groups.clock.advance(2 * WEEK_MS)
    groups.coordinator._timer.run_due()
    await settle()
    groups.end(7, commit=True)
    assert await groups.committed() == {"t": 5}


async def test_deleted_group_is_not_brought_back_by_the_end_of_a_transaction() -> None:
    """The tombstones are after the pending offsets in the log, so they win, as after a compaction."""
    groups = Transactions()
    async with running_groups(groups):
        await groups.commit(1, topic="u")
        await groups.commit_in(7, 5)
        assert await groups.coordinator.delete_groups(["g"]) == {"g": ErrorCode.none}
        groups.end(7, commit=True)
        assert await groups.committed() == {}
    async with running_groups(groups.restarted()) as again:
        assert await again.committed() == {}
        assert (await again.coordinator.list_groups())[1] == []


async def test_pending_offsets_of_a_deleted_topic_are_forgotten(groups: Transactions) -> None:
    await groups.commit_in(7, 5)
    await groups.coordinator.forget_partitions([T0])
    assert await groups.unstable() == set()
    groups.end(7, commit=True)
    assert await groups.committed() == {}


async def test_group_without_a_name_takes_no_part_in_transactions(groups: Transactions) -> None:
    assert await groups.commit_in(7, 5, group="") is ErrorCode.invalid_group_id


async def test_end_of_a_transaction_in_a_partition_that_is_not_here_does_nothing(groups: Transactions) -> None:
    groups.coordinator.unload(0)
    groups.coordinator.transaction_ended(0, 7, True)
    groups.coordinator.transaction_ended(PARTITIONS + 1, 7, True)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("in transaction"), st.integers(1, 3), st.sampled_from("tu"), st.sampled_from("gh")),
        st.tuples(st.just("plain"), st.just(0), st.sampled_from("tu"), st.sampled_from("gh")),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.just("t"), st.just("g")),
        st.tuples(st.sampled_from(["delete offset", "delete group", "forget"]), st.just(0), st.just("t"), st.just("g")),
        st.tuples(st.just("restart"), st.just(0), st.just("t"), st.just("g")),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_any_history_is_replayed_to_what_it_was(history: list[tuple[str, int, str, str]]) -> None:
    async def state(groups: Transactions) -> list[object]:
        return [(await groups.committed(group), await groups.unstable(group)) for group in "gh"]

    async def check(groups: Transactions) -> Transactions:
        """A restart tells the same; offsets that can no longer change may be stable earlier, and whatever is still
        open ends the same way."""
        again = groups.restarted()
        await again.load()
        for group in "gh":
            assert await again.committed(group) == await groups.committed(group)
            assert await again.unstable(group) <= await groups.unstable(group)
        return again

    async def play() -> None:
        groups = Transactions()
        await groups.load()
        for number, (what, producer, topic, group) in enumerate(history):
            if what == "in transaction":
                assert await groups.commit_in(producer, number, topic=topic, group=group) is ErrorCode.none
            elif what == "plain":
                assert await groups.commit(number, topic=topic, group=group) is ErrorCode.none
            elif what in ("commit", "abort"):
                for one in {groups.coordinator.partition_for(name): name for name in "gh"}.values():
                    groups.end(producer, commit=what == "commit", group=one)
            elif what == "delete offset":
                await groups.coordinator.delete_offsets(group, [TopicPartition(topic, 0)])
            elif what == "delete group":
                await groups.coordinator.delete_groups([group])
            elif what == "forget":
                await groups.coordinator.forget_partitions([TopicPartition(topic, 0)])
            else:
                before, groups = groups, await check(groups)
                await before.coordinator.close()
        again = await check(groups)
        for producer in (1, 2, 3):
            for partition in {groups.coordinator.partition_for(name) for name in "gh"}:
                groups.coordinator.transaction_ended(partition, producer, True)
                again.coordinator.transaction_ended(partition, producer, True)
        assert await state(again) == await state(groups)

    asyncio.run(play())


async def test_what_nobody_can_say_is_asked_again(groups: Transactions) -> None:
    """After NOT_COORDINATOR librdkafka never reads these partitions. Of all partitions nobody knows which they are."""

    async def leads(partition: int) -> bool | None:
        return None

    await groups.commit(1)
    groups.coordinator._leads = leads
    reply = await groups.coordinator.fetch_offsets("g", [T0], require_stable=True)
    assert (reply.error, reply.offsets[T0].offset, set(reply.unstable)) == (ErrorCode.none, -1, {T0})
    assert (await groups.coordinator.fetch_offsets("g", None, require_stable=True)).error is ErrorCode.not_coordinator
    assert (await groups.coordinator.fetch_offsets("g", [T0])).offsets[T0].offset == 1
