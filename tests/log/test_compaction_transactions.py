"""Compaction of transactions: aborted records go at once, markers when nothing is left that they mark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.clock import ManualClock
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.control import ControlType
from broker.records.record import Record, decode_records
from tests.support.batches import NOW, append, append_as_coordinator, append_marker
from tests.support.compaction import EAGER, clean, eager_manager, keyed, latest, put, raw

TP = TopicPartition("t", 0)
COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def manager(tmp_path: Path, clock: ManualClock) -> LogManager:
    return eager_manager(tmp_path / "data", clock)


@pytest.fixture
def log(manager: LogManager) -> Log:
    return manager.create(TP, EAGER)


class Writer:
    """A transactional producer without a client around it."""

    def __init__(self, log: Log, producer_id: int = 1) -> None:
        self.log, self.producer_id, self.sequence = log, producer_id, 0

    def put(self, *pairs: tuple[bytes, bytes | None]) -> None:
        data = keyed(*pairs, producer_id=self.producer_id, producer_epoch=0, sequence=self.sequence, transactional=True)
        append(self.log, data)
        self.sequence += len(pairs)

    def end(self, kind: ControlType) -> None:
        append_marker(self.log, self.producer_id, 0, kind, 0)


def committed(log: Log) -> list[Record]:
    """What a read_committed consumer gets."""
    end = log.log_end_offset if log.first_unstable_offset is None else log.first_unstable_offset
    aborted = log.aborted.transactions_between(log.log_start_offset, end)
    return [record for record in decode_records(raw(log), aborted=aborted) if record.offset < end]


def batches(log: Log) -> list[tuple[int, int, bool]]:
    """(last offset, records, is it a marker) of each."""
    return [(header.last_offset, header.record_count, header.is_control) for _, header in walk_batches(raw(log))]


def test_markers_of_a_coordinator_that_never_rests_do_not_pile_up(
    manager: LogManager, log: Log, clock: ManualClock
) -> None:
    """A streaming job commits its offsets in transactions for months, without sequences and in one epoch."""
    for number in range(1, 41):
        offsets = keyed((b"group", b"%d" % number), producer_id=7, producer_epoch=0, transactional=True)
        append_as_coordinator(log, offsets)
        append_marker(log, 7, 0, COMMIT, 0)
        if number % 4 == 0:
            log.roll()
            clean(manager)
            clock.advance(EAGER.delete_retention_ms + 1)
    put(log, (b"other", b"1"), roll=True)
    clean(manager)
    assert sum(is_marker for *_, is_marker in batches(log)) < 10
    last = log.producers.get(7)
    assert last is not None
    assert (last.epoch, last.last_marker_offset) == (0, 79)


def test_aborted_records_go_and_hide_no_older_ones(manager: LogManager, log: Log) -> None:
    put(log, (b"a", b"kept"))
    writer = Writer(log)
    writer.put((b"a", b"aborted"))
    writer.end(ABORT)
    put(log, (b"z", b"1"), roll=True)
    clean(manager)
    assert [(record.key, record.value) for record in committed(log)] == [(b"a", b"kept"), (b"z", b"1")]
    assert batches(log) == [(0, 1, False), (1, 0, False), (2, 1, True), (3, 1, False)]
    assert log.aborted.transactions_between(0, log.log_end_offset) == []
    assert not list(log.directory.glob("*.txnindex"))


def test_aborted_records_at_the_end_of_a_segment_hide_none_either(manager: LogManager, log: Log) -> None:
    put(log, (b"a", b"kept"))
    put(log, (b"b", b"old"), (b"b", b"new"))
    writer = Writer(log)
    writer.put((b"a", b"aborted"), (b"b", None))
    writer.end(ABORT)
    log.roll()
    put(log, (b"z", b"1"), roll=True)
    clean(manager)
    assert [(record.key, record.value) for record in committed(log)] == [
        (b"a", b"kept"),
        (b"b", b"new"),
        (b"z", b"1"),
    ]


def test_markers_go_once_their_transaction_is_gone_and_the_horizon_over(
    manager: LogManager, log: Log, clock: ManualClock
) -> None:
    writer = Writer(log)
    writer.put((b"a", b"1"))
    writer.end(COMMIT)
    put(log, (b"a", b"2"), roll=True)
    log.producers.expire(1 << 62, 0)

    def again(number: int) -> list[tuple[int, int, bool]]:
        put(log, (b"k%d" % number, b"x"), roll=True)
        clean(manager)
        return [batch for batch in batches(log) if batch[0] < 3]

    clean(manager)
    assert batches(log) == [(1, 1, True), (2, 1, False)], "the marker stays while its batch goes"
    assert again(3) == [(1, 1, True), (2, 1, False)], "and gets its horizon"
    assert next(walk_batches(raw(log)))[1].delete_horizon_ms == NOW + 1000
    clock.advance(1000)
    assert again(4) == [(2, 1, False)]


def test_a_marker_stays_as_long_as_an_empty_batch_of_its_transaction(
    manager: LogManager, log: Log, clock: ManualClock
) -> None:
    """A start that found the batch without the marker would take the transaction for an open one."""
    writer = Writer(log)
    writer.put((b"a", b"1"))
    writer.end(ABORT)
    for number in range(4):
        put(log, (b"k%d" % number, b"x"), roll=True)
        clean(manager)
        clock.advance(2000)
    assert batches(log)[:2] == [(0, 0, False), (1, 1, True)]
    again = Log.open(log.directory, EAGER, clock, clean=False)
    assert again.first_unstable_offset is None
    known = again.producers.get(1)
    assert known is not None
    assert known.last_sequence == 0


def test_nothing_from_the_first_open_transaction_on_is_touched(manager: LogManager, log: Log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), roll=True)
    put(log, (b"b", b"1"))
    writer = Writer(log)
    writer.put((b"a", b"3"))
    log.roll()
    put(log, (b"b", b"2"), roll=True)
    clean(manager)
    assert [last for last, _, _ in batches(log)] == [1, 2, 3, 4]
    writer.end(COMMIT)
    log.roll()
    clean(manager)
    assert latest(committed(log)) == {b"a": b"3", b"b": b"2"}
    assert [record.offset for record in committed(log)] == [3, 4]


def test_a_transaction_over_several_segments(manager: LogManager, log: Log) -> None:
    first, second = Writer(log, 1), Writer(log, 2)
    first.put((b"a", b"1"))
    log.roll()
    second.put((b"a", b"2"), (b"b", b"2"))
    first.put((b"b", b"1"))
    log.roll()
    second.end(COMMIT)
    log.roll()
    first.end(ABORT)
    put(log, (b"z", b"1"), roll=True)
    clean(manager)
    assert [(record.key, record.value) for record in committed(log)] == [(b"a", b"2"), (b"b", b"2"), (b"z", b"1")]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3), st.sampled_from([b"a", b"b", b"c"])),
        st.tuples(st.just("end"), st.integers(1, 3), st.sampled_from([COMMIT, ABORT])),
        st.sampled_from([("roll",), ("clean",), ("later",), ("crash",), ("expire",)]),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_any_history_of_transactions_reads_as_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple],
) -> None:
    directory, clock = tmp_path_factory.mktemp("log"), ManualClock(NOW)
    manager = eager_manager(directory, clock)
    log = manager.create(TP, EAGER)
    writers = {number: Writer(log, number) for number in (1, 2, 3)}
    open_records: dict[int, list[tuple[int, bytes, bytes]]] = {1: [], 2: [], 3: []}
    settled: list[tuple[int, bytes, bytes]] = []
    for number, step in enumerate(steps):
        match step:
            case ("put", producer, key):
                value = b"%d" % number
                open_records[producer].append((log.log_end_offset, key, value))
                writers[producer].put((key, value))
            case ("end", producer, kind):
                settled += open_records[producer] if kind is COMMIT else []
                open_records[producer] = []
                writers[producer].end(kind)
            case ("roll",):
                log.roll()
            case ("clean",):
                clean(manager, ticks=3)
            case ("later",):
                clock.advance(700)
            case ("expire",):
                log.producers.expire(1 << 62, 0)
                for producer, writer in writers.items():
                    if not open_records[producer]:
                        writers[producer] = Writer(log, writer.producer_id + 10)
            case ("crash",):
                for held in manager._directories:
                    held.unlock()
                manager = eager_manager(directory, clock)
                log = manager.logs()[TP]
                for writer in writers.values():
                    writer.log = log
    opened = [records[0][0] for records in open_records.values() if records]
    assert log.first_unstable_offset == min(opened, default=None)
    stable = min(opened, default=log.log_end_offset)
    expected = {key: value for offset, key, value in sorted(settled) if offset < stable}
    assert latest(committed(log)) == expected
    manager.close()
    assert check_partition(directory / "t-0") == []
    shutil.rmtree(directory)
