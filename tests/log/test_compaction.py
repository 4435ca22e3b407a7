"""What compaction leaves of a log: the rules record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.config.setting_groups import CleanerSettings
from broker.errors import BrokerError, ErrorCode
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import BatchHeader, build_batch, walk_batches
from broker.records.record import Record
from tests.support.batches import NOW, append, read_all
from tests.support.compaction import (
    AT_ONCE,
    EAGER,
    clean,
    eager_manager,
    keyed,
    latest,
    put,
    raw,
    records_of,
)

TP = TopicPartition("t", 0)

Start = Callable[..., LogManager]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def start(tmp_path: Path, clock: ManualClock) -> Iterator[Start]:
    """`start(config)` loads a manager over the same directory; one that still runs is closed first."""
    running: list[LogManager] = []

    def start(config: LogConfig = EAGER, settings: CleanerSettings = AT_ONCE) -> LogManager:
        for manager in running:
            manager.close()
        running[:] = [eager_manager(tmp_path / "data", clock, config, settings)]
        return running[0]

    yield start
    for manager in running:
        manager.close()


@pytest.fixture
def manager(start: Start) -> LogManager:
    return start()


@pytest.fixture
def log(manager: LogManager) -> Log:
    return manager.create(TP, EAGER)


def headers_of(log: Log) -> list[BatchHeader]:
    return [header for _, header in walk_batches(raw(log))]


def values(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(log)]


class TestLatestRecord:
    def test_each_key_keeps_its_last_record_as_it_was(self, manager: LogManager, log: Log) -> None:
        append(log, keyed((b"a", b"1"), (b"b", b"1"), headers=[("h", b"x")]))
        append(log, keyed((b"a", b"2"), timestamp=NOW + 50))
        log.roll()
        clean(manager)
        assert records_of(log) == [
            Record(1, NOW + 1, b"b", b"1", (("h", b"x"),)),
            Record(2, NOW + 50, b"a", b"2"),
        ]

    def test_the_active_segment_is_not_touched(self, manager: LogManager, log: Log) -> None:
        put(log, (b"a", b"1"), roll=True)
        put(log, (b"a", b"2"))
        put(log, (b"a", b"3"))
        clean(manager)
        assert values(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]

    def test_batches_that_lose_nothing_stay_byte_for_byte(self, manager: LogManager, log: Log) -> None:
        for codec in range(5):
            put(log, (b"k%d" % codec, b"x" * 100), codec=codec)
        log.roll()
        before = raw(log)
        clean(manager)
        assert log.segments[0].path().stat().st_size == len(before)
        assert raw(log) == before

    @pytest.mark.parametrize("codec", range(5))
    def test_a_batch_that_loses_records_keeps_codec_place_and_epoch(
        self, manager: LogManager, log: Log, codec: int
    ) -> None:
        append(log, keyed((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec), leader_epoch=7)
        put(log, (b"a", b"2"), (b"c", b"3"), roll=True)
        clean(manager)
        header = headers_of(log)[0]
        assert (header.codec, header.base_offset, header.last_offset, header.leader_epoch) == (codec, 0, 2, 7)
        assert (header.record_count, header.max_timestamp) == (1, NOW + 1)
        assert values(log)[0] == (1, b"b", b"2")

    def test_an_empty_key_is_a_key_and_no_key_is_none(self, start: Start) -> None:
        plain = replace(EAGER, cleanup_policy=("delete",))
        manager = start(plain)
        log = manager.create(TP, plain)
        put(log, (b"", b"1"), (None, b"2"), (b"", b"3"))
        put(log, (b"z", b"4"), roll=True)
        manager.update_config("t", EAGER)
        clean(manager)
        assert values(log) == [(2, b"", b"3"), (3, b"z", b"4")]

    def test_append_time_stays(self, start: Start, clock: ManualClock) -> None:
        stamped = replace(EAGER, message_timestamp_type="LogAppendTime")
        manager = start(stamped)
        log = manager.create(TP, stamped)
        put(log, (b"a", b"1"), (b"b", b"1"), (b"d", None), timestamp=5)
        clock.advance(10)
        put(log, (b"a", b"2"), roll=True)
        clean(manager)
        assert [(r.key, r.timestamp, r.timestamp_type) for r in records_of(log)] == [
            (b"b", NOW, 1),
            (b"d", NOW, 1),
            (b"a", NOW + 10, 1),
        ]
        assert log.offset_for_timestamp(NOW) == (1, NOW)


class TestRecordsWithoutAKey:
    @pytest.mark.parametrize("codec", range(5))
    def test_are_refused_where_compaction_would_drop_them(self, log: Log, codec: int) -> None:
        with pytest.raises(BrokerError, match="record 1: it has no key") as raised:
            put(log, (b"a", b"1"), (None, b"2"), codec=codec)
        assert raised.value.code is ErrorCode.invalid_record
        assert log.log_end_offset == 0

    def test_records_that_cannot_be_read_are_refused_there_too(self, log: Log) -> None:
        with pytest.raises(BrokerError) as raised:
            append(log, build_batch(b"no records", 3))
        assert raised.value.code is ErrorCode.invalid_record

    def test_are_taken_elsewhere(self, start: Start) -> None:
        plain = replace(EAGER, cleanup_policy=("delete",))
        assert put(start(plain).create(TP, plain), (None, b"2")) == 0


class TestTombstones:
    def test_they_stay_for_the_retention_after_they_were_first_met(
        self, manager: LogManager, log: Log, clock: ManualClock
    ) -> None:
        put(log, (b"a", b"1"))
        put(log, (b"a", None), (b"b", b"1"), timestamp=NOW - 10_000_000, roll=True)
        clean(manager)
        assert [record[:4] for record in records_of(log)] == [
            (1, NOW - 10_000_000, b"a", None),
            (2, NOW - 9_999_999, b"b", b"1"),
        ]
        assert headers_of(log)[0].delete_horizon_ms == NOW + 1000

        clock.advance(999)
        put(log, (b"c", b"1"), roll=True)
        clean(manager)
        assert values(log)[0] == (1, b"a", None)
        assert headers_of(log)[0].delete_horizon_ms == NOW + 1000

        clock.advance(1)
        put(log, (b"d", b"1"), roll=True)
        clean(manager)
        assert values(log) == [(2, b"b", b"1"), (3, b"c", b"1"), (4, b"d", b"1")]

    @pytest.mark.parametrize("codec", range(5))
    def test_with_any_codec(self, manager: LogManager, log: Log, clock: ManualClock, codec: int) -> None:
        put(log, (b"a", None), (b"b", None), codec=codec)
        put(log, (b"b", b"2"), roll=True)
        clean(manager)
        assert values(log) == [(0, b"a", None), (2, b"b", b"2")]
        clock.advance(2000)
        put(log, (b"c", b"3"), roll=True)
        clean(manager)
        assert values(log) == [(2, b"b", b"2"), (3, b"c", b"3")]

    def test_a_batch_whose_horizon_is_over_keeps_its_values(
        self, manager: LogManager, log: Log, clock: ManualClock
    ) -> None:
        put(log, (b"a", None), (b"b", b"2"), roll=True)
        clean(manager)
        clock.advance(2000)
        put(log, (b"c", b"3"), roll=True)
        clean(manager)
        assert next(record[:4] for record in records_of(log)) == (1, NOW + 1, b"b", b"2")


class TestProducers:
    def test_the_last_batch_of_a_producer_stays_though_it_is_empty(self, start: Start) -> None:
        manager = start()
        log = manager.create(TP, EAGER)
        for sequence in range(3):
            append(log, keyed((b"a", b"x"), producer_id=9, producer_epoch=2, sequence=sequence))
        put(log, (b"a", b"y"))
        put(log, (b"b", b"y"), roll=True)
        clean(manager)
        empty = [header for header in headers_of(log) if not header.record_count]
        assert [(h.producer_id, h.producer_epoch, h.base_sequence, h.last_offset) for h in empty] == [(9, 2, 2, 2)]
        assert values(log) == [(3, b"a", b"y"), (4, b"b", b"y")]

        for path in log.directory.glob("*.snapshot"):
            path.unlink()
        manager.close()
        log = start().logs()[TP]
        known = log.producers.get(9)
        assert known is not None
        assert (known.epoch, known.batches[-1].last_sequence, known.batches[-1].last_offset) == (2, 2, 2)

    def test_a_forgotten_producer_keeps_nothing(self, manager: LogManager, log: Log) -> None:
        append(log, keyed((b"a", b"x"), producer_id=9, producer_epoch=0, sequence=0))
        put(log, (b"a", b"y"), roll=True)
        log.producers.expire(1 << 62, 0)
        clean(manager)
        assert [header.base_offset for header in headers_of(log)] == [1]


class TestSegments:
    def test_small_ones_are_joined_up_to_segment_bytes(self, start: Start) -> None:
        config = replace(EAGER, segment_bytes=1000)
        manager = start(config)
        log = manager.create(TP, config)
        for number in range(20):
            put(log, (b"k%d" % number, b"x" * 130), roll=True)
        assert len(log.segments) == 21
        clean(manager)
        closed = log.segments[:-1]
        assert len(closed) == 5
        assert all(segment.size <= 1000 for segment in closed)
        assert len(records_of(log)) == 20

    def test_a_group_always_ends_with_its_last_offset(self, manager: LogManager, log: Log) -> None:
        put(log, (b"a", b"1"))
        put(log, (b"a", b"2"), roll=True)
        put(log, (b"a", b"3"))
        log.roll()
        clean(manager)
        assert values(log) == [(2, b"a", b"3")]
        assert headers_of(log)[-1].last_offset == 2
        assert log.segments[0].base_offset == 0

    def test_a_log_with_more_keys_than_memory_is_done_in_several_goes(self, start: Start) -> None:
        manager = start(EAGER, replace(AT_ONCE, log_cleaner_dedupe_buffer_size=1 << 20))
        log = manager.create(TP, EAGER)
        model: dict[bytes | None, bytes] = {}
        for round_number in range(3):
            for first in range(0, 20_000, 500):
                pairs = [(b"key-%06d" % number, b"%d" % round_number) for number in range(first, first + 500)]
                put(log, *pairs)
                model.update(pairs)
            log.roll()
        clean(manager, ticks=60)
        assert latest(records_of(log)) == model
        assert len(records_of(log)) == len(model)

    def test_what_is_replaced_is_unlinked_after_the_delay(
        self, manager: LogManager, log: Log, clock: ManualClock
    ) -> None:
        put(log, (b"a", b"1"), roll=True)
        put(log, (b"a", b"2"), roll=True)
        clean(manager)
        assert list(log.directory.glob("*.deleted"))
        clock.advance(EAGER.file_delete_delay_ms)
        clean(manager)
        names = sorted(path.name for path in log.directory.iterdir() if path.is_file())
        assert not [name for name in names if name.endswith((".deleted", ".swap", ".cleaned"))]
        assert not [path for path in log.directory.iterdir() if path.is_dir()]
        assert [name for name in names if name.endswith(".snapshot")] == ["00000000000000000002.snapshot"]

    def test_a_reader_goes_on_in_the_old_file(self, manager: LogManager, log: Log) -> None:
        put(log, (b"a", b"1"))
        put(log, (b"a", b"2"), roll=True)
        piece = log.read(0, 1 << 20)
        assert piece is not None
        before = piece.read()
        clean(manager)
        assert piece.read() == before
        assert len(records_of(log)) == 1


class TestReadingOverGaps:
    @pytest.fixture
    def gaps(self, manager: LogManager, log: Log) -> Log:
        for number in range(40):
            append(
                log, keyed((b"k%d" % (number % 5), b"%d" % number), timestamp=NOW + number, producer_id=number % 3,
                      producer_epoch=0, sequence=number // 3),
                leader_epoch=0,
            )  # fmt: skip
            if number % 7 == 0:
                log.roll()
        log.roll()
        clean(manager)
        return log

    def test_in_any_piece_size(self, gaps: Log) -> None:
        for max_bytes in (1, 61, 100, 300, 1 << 20):
            assert [record.offset for record in records_of(gaps, max_bytes=max_bytes)] == [35, 36, 37, 38, 39]

    def test_from_any_offset(self, gaps: Log) -> None:
        for offset in range(40):
            piece = gaps.read(offset, 1 << 20)
            assert piece is not None, offset

    def test_by_time(self, gaps: Log) -> None:
        for number in range(40):
            assert gaps.offset_for_timestamp(NOW + number) == (max(number, 35), NOW + max(number, 35))
        assert gaps.max_timestamp() == (39, NOW + 39)

    def test_the_files_are_sound(self, gaps: Log) -> None:
        gaps.close()
        assert check_partition(gaps.directory) == []

    def test_recovery_takes_no_gap_for_damage_whatever_the_policy_is_by_then(self, gaps: Log) -> None:
        held = values(gaps)
        gaps.close()
        plain = replace(EAGER, cleanup_policy=("delete",))
        again = Log.open(gaps.directory, plain, ManualClock(NOW), clean=False)
        assert values(again) == held


def test_the_newest_record_is_found_though_a_newer_one_was_emptied(manager: LogManager, log: Log) -> None:
    append(log, keyed((b"a", b"1"), timestamp=NOW + 99, producer_id=1, producer_epoch=0, sequence=0))
    put(log, (b"a", b"2"), timestamp=NOW)
    log.roll()
    clean(manager)
    assert log.max_timestamp() == (1, NOW)
    assert log.offset_for_timestamp(NOW + 1) is None


def test_a_record_that_is_alone_in_its_batch_by_now_is_found_by_its_own_time(manager: LogManager, log: Log) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    put(log, (b"a", b"2"), (b"b", b"2"), timestamp=NOW + 100)
    log.roll()
    clean(manager)
    assert log.offset_for_timestamp(NOW) == (2, NOW + 2)


def test_read_all_agrees(manager: LogManager, log: Log) -> None:
    put(log, (b"a", b"1"), roll=True)
    put(log, (b"b", b"2"))
    clean(manager)
    assert read_all(log) == [(0, b"1"), (1, b"2")]
