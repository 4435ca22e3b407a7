"""Fetch sessions (KIP-227): what an incremental answer has, what is looked at for it, epochs, errors and eviction."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from broker.api.fetch_sessions import EVICTION_MS
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import PartitionInfo
from tests.support.fetch_leader import FetchLeader, seen
from tests.support.randomness import seeded
from tests.support.raw_requests import ask_for

NAMES, IDS = 12, 13


@pytest.fixture
def leader(tmp_path: Path) -> FetchLeader:
    """Leads t-0 to t-3, with a record in each."""
    made = FetchLeader(tmp_path)
    made.lead(0, 1, 2, 3)
    for partition in range(4):
        made.put(partition, b"first")
    return made


class Session:
    """A client's session, at the end of all partitions once it is made."""

    def __init__(self, leader: FetchLeader, *partitions: int, version: int = NAMES, **body: Any) -> None:
        self._leader, self._version, self._body = leader, version, body
        (topic_id,) = (one for one, name in leader.topic_ids.items() if name == "t")
        self.topic: str | uuid.UUID = "t" if version < IDS else topic_id
        made = self.send(*((partition, 1) for partition in partitions), session_epoch=0)
        self.id = made.session_id
        self.epoch = 1
        leader.reads.clear()

    def send(self, *wanted: tuple[int, int], **body: Any) -> Any:
        asked = [ask_for(self.topic, offset, partition) for partition, offset in wanted]
        return self._leader.send(asked, **{"version": self._version, **self._body, **body})

    def fetch(self, *wanted: tuple[int, int], **body: Any) -> Any:
        """The next incremental fetch; `wanted`: (partition, offset) of those that are new or have another offset."""
        answer = self.send(*wanted, session_id=self.id, session_epoch=self.epoch, **body)
        self.epoch += 1
        return answer


@pytest.mark.parametrize("version", [7, 9, 12, 13, 16])
def test_an_answer_has_only_what_has_changed(leader: FetchLeader, version: int) -> None:
    session = Session(leader, 0, 1, 2, version=version)
    assert session.id > 0
    nothing = session.fetch()
    assert (nothing.error_code, nothing.session_id, seen(nothing)) == (ErrorCode.none, session.id, [])
    leader.put(1, b"second")
    assert seen(session.fetch()) == [(1, [b"second"])]
    assert seen(session.fetch((1, 2))) == []


def test_a_new_session_gets_all_its_partitions(leader: FetchLeader) -> None:
    made = leader.send([ask_for("t", 1, 0), ask_for("t", 0, 1), ask_for("no", 0, 0)], session_epoch=0)
    assert seen(made) == [(0, []), (1, [b"first"]), (0, [])]
    assert made.responses[-1].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


def test_a_quiet_partition_is_not_looked_at(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1, 2, 3)
    for _ in range(5):
        session.fetch()
    assert leader.reads == []
    leader.put(2, b"second")
    session.fetch()
    assert leader.reads == [TopicPartition("t", 2)]
    leader.reads.clear()
    session.fetch((2, 2))
    session.fetch()
    assert leader.reads == [TopicPartition("t", 2)], "once, for its new offset"


def test_a_partition_with_an_open_transaction_is_quiet_for_a_committed_reader(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1, isolation_level=1)
    leader.put(0, b"open", producer_id=7, sequence=0)
    for _ in range(3):
        session.fetch()
    assert leader.reads == [TopicPartition("t", 0)]
    assert seen(session.fetch(isolation_level=0)) == [(0, [b"open"])]


def test_what_the_client_has_not_taken_is_answered_again(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1)
    leader.put(1, b"second")
    assert seen(session.fetch()) == seen(session.fetch()) == [(1, [b"second"])]


def test_partitions_with_records_go_to_the_end(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1, 2, 3)
    for partition in (3, 2, 1):
        leader.put(partition, b"x" * 100)
    one_batch = {"max_bytes": 150}
    assert seen(session.fetch(**one_batch)) == [(1, [b"x" * 100]), (2, []), (3, [])], "new watermarks of 2 and 3"
    leader.put(1, b"y")
    assert [partition for partition, _ in seen(session.fetch((1, 2), **one_batch))] == [2, 1]
    assert [partition for partition, _ in seen(session.fetch((2, 2), **one_batch))] == [3]
    assert [partition for partition, _ in seen(session.fetch((3, 2), **one_batch))] == [1]


def test_partitions_are_forgotten_and_added(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1)
    assert seen(session.fetch((2, 0), forgotten={"t": [0, 7], "other": [1]})) == [(2, [b"first"])]
    for partition in range(3):
        leader.put(partition, b"second")
    assert [partition for partition, _ in seen(session.fetch((2, 1)))] == [1, 2]
    assert leader.metrics.fetch_sessions.partitions == 2
    assert [len(led.waiters) for led in leader.partitions.values()] == [0, 0, 0, 0]


def test_a_session_without_partitions_is_closed(leader: FetchLeader) -> None:
    session = Session(leader, 0)
    assert session.fetch(forgotten={"t": [0]}).session_id == 0
    assert session.fetch().error_code is ErrorCode.fetch_session_id_not_found
    assert leader.metrics.fetch_sessions.sessions == leader.metrics.fetch_sessions.partitions == 0


def test_errors_are_answered_each_time(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1)
    leader.resign(1)
    for _ in range(2):
        (topic,) = session.fetch().responses
        assert [one.error_code for one in topic.partitions] == [ErrorCode.not_leader_or_follower]
    leader.lead(1)
    assert seen(session.fetch()) == [(1, [])], "once without an error"
    assert seen(session.fetch()) == []


def test_a_topic_id_is_looked_up_until_it_is_known(leader: FetchLeader) -> None:
    session = Session(leader, 0, version=IDS)
    new = uuid.uuid4()
    session.topic = new
    (topic,) = session.fetch((0, 0)).responses
    assert (topic.topic_id, topic.partitions[0].error_code) == (new, ErrorCode.unknown_topic_id)
    leader.topic_ids[new] = "new"
    leader.lead(0, topic="new")
    assert [topic.topic_id for topic in session.fetch().responses] == [new]
    assert session.fetch().responses == ()


def test_a_topic_id_is_not_that_of_a_topic_made_again_under_the_same_name(leader: FetchLeader) -> None:
    session = Session(leader, 0, version=IDS)
    old = session.topic
    assert isinstance(old, uuid.UUID)
    leader.topic_ids = {uuid.uuid4(): "t"}
    leader.put(0, b"of another topic")
    (topic,) = session.fetch().responses
    assert (topic.topic_id, topic.partitions[0].error_code) == (old, ErrorCode.unknown_topic_id)


def test_a_new_log_start_is_answered_after_a_second_at_most(leader: FetchLeader) -> None:
    session = Session(leader, 0, 1)
    leader.partitions[TopicPartition("t", 1)].log.delete_records(1)
    leader.clock.advance(1000)
    (topic,) = session.fetch().responses
    assert [(one.partition_index, one.log_start_offset) for one in topic.partitions] == [(1, 1)]
    leader.clock.advance(1000)
    assert session.fetch().responses == ()


def test_a_new_leader_epoch_is_noticed_after_a_second_at_most(leader: FetchLeader) -> None:
    session = Session(leader, 0)
    session.send()
    leader.send([ask_for("t", 1, 0, epoch=0)], session_id=session.id, session_epoch=1)
    leader.partitions[TopicPartition("t", 0)].leader_epoch = 3
    leader.clock.advance(1000)
    (topic,) = leader.send(session_id=session.id, session_epoch=2).responses
    assert topic.partitions[0].error_code is ErrorCode.fenced_leader_epoch


class TestEpochs:
    def test_an_unknown_session(self, leader: FetchLeader) -> None:
        for session_id, epoch in ((5, 1), (5, 7), (0, 1), (-1, 1)):
            answer = leader.send([ask_for("t")], session_id=session_id, session_epoch=epoch)
            found = answer.error_code, answer.session_id, answer.responses
            assert found == (ErrorCode.fetch_session_id_not_found, 0, ())

    def test_another_epoch_than_the_next(self, leader: FetchLeader) -> None:
        session = Session(leader, 0)
        session.fetch()
        for epoch in (1, 3, -2):
            answer = leader.send(session_id=session.id, session_epoch=epoch)
            assert (answer.error_code, answer.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
        assert session.fetch().error_code is ErrorCode.none, "the session goes on"

    def test_names_in_a_session_of_ids(self, leader: FetchLeader) -> None:
        for version, other in ((NAMES, IDS), (IDS, NAMES)):
            session = Session(leader, 0, version=version)
            assert session.send(version=other, session_id=session.id, session_epoch=1).error_code is (
                ErrorCode.fetch_session_topic_id_error
            )

    @pytest.mark.parametrize("epoch", [0, -1])
    def test_a_full_fetch_closes_its_session(self, leader: FetchLeader, epoch: int) -> None:
        session = Session(leader, 0)
        answer = session.send((0, 1), session_id=session.id, session_epoch=epoch)
        assert (answer.session_id > 0) is (epoch == 0)
        assert answer.session_id != session.id
        assert session.fetch().error_code is ErrorCode.fetch_session_id_not_found

    def test_the_epoch_after_the_largest_is_1(self, leader: FetchLeader) -> None:
        session = Session(leader, 0)
        leader.cache._sessions[session.id].epoch = session.epoch = 2**31 - 1
        assert session.fetch().error_code is ErrorCode.none
        session.epoch = 1
        assert session.fetch().error_code is ErrorCode.none


class TestWaiting:
    async def test_any_partition_ends_the_wait(self, leader: FetchLeader) -> None:
        session = Session(leader, 0, 1, 2, 3)
        for partition, wanted in ((2, ()), (0, ((2, 2),))):
            waiting = asyncio.ensure_future(session.fetch(*wanted, max_wait=20_000))
            await asyncio.sleep(0)
            leader.put(partition, b"second")
            assert seen(await asyncio.wait_for(waiting, 60)) == [(partition, [b"second"])]

    async def test_bytes_of_all_partitions_count(self, leader: FetchLeader) -> None:
        session = Session(leader, 0, 1, 2)
        leader.put(0, b"x" * 1000)
        waiting = asyncio.ensure_future(session.fetch(max_wait=20_000, min_bytes=3000))
        for _ in range(2):
            await asyncio.sleep(0)
            assert not waiting.done()
            leader.put(1, b"x" * 800)
        await asyncio.sleep(0)
        assert not waiting.done()
        leader.put(1, b"x" * 300)
        assert [len(values) for _, values in seen(await asyncio.wait_for(waiting, 60))] == [1, 3]

    async def test_a_lost_partition_ends_the_wait(self, leader: FetchLeader) -> None:
        session = Session(leader, 0, 1)
        waiting = asyncio.ensure_future(session.fetch(max_wait=20_000))
        await asyncio.sleep(0)
        leader.resign(0)
        (topic,) = (await asyncio.wait_for(waiting, 60)).responses
        assert topic.partitions[0].error_code is ErrorCode.not_leader_or_follower

    async def test_a_committed_reader_waits_for_the_end_of_a_transaction(self, leader: FetchLeader) -> None:
        session = Session(leader, 0, 1, isolation_level=1)
        waiting = asyncio.ensure_future(session.fetch(max_wait=20_000))
        await asyncio.sleep(0)
        leader.put(0, b"open", producer_id=7, sequence=0)
        await asyncio.sleep(0)
        assert not waiting.done()
        leader.end_transaction(0, 7)
        assert seen(await asyncio.wait_for(waiting, 60)) == [(0, [b"open"])]

    async def test_an_error_that_is_gone_is_answered_after_the_wait(self, leader: FetchLeader) -> None:
        session = Session(leader, 0, 1)
        leader.resign(1)
        session.fetch()
        leader.lead(1)
        assert seen(await session.fetch(max_wait=10)) == [(1, [])]
        assert seen(await session.fetch(max_wait=10)) == []

    async def test_a_session_of_no_known_partition_does_not_wait(self, leader: FetchLeader) -> None:
        made = leader.send([ask_for("no")], session_epoch=0, max_wait=20_000)
        answer = leader.send(session_id=made.session_id, session_epoch=1, max_wait=20_000)
        assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition

    async def test_the_next_request_ends_the_wait_with_an_error(self, leader: FetchLeader) -> None:
        session = Session(leader, 0)
        waiting = asyncio.ensure_future(session.fetch(max_wait=20_000))
        await asyncio.sleep(0)
        assert session.fetch().error_code is ErrorCode.none
        answer = await asyncio.wait_for(waiting, 60)
        assert (answer.error_code, answer.session_id) == (ErrorCode.invalid_fetch_session_epoch, session.id)

    async def test_a_closed_session_leaves_nothing_behind(self, leader: FetchLeader) -> None:
        session = Session(leader, 0, 1)
        waiting = asyncio.ensure_future(session.fetch(max_wait=20_000))
        await asyncio.sleep(0)
        session.send(session_id=session.id, session_epoch=-1)
        assert seen(await asyncio.wait_for(waiting, 60)) == []
        assert not any(led.waiters for led in leader.partitions.values())

    async def test_a_client_that_is_gone_costs_one_call(self, leader: FetchLeader) -> None:
        new = asyncio.ensure_future(
            leader.send([ask_for("t", 1)], session_epoch=0, max_wait=20_000)
        )  # has no id yet when its client disconnects
        known = Session(leader, 0)
        waiting = asyncio.ensure_future(known.fetch(max_wait=20_000))
        await asyncio.sleep(0)
        new.cancel()
        waiting.cancel()
        await asyncio.wait([new, waiting])
        led = leader.partitions[TopicPartition("t", 0)]
        assert len(led.waiters) == 1
        leader.put(0, b"second")
        assert not led.waiters


class Follower:
    """Broker 2 follows broker 1 in partitions 0 and 1, whose log ends it has, in a session."""

    def __init__(self, leader: FetchLeader) -> None:
        self._leader = leader
        self.id = leader.send([self.ask(0, 1), self.ask(1, 1)], session_epoch=0, replica=2).session_id
        self.epoch = 0
        leader.reads.clear()

    def ask(self, partition: int, offset: int) -> dict[str, Any]:
        asked = ask_for("t", offset, partition, epoch=5)
        asked["partitions"][0]["last_fetched_epoch"] = 5
        return asked

    def fetch(self, *wanted: tuple[int, int], **body: Any) -> Any:
        self.epoch += 1
        asked = [self.ask(*one) for one in wanted]
        return self._leader.send(asked, session_id=self.id, session_epoch=self.epoch, replica=2, **body)


class TestFollower:
    INFO = PartitionInfo(1, 5, (1, 2, 3), (1, 2), version=7)

    @pytest.fixture
    def leader(self, tmp_path: Path) -> FetchLeader:
        made = FetchLeader(tmp_path)
        made.lead(0, 1, info=self.INFO)
        for partition in (0, 1):
            made.put(partition, b"first")
        return made

    def test_it_hears_of_appends_and_of_the_watermark(self, leader: FetchLeader) -> None:
        follower = Follower(leader)
        assert seen(follower.fetch()) == []
        assert leader.reads == []
        leader.put(1, b"second")
        answer = follower.fetch()
        assert seen(answer) == [(1, [b"second"])]
        assert answer.responses[0].partitions[0].high_watermark == 1
        answer = follower.fetch((1, 2))
        assert [one.high_watermark for one in answer.responses[0].partitions] == [2]
        assert follower.fetch().responses == ()

    async def test_an_append_above_the_watermark_ends_its_wait(self, leader: FetchLeader) -> None:
        follower = Follower(leader)
        waiting = asyncio.ensure_future(follower.fetch(max_wait=20_000))
        await asyncio.sleep(0)
        leader.put(0, b"second")
        assert seen(await asyncio.wait_for(waiting, 60)) == [(0, [b"second"])]

    def test_a_diverging_epoch_is_answered_though_nothing_moved(self, leader: FetchLeader) -> None:
        follower = Follower(leader)
        for wanted in (((0, 9),), ()):
            (topic,) = follower.fetch(*wanted).responses
            assert [(one.partition_index, one.diverging_epoch.end_offset) for one in topic.partitions] == [(0, 1)]
        assert follower.fetch((0, 1)).responses == ()

    def test_a_position_that_the_leader_forgot_is_counted_again(self, leader: FetchLeader) -> None:
        """Without this a follower at the end of a quiet partition would never join the ISR again."""
        follower = Follower(leader)
        led = leader.partitions[TopicPartition("t", 0)]
        led.update_state(dataclasses.replace(self.INFO, isr=(1,), version=8))
        assert not led.is_known(2)
        follower.fetch()
        assert led.is_known(2)

    def test_nobody_else_uses_its_session(self, leader: FetchLeader) -> None:
        follower = Follower(leader)
        for replica in (-1, 3):
            answer = leader.send(session_id=follower.id, session_epoch=1, replica=replica)
            assert answer.error_code is ErrorCode.fetch_session_id_not_found

    def test_it_evicts_a_young_session_of_a_consumer(self, leader: FetchLeader) -> None:
        leader.cache = leader.new_cache(slots=1)
        consumer = Session(leader, 0, 1)
        assert consumer.id > 0
        assert Follower(leader).id > 0
        assert consumer.fetch().error_code is ErrorCode.fetch_session_id_not_found
        leader.clock.advance(EVICTION_MS)
        assert Session(leader, 0, 1).id == 0


class TestEviction:
    def sessions(self, leader: FetchLeader, *sizes: int) -> list[Session]:
        return [Session(leader, *range(size)) for size in sizes]

    def test_a_full_cache_declines(self, tmp_path: Path) -> None:
        leader = self.leader(tmp_path)
        kept = self.sessions(leader, 2, 2)
        (declined,) = self.sessions(leader, 4)
        assert declined.id == 0, "a young consumer's session is not evicted"
        assert not leader.partitions[TopicPartition("t", 3)].waiters
        assert [session.fetch().error_code for session in kept] == [ErrorCode.none] * 2

    def test_no_slots(self, tmp_path: Path) -> None:
        leader = self.leader(tmp_path, slots=0)
        assert self.sessions(leader, 2)[0].id == 0

    def test_partitions_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("broker.api.fetch_sessions.MAX_PARTITIONS", 5)
        leader = self.leader(tmp_path)
        first, declined, second = self.sessions(leader, 3, 3, 2)
        assert declined.id == 0
        assert first.fetch((2, 1)).error_code is ErrorCode.none, "it has that already"
        assert first.fetch((3, 1)).error_code is ErrorCode.fetch_session_id_not_found
        assert second.fetch((2, 1), (3, 1)).error_code is ErrorCode.none
        leader.clock.advance(EVICTION_MS + 1)
        assert self.sessions(leader, 3)[0].id > 0, "in place of one that is not used"

    def test_the_one_unused_for_longest_goes_after_two_minutes(self, tmp_path: Path) -> None:
        leader = self.leader(tmp_path)
        first, second = self.sessions(leader, 4, 4)
        leader.clock.advance(EVICTION_MS)
        first.fetch()
        assert self.sessions(leader, 1)[0].id == 0, "not longer than two minutes"
        leader.clock.advance(1)
        assert self.sessions(leader, 1)[0].id > 0
        assert second.fetch().error_code is ErrorCode.fetch_session_id_not_found
        assert first.fetch().error_code is ErrorCode.none
        assert leader.metrics.fetch_sessions.evictions == 1

    def test_the_smallest_old_one_gives_way_to_one_that_is_not_smaller(self, tmp_path: Path) -> None:
        leader = self.leader(tmp_path)
        small, large = self.sessions(leader, 2, 3)
        leader.clock.advance(EVICTION_MS + 1)
        for session in (small, large):
            session.fetch()
        (declined,) = self.sessions(leader, 1)
        assert declined.id == 0
        (taken,) = self.sessions(leader, 3)
        assert taken.id > 0
        assert small.fetch().error_code is ErrorCode.fetch_session_id_not_found
        assert large.fetch().error_code is ErrorCode.none
        assert leader.metrics.fetch_sessions.partitions == 6

    def leader(self, directory: Path, slots: int = 2) -> FetchLeader:
        leader = FetchLeader(directory, slots)
        leader.lead(0, 1, 2, 3)
        for partition in range(4):
            leader.put(partition, b"first")
        return leader


class RandomLeader:
    """A leader of six partitions in which something happens now and then."""

    def __init__(self, directory: Path, chance: random.Random, *, moves_starts: bool) -> None:
        self.leader = FetchLeader(directory)
        self.leader.lead(*range(6))
        self._chance, self._moves_starts = chance, moves_starts
        self._sequences = dict.fromkeys(range(6), 0)
        self._open: set[int] = set()

    def act(self) -> None:
        partition, action = self._chance.randrange(6), self._chance.random()
        led = self.leader.partitions.get(TopicPartition("t", partition))
        if led is None:
            self.leader.lead(partition)
        elif action < 0.6:
            self.leader.put(partition, b"x" * self._chance.randrange(200))
        elif action < 0.75:
            self.leader.put(partition, b"t", producer_id=7, sequence=self._sequences[partition])
            self._sequences[partition] += 1
            self._open.add(partition)
        elif action < 0.85 and partition in self._open:
            self.leader.end_transaction(partition, 7, commit=self._chance.random() < 0.5)
            self._open.discard(partition)
        elif self._moves_starts and action < 0.9:
            led.log.delete_records(self._chance.randint(led.log.log_start_offset, led.log.log_end_offset))
        elif action > 0.97:
            self.leader.resign(partition)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("compares", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_answers_are_those_of_a_look_at_all_partitions(
    tmp_path: Path, seed: int, compares: bool, isolation_level: int
) -> None:
    """The client takes what it likes. Without `compares` no time passes, so sessions learn only what waiters learn."""
    chance = seeded(seed)
    happens = RandomLeader(tmp_path, chance, moves_starts=compares)
    leader = happens.leader
    thorough = leader.new_cache()
    caches = (leader.cache, thorough)
    ids, offsets, epoch = [0, 0], dict[int, int](), 0
    for step in range(200):
        for _ in range(chance.randrange(4)):
            happens.act()
        named = [p for p in range(6) if chance.random() < (0.2 if p in offsets else 0.1)]
        gone = [p for p in offsets if chance.random() < 0.02]
        body: dict[str, Any] = {
            "forgotten": {"t": gone},
            "max_bytes": chance.choice([100, 400, 1 << 20]),
            "isolation_level": isolation_level,
        }
        wanted = [ask_for("t", offsets.setdefault(p, 0), p) for p in named]
        for session in thorough._sessions.values():
            session.changed.update(session.partitions.values())
        leader.clock.advance(1000 if compares else 0)
        ours, expected = (
            leader.send(wanted, cache=cache, session_id=one, session_epoch=epoch, **body)
            for one, cache in zip(ids, caches, strict=True)
        )
        assert (ours.error_code, expected.error_code) == (ErrorCode.none, ErrorCode.none)
        assert ours.responses == expected.responses, step
        ids, epoch = [ours.session_id, expected.session_id], epoch + 1
        assert (ids[0] > 0) is (ids[1] > 0)
        offsets = {p: offset for p, offset in offsets.items() if p not in gone}
        if not ids[0]:
            offsets, epoch = {}, 0
        for topic in ours.responses:
            for one in topic.partitions:
                if one.partition_index in offsets and one.records and chance.random() < 0.8:
                    offsets[one.partition_index] = one.high_watermark if chance.random() < 0.7 else one.log_start_offset
