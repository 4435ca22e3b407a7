"""Share partitions and their coordinator on three brokers: what was answered survives both of them."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_names import SHARE_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.server import BrokerServer
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import AcquiredRecords, FetchedBatch, Wanted, acknowledgements
from broker.share.share_partitions import SharePartition
from tests.support.randomness import seeded
from tests.support.replicating import PARTITIONS, Brokers

RECORDS = 1_500
"""Of one partition, that members share while brokers restart."""


class Shared:
    """Partitions of the topic `t`, shared by members of groups."""

    def __init__(self, running: Brokers) -> None:
        self.running = running.running

    @property
    def any(self) -> BrokerServer:
        return next(iter(self.running.values()))

    def key(self, *, led_by_coordinator: bool) -> SharePartitionKey:
        """One whose leader is, or is not, its coordinator."""
        topic_id = self.any._topics.metadata.topics["t"].topic_id
        for number in range(200):
            key = SharePartitionKey(f"g{number}", topic_id, number % PARTITIONS)
            if (self.leader(key) == self.coordinator(key)) == led_by_coordinator:
                return key
        raise AssertionError("there is no such key")

    def leader(self, key: SharePartitionKey) -> int:
        return self._leader(TopicPartition("t", key.partition))

    def coordinator(self, key: SharePartitionKey) -> int:
        partition = self.any._share.coordinator.partition_for(key.coordinator_key)
        return self._leader(TopicPartition(SHARE_STATE_TOPIC, partition))

    def _leader(self, tp: TopicPartition) -> int:
        info = self.any._topics.metadata.partition(tp)
        return -1 if info is None else info.leader

    async def begin(self, key: SharePartitionKey, start: int = 0) -> SharePartition:
        await self.any._share.persister.initialize(key, 1, start)
        return await self.get(key)

    async def get(self, key: SharePartitionKey) -> SharePartition:
        """At its leader, as soon as this one has taken over."""
        while True:
            try:
                leader = self.running.get(self.leader(key))
                if leader is not None:
                    return await leader._share.partitions.get(key)
            except BrokerError:
                pass
            await asyncio.sleep(0.02)


def fetch(share: SharePartition, member: str = "a") -> list[AcquiredRecords]:
    at = share.state.next_fetch_offset()
    assert at is not None
    return share.acquire(member, at, [FetchedBatch(at, 19)], Wanted(100, 100))


async def accept(share: SharePartition, first: int, last: int) -> ErrorCode:
    return await share.acknowledge("a", acknowledgements([(first, last, [1])]))


@pytest.mark.parametrize("led_by_coordinator", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_another_leader_has_what_was_answered(three: Brokers, led_by_coordinator: bool) -> None:
    """The leader stops; with `led_by_coordinator` it takes the coordinator with it."""
    shared = Shared(three)
    key = shared.key(led_by_coordinator=led_by_coordinator)
    share = await shared.begin(key)
    assert fetch(share) == [AcquiredRecords(0, 19, 1)]
    assert await accept(share, 0, 4) is ErrorCode.none
    assert await accept(share, 10, 12) is ErrorCode.none
    assert await share.acknowledge("a", acknowledgements([(15, 15, [2])])) is ErrorCode.none
    await three.stop(shared.leader(key))
    later = await shared.get(key)
    assert later.state.start_offset == 5
    assert fetch(later, "b") == [  # counts of what was not answered end with the leader that gave the locks
        AcquiredRecords(5, 9, 1),
        AcquiredRecords(13, 14, 1),
        AcquiredRecords(15, 15, 2),
        AcquiredRecords(16, 19, 1),
    ]


@pytest.mark.slow
async def test_writes_wait_for_another_coordinator(three: Brokers) -> None:
    shared = Shared(three)
    key = shared.key(led_by_coordinator=False)
    share = await shared.begin(key)
    fetch(share)
    assert await accept(share, 0, 4) is ErrorCode.none
    stopping = asyncio.ensure_future(three.stop(shared.coordinator(key)))
    codes = [await accept(share, offset, offset) for offset in range(5, 20)]
    await stopping
    assert codes == [ErrorCode.none] * 15
    assert (await shared.any._share.persister.summary(key)).start_offset == 20


@pytest.mark.slow
async def test_a_leader_that_does_not_know_that_it_is_deposed_stores_nothing(three: Brokers) -> None:
    shared = Shared(three)
    key = shared.key(led_by_coordinator=False)
    share = await shared.begin(key)
    fetch(share)
    await shared.any._share.persister.read(key, share.state.leader_epoch + 1)  # as the next leader does
    assert await accept(share, 0, 4) is ErrorCode.not_leader_or_follower
    assert share.is_fenced
    assert (await shared.any._share.persister.summary(key)).start_offset == 0


@pytest.mark.slow
async def test_altered_offsets_are_read_by_the_leader(three: Brokers) -> None:
    shared = Shared(three)
    key = shared.key(led_by_coordinator=False)
    share = await shared.begin(key)
    fetch(share)
    await shared.any._share.persister.initialize(key, 2, 7)
    assert await accept(share, 0, 4) is ErrorCode.not_leader_or_follower
    assert (await shared.get(key)).state.start_offset == 7


@pytest.mark.slow
async def test_the_start_follows_deleted_records(three: Brokers) -> None:
    shared = Shared(three)
    key = shared.key(led_by_coordinator=False)
    share = await shared.begin(key)
    fetch(share)
    await asyncio.to_thread(three.delete_records, {TopicPartition("t", key.partition): 8})
    share.state.log_start_moved(share.partition.log.log_start_offset)
    assert share.state.start_offset == 8
    assert await accept(share, 0, 9) is ErrorCode.none
    assert (await shared.any._share.persister.summary(key)).start_offset == 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_was_answered_never_comes_again_while_brokers_restart(three: Brokers, seed: int) -> None:
    shared, rng = Shared(three), seeded(seed)
    key = shared.key(led_by_coordinator=seed == 1)
    await asyncio.to_thread(three.produce, "t", 3 * RECORDS)
    await shared.begin(key)
    answered: set[int] = set()
    delivered: set[int] = set()
    restarted: list[int] = []

    async def member(name: str) -> None:
        while (share := await shared.get(key)).state.start_offset < RECORDS:
            at = share.state.next_fetch_offset()
            if at is None or at >= min(RECORDS, 250 * (1 + len(restarted))):
                await asyncio.sleep(0.01)
                continue
            last = min(at + 6, RECORDS - 1)
            got = share.acquire(name, at, [FetchedBatch(at, last)], Wanted(7, 7))
            for first, end, _ in got:
                offsets = set(range(first, end + 1))
                assert not offsets & answered
                delivered.update(offsets)
                kind = rng.choice([1, 1, 2, 3])
                try:
                    code = await share.acknowledge(name, acknowledgements([(first, end, [kind])]))
                except BrokerError as error:
                    code = error.code
                if code is ErrorCode.none and kind != 2:
                    answered.update(offsets)
            await asyncio.sleep(0)

    async def restart_brokers() -> None:
        while True:
            broker_id = rng.choice([shared.leader(key), shared.coordinator(key)])
            if broker_id in three.running:
                await three.stop(broker_id)
                await three.start(broker_id)
                restarted.append(broker_id)
            await asyncio.sleep(0.1)

    restarting = asyncio.ensure_future(restart_brokers())
    try:
        async with asyncio.timeout(100):
            await asyncio.gather(member("a"), member("b"), member("c"))
    finally:
        restarting.cancel()
        await asyncio.wait([restarting])
    assert delivered == set(range(RECORDS))
