"""A follower copies any log in random pieces, is reopened, cut and copies again: it is always equal to the leader's.

And whatever bytes it gets instead, it refuses them with nothing changed, or its log is sound.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.clock import ManualClock
from broker.errors import BrokerError
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import HEADER_SIZE, walk_batches
from broker.records.control import ControlType
from broker.records.crc32c import crc32c
from tests.support.batches import NOW, append, append_marker, open_log
from tests.support.compaction import EAGER, clean, eager_manager, keyed
from tests.support.follower_log import copy, epochs_in, follow, state_of, stored
from tests.support.log_transactions import committed_records
from tests.support.randomness import seeded

LEADER = replace(EAGER, segment_bytes=900, index_interval_bytes=100)
PLAIN = LogConfig(segment_bytes=900, index_interval_bytes=100)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=20)), min_size=1, max_size=4)
PRODUCER = st.integers(1, 3)
STEP = st.one_of(
    st.tuples(st.just("plain"), PAIRS),
    st.tuples(st.just("idempotent"), PAIRS, st.just(9)),
    st.tuples(st.just("transactional"), PAIRS, PRODUCER),
    st.tuples(st.just("transactional"), PAIRS, PRODUCER),
    st.tuples(st.just("end"), PRODUCER, st.sampled_from(ControlType), st.booleans()),
    st.sampled_from([("epoch",), ("roll",)]),
)
STEPS = st.lists(STEP, min_size=1, max_size=25)
COMPACTED_STEPS = st.lists(STEP | st.just(("clean",)), min_size=1, max_size=25)


class Leader:
    """Writes a history to a log that a manager may compact."""

    def __init__(self, directory: Path, config: LogConfig) -> None:
        self._clock = ManualClock(NOW)
        self._manager = eager_manager(directory, self._clock, config)
        self.log = self._manager.create(TopicPartition("leader", 0), config)
        self._epoch = 0
        self._producer_epochs: dict[int, int] = {}
        self._sequences: dict[tuple[int, int], int] = {}

    def write(self, steps: Iterable[tuple]) -> Log:
        for step in steps:
            match step:
                case ("plain", pairs):
                    append(self.log, keyed(*pairs), leader_epoch=self._epoch)
                case ("idempotent" | "transactional" as kind, pairs, producer):
                    epoch = self._producer_epochs.get(producer, 0)
                    sequence = self._sequences.get((producer, epoch), 0)
                    data = keyed(
                        *pairs,
                        producer_id=producer,
                        producer_epoch=epoch,
                        sequence=sequence,
                        transactional=kind == "transactional",
                    )
                    append(self.log, data, leader_epoch=self._epoch)
                    self._sequences[producer, epoch] = sequence + len(pairs)
                case ("end", producer, how, bump):
                    epoch = self._producer_epochs[producer] = self._producer_epochs.get(producer, 0) + bump
                    append_marker(self.log, producer, epoch, how, 0, leader_epoch=self._epoch)
                case ("epoch",):
                    self._epoch += 1
                case ("roll",):
                    self.log.roll()
                case ("clean",):
                    self._clock.advance(2000)
                    clean(self._manager, ticks=3)
        return self.log

    def close(self) -> None:
        self._manager.close()


class Replica:
    """The follower's log, which is opened again and again."""

    def __init__(self, directory: Path, config: LogConfig) -> None:
        self._directory = directory
        self._config = config
        self.log = open_log(directory, config)

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.log.close()
        point, start = self.log.recovery_point, self.log.log_start_offset
        self.log = open_log(self._directory, self._config, clean=clean, recovery_point=point, log_start_offset=start)

    def check(self, leader: Log, *, compacted: bool) -> None:
        assert stored(self.log) == stored(leader)
        assert state_of(self.log, compacted=compacted) == state_of(leader, compacted=compacted)
        assert committed_records(self.log) == committed_records(leader)
        assert self.log.epochs.entries == (epochs_in(stored(leader)) if compacted else leader.epochs.entries)
        self.log.save_epochs()
        assert check_partition(self._directory) == []


def run(root: Path, leader: Leader, steps: list[tuple], config: LogConfig, chance: random.Random) -> None:
    compacted = ("clean",) in steps
    log = leader.write(steps)
    replica = Replica(root / "follower-0", config)
    copy(log, replica.log, chance)
    replica.check(log, compacted=compacted)
    for clean_stop in (True, False):
        if chance.random() < 0.5:
            replica.log.flush()
        replica.reopen(clean=clean_stop)
        replica.check(log, compacted=compacted)
    for _ in range(2):
        offset = chance.randint(0, log.log_end_offset)
        read_before = chance.random() < 0.5
        replica.log.truncate_to(offset, replica.log.producers_before(offset)() if read_before else None)
        assert replica.log.log_end_offset <= offset
        assert stored(log).startswith(kept := stored(replica.log))
        assert all(header.last_offset < offset for _, header in walk_batches(kept))
        if chance.random() < 0.5:
            replica.reopen(clean=chance.random() < 0.5)
            assert stored(replica.log) == kept
        copy(log, replica.log, chance)
        replica.check(log, compacted=compacted)
    leader.close()


@settings(max_examples=30, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1 << 30))
def test_a_copy_is_equal(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], seed: int) -> None:
    root, chance = tmp_path_factory.mktemp("copy"), seeded(seed)
    config = replace(PLAIN, segment_bytes=chance.choice([200, 900, 900, 5000]))
    run(root, Leader(root / "data", PLAIN), steps, config, chance)
    shutil.rmtree(root)


@settings(max_examples=30, deadline=None)
@given(steps=COMPACTED_STEPS, seed=st.integers(0, 1 << 30))
def test_a_copy_of_a_compacted_log_is_equal(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], seed: int
) -> None:
    root, chance = tmp_path_factory.mktemp("compacted"), seeded(seed)
    run(root, Leader(root / "data", LEADER), steps, chance.choice([PLAIN, LEADER]), chance)
    shutil.rmtree(root)


# --- bytes that are not the leader's


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """Batches that are cut, doubled, swapped, or have wrong bytes, some of them under a CRC that matches."""
    batches = [bytearray(data[at : at + header.size]) for at, header in walk_batches(data)]
    for _ in range(chance.choice([1, 1, 2])):
        number = chance.randrange(len(batches))
        one = batches[number]
        if len(one) < HEADER_SIZE:
            continue
        match chance.randrange(8):
            case 0:
                del batches[number][chance.randrange(len(one)) :]
            case 1:
                batches.insert(chance.randrange(len(batches)), bytearray(one))
            case 2:
                batches[number], batches[-1] = batches[-1], batches[number]
            case 3:
                one[chance.randrange(len(one))] ^= 1 << chance.randrange(8)
            case 4:
                offset = chance.choice([-1, 0, 1, 5, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)])
                struct.pack_into(">q", one, 0, offset)
            case 5:
                struct.pack_into(">i", one, 12, chance.choice([-5, -1, 0, 1, 7, (1 << 31) - 1]))
            case _:
                at = chance.randrange(21, len(one) if chance.random() < 0.4 else HEADER_SIZE)
                one[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, one[at] ^ 0x20])
        if len(one) > HEADER_SIZE and chance.random() < 0.8:
            struct.pack_into(">I", one, 17, crc32c(bytes(one[21:])))
    return b"".join(batches)


ONE, TWO = [(b"a", b"1")], [(b"b", b"x" * 40), (b"c", None)]
HISTORY = [
    ("plain", TWO),
    ("transactional", ONE, 1),
    ("transactional", TWO, 2),
    ("end", 1, ControlType.ABORT, False),
    ("epoch",),
    ("idempotent", TWO, 9),
    ("end", 2, ControlType.COMMIT, True),
    ("epoch",),
    ("transactional", ONE, 2),
]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return Leader(tmp_path_factory.mktemp("history"), PLAIN).write(HISTORY)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 40))
def test_hostile_bytes(tmp_path_factory: pytest.TempPathFactory, history: Log, seed: int) -> None:
    chance = seeded(seed)
    root = tmp_path_factory.mktemp("hostile")
    replica = Replica(root / "t-0", replace(PLAIN, segment_bytes=chance.choice([150, 5000])))
    data = stored(history)
    start = chance.choice([0, *(at for at, _ in walk_batches(data))])
    if start:
        follow(replica.log, data[:start])
    before = stored(replica.log), state_of(replica.log), replica.log.epochs.entries
    try:
        follow(replica.log, spoilt(data[start:], chance))
    except BrokerError:
        assert (stored(replica.log), state_of(replica.log), replica.log.epochs.entries) == before
    for clean_stop in (True, False):
        seen = stored(replica.log), state_of(replica.log), replica.log.epochs.entries
        replica.reopen(clean=clean_stop)
        assert (stored(replica.log), state_of(replica.log), replica.log.epochs.entries) == seen
    replica.log.close()
    assert check_partition(root / "t-0") == []
    shutil.rmtree(root)
