"""Which log is compacted when, by whom, and what happens when something comes between."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.config.setting_groups import CleanerSettings
from broker.errors import CorruptBatch
from broker.log.checkpoints import CLEAN_OFFSETS, read_offsets
from broker.log.cleaner import cleanable_part
from broker.log.compaction_process import Compacted, CompactionPlan, CompactionProcess, CompactionResult, PlannedSegment
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from tests.support.batches import NOW, open_log
from tests.support.compaction import AT_ONCE, EAGER, InlineCompactor, clean, eager_manager, put, records_of
from tests.support.waiting import eventually

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HOUR = 3_600_000

BROKER = """
import pathlib, pickle, sys
from broker.log.compaction_process import CompactionProcess
process = CompactionProcess()
print(process._running().pid, flush=True)
list(process.compact(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())))
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def manager(tmp_path: Path, clock: ManualClock) -> Iterator[LogManager]:
    manager = eager_manager(tmp_path / "data", clock)
    yield manager
    manager.close()


def offsets_of(log: Log) -> list[int]:
    return [record.offset for record in records_of(log)]


class TestDue:
    def state(self, directory: Path, clean_offset: int | None = None, **changes: object) -> tuple[float, bool] | None:
        """Of a log of four closed segments of one record each, an hour between them; the last is new."""
        log = open_log(directory / "t-0", replace(LogConfig(cleanup_policy=("compact",)), **changes))  # type: ignore[arg-type]
        for number in range(4):
            put(log, (b"k", b"v"), timestamp=NOW - (3 - number) * HOUR, roll=True)
        found = cleanable_part(log, clean_offset, NOW)
        return found and (found.ratio, found.is_due)

    def test_what_was_never_compacted(self, tmp_path: Path) -> None:
        assert self.state(tmp_path) == (1.0, True)

    def test_not_below_the_ratio(self, tmp_path: Path) -> None:
        assert self.state(tmp_path, 2) == (0.5, False)
        assert self.state(tmp_path / "b", 2, min_cleanable_dirty_ratio=0.49) == (0.5, True)

    def test_not_what_is_clean(self, tmp_path: Path) -> None:
        assert self.state(tmp_path, 4) is None

    def test_a_checkpoint_that_cannot_be_true_counts_as_none(self, tmp_path: Path) -> None:
        assert self.state(tmp_path, 5) == (1.0, True)

    def test_not_records_younger_than_the_lag(self, tmp_path: Path) -> None:
        found = self.state(tmp_path, 0, min_compaction_lag_ms=HOUR // 2)
        assert found == (1.0, True)
        log = open_log(tmp_path / "t-0", LogConfig(min_compaction_lag_ms=HOUR + HOUR // 2))
        state = cleanable_part(log, 0, NOW)
        assert state is not None
        assert [segment.base_offset for segment in state.segments] == [0, 1]

    def test_below_the_ratio_when_a_record_has_waited_long_enough(self, tmp_path: Path) -> None:
        assert self.state(tmp_path, 2, max_compaction_lag_ms=HOUR - 1) == (0.5, True)
        assert self.state(tmp_path / "b", 2, max_compaction_lag_ms=HOUR) == (0.5, False)

    def test_an_active_segment_alone_is_nothing(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", EAGER)
        put(log, (b"k", b"v"))
        assert cleanable_part(log, None, NOW) is None


def test_the_active_segment_is_rolled_in_time_for_the_largest_lag(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(tmp_path / "t-0", replace(EAGER, max_compaction_lag_ms=1000), clock)
    put(log, (b"k", b"v"))
    clock.advance(1001)
    log.roll_if_aged()
    assert len(log.segments) == 2


class TestCheckpoint:
    def test_what_is_clean_is_known_after_a_start(self, tmp_path: Path, clock: ManualClock) -> None:
        manager = eager_manager(tmp_path, clock)
        log = manager.create(T0, EAGER)
        put(log, (b"a", b"1"), roll=True)
        clean(manager)
        assert read_offsets(tmp_path / CLEAN_OFFSETS) == {T0: 1}
        manager.close()
        plans: list[CompactionPlan] = []

        class Watched(InlineCompactor):
            def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
                plans.append(plan)
                return super().compact(plan)

        again = LogManager([tmp_path], clock, cleaner=AT_ONCE, compactor=Watched())
        again.load(lambda topic: EAGER)
        clean(again)
        assert plans == []
        put(again.logs()[T0], (b"b", b"1"), roll=True)
        clean(again)
        assert [plan.first_dirty_offset for plan in plans] == [1]
        again.close()

    def test_a_deleted_partition_is_forgotten(self, manager: LogManager, tmp_path: Path) -> None:
        for tp in (T0, T1):
            put(manager.create(tp, EAGER), (b"a", b"1"), roll=True)
        clean(manager)
        manager.delete(T0)
        log = manager.create(T0, EAGER)
        put(log, (b"a", b"1"))
        put(log, (b"a", b"2"), roll=True)
        put(manager.logs()[T1], (b"a", b"2"), roll=True)
        clean(manager)
        assert offsets_of(log) == [1]
        assert read_offsets(tmp_path / "data" / CLEAN_OFFSETS) == {T0: 2, T1: 2}


class TestPolicies:
    def test_delete_alone_is_not_compacted(self, tmp_path: Path, clock: ManualClock) -> None:
        plain = replace(EAGER, cleanup_policy=("delete",))
        manager = eager_manager(tmp_path, clock, plain)
        log = manager.create(T0, plain)
        put(log, (b"a", b"1"), roll=True)
        put(log, (b"a", b"2"), roll=True)
        clean(manager)
        assert offsets_of(log) == [0, 1]
        manager.update_config("t", EAGER)
        clean(manager)
        assert offsets_of(log) == [1]

    def test_compact_and_delete_do_both(self, tmp_path: Path, clock: ManualClock) -> None:
        both = replace(EAGER, cleanup_policy=("compact", "delete"), retention_ms=HOUR, segment_bytes=100)
        manager = eager_manager(tmp_path, clock, both)
        log = manager.create(T0, both)
        for number in range(6):
            put(log, (b"k%d" % (number % 2), b"v"), timestamp=clock.now_ms(), roll=True)
            clock.advance(HOUR // 4)
        clean(manager)
        assert offsets_of(log) == [4, 5]
        clock.advance(HOUR // 2 + 1)
        log.apply_retention()
        clean(manager)
        assert offsets_of(log) == [5]
        assert log.log_start_offset > 0

    def test_compaction_can_be_switched_off(self, tmp_path: Path, clock: ManualClock) -> None:
        manager = eager_manager(tmp_path, clock, EAGER, replace(AT_ONCE, log_cleaner_enable=False))
        log = manager.create(T0, EAGER)
        put(log, (b"a", b"1"), roll=True)
        put(log, (b"a", b"2"), roll=True)
        clean(manager)
        assert offsets_of(log) == [0, 1]


def test_a_log_that_changes_meanwhile_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    jobs: list[Callable[[], None]] = []
    manager = eager_manager(tmp_path, clock)
    log = manager.create(T0, EAGER)
    for number in range(4):
        put(log, (b"a", b"%d" % number), roll=True)
    manager.tick(jobs.append)
    log.delete_records(2)
    while jobs:
        jobs.pop()()
    manager.tick(jobs.append)
    assert offsets_of(log) == [2, 3]
    while jobs:
        jobs.pop()()
    clean(manager)
    assert offsets_of(log) == [3]
    assert not list(log.directory.glob("*.cleaned"))


def test_one_that_is_deleted_meanwhile_harms_nobody(tmp_path: Path, clock: ManualClock) -> None:
    jobs: list[Callable[[], None]] = []
    manager = eager_manager(tmp_path, clock)
    for tp in (T0, T1):
        log = manager.create(tp, EAGER)
        put(log, (b"a", b"1"), roll=True)
        put(log, (b"a", b"2"), roll=True)
    manager.tick(jobs.append)
    manager.delete(T0)
    for _ in range(10):
        while jobs:
            jobs.pop()()
        manager.tick(jobs.append)
    assert offsets_of(manager.logs()[T1]) == [1]


def test_a_log_that_is_cut_while_it_is_compacted_keeps_its_new_records(tmp_path: Path, clock: ManualClock) -> None:
    """A follower is cut and copies other records into the same segments; those of the old leader must not come back."""

    class Interrupted(InlineCompactor):
        def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
            for answer in super().compact(plan):
                if not cut:
                    log.truncate_to(1)
                    put(log, (b"b", b"2"), roll=True)
                    cut.append(log.log_end_offset)
                yield answer

    cut: list[int] = []
    manager = LogManager([tmp_path], clock, cleaner=AT_ONCE, compactor=Interrupted())
    manager.load(lambda topic: EAGER)
    log = manager.create(T0, EAGER)
    for _ in range(2):
        put(log, (b"a", b"1"), roll=True)
    clean(manager)
    assert cut == [2]
    assert [record.key for record in records_of(log)] == [b"a", b"b"]
    manager.close()


def test_a_compaction_that_a_change_of_policy_ends_is_no_error(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention may take the files away that it reads."""

    class Ended(InlineCompactor):
        def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
            log.config = replace(EAGER, cleanup_policy=("delete",))
            raise FileNotFoundError(2, "No such file or directory", "00000000000000000000.log")
            yield from super().compact(plan)

    manager = LogManager([tmp_path], clock, cleaner=AT_ONCE, compactor=Ended())
    manager.load(lambda topic: EAGER)
    log = manager.create(T0, EAGER)
    for _ in range(2):
        put(log, (b"a", b"1"), roll=True)
    with caplog.at_level("INFO"):
        clean(manager)
    assert "the compaction of t-0 ended" in caplog.text
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []
    manager.close()


def test_what_is_clean_ends_where_the_log_is_cut(manager: LogManager, tmp_path: Path) -> None:
    log = manager.create(T0, EAGER)
    for key in (b"a", b"b", b"c"):
        put(log, (key, b"1"), roll=True)
    clean(manager)
    assert read_offsets(tmp_path / "data" / CLEAN_OFFSETS) == {T0: 3}
    log.truncate_to(1)
    assert read_offsets(tmp_path / "data" / CLEAN_OFFSETS) == {T0: 1}
    for key in (b"a", b"d", b"e"):
        put(log, (key, b"2"), roll=True)
    clean(manager)
    assert offsets_of(log) == [1, 2, 3]


def test_one_that_is_deleted_after_the_last_swap_leaves_nothing_to_its_namesake(
    tmp_path: Path, clock: ManualClock
) -> None:
    class Interrupted(InlineCompactor):
        def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
            for answer in super().compact(plan):
                if isinstance(answer, CompactionResult) and not namesakes:
                    manager.tick()  # swaps in what there is
                    manager.delete(T0)
                    namesakes.append(manager.create(T0, EAGER))
                yield answer

    namesakes: list[Log] = []
    manager = LogManager([tmp_path], clock, cleaner=AT_ONCE, compactor=Interrupted())
    manager.load(lambda topic: EAGER)
    log = manager.create(T0, EAGER)
    for _ in range(2):
        put(log, (b"a", b"1"), roll=True)
        put(log, (b"a", b"2"), roll=True)
        clean(manager)
        log = namesakes[0]
    assert offsets_of(log) == [1]
    manager.close()


def test_a_damaged_log_is_not_tried_again_and_the_others_are(
    manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = manager.create(T0, EAGER), manager.create(T1, EAGER)
    for log in (broken, sound):
        put(log, (b"a", b"1"), (b"b", b"1"), roll=True)
        put(log, (b"a", b"2"), roll=True)
    data = bytearray(broken.segments[0].path().read_bytes())
    data[-1] ^= 1
    broken.segments[0].path().write_bytes(data)
    clean(manager)
    assert offsets_of(sound) == [1, 2]
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
        "t-0 is not compacted any more until the broker starts again: CRC of the batch at offset 0 does not match"
    ]
    assert not list(broken.directory.glob("*.cleaned"))


def test_without_work_logs_are_looked_at_again_after_the_back_off(tmp_path: Path, clock: ManualClock) -> None:
    manager = eager_manager(tmp_path, clock, EAGER, CleanerSettings(log_cleaner_backoff_ms=5000))
    log = manager.create(T0, EAGER)
    manager.tick()
    put(log, (b"a", b"1"), roll=True)
    put(log, (b"a", b"2"), roll=True)
    clean(manager)
    assert offsets_of(log) == [0, 1]
    clock.advance(5000)
    clean(manager)
    assert offsets_of(log) == [1]


class TestProcess:
    @pytest.fixture
    def process(self) -> Iterator[CompactionProcess]:
        process = CompactionProcess()
        yield process
        process.close()

    def plan(self, directory: Path) -> CompactionPlan:
        log = open_log(directory, EAGER)
        put(log, (b"a", b"1"))
        put(log, (b"a", b"2"), roll=True)
        state = cleanable_part(log, None, NOW)
        assert state is not None
        segments = tuple(PlannedSegment(segment.base_offset, segment.size) for segment in state.segments)
        return CompactionPlan(directory, segments, 0, NOW, 1000, 1 << 20, 4096)

    def test_it_compacts_one_after_the_other_and_can_rest(self, process: CompactionProcess, tmp_path: Path) -> None:
        for number in range(3):
            plan = self.plan(tmp_path / f"t-{number}")
            done = list(process.compact(plan))
            assert [type(answer) for answer in done] == [Compacted, CompactionResult]
            assert (plan.cleaned_directory / "00000000000000000000.log").exists()
            if number == 1:
                process.rest()
                assert not process.is_running

    def test_damage_is_told_apart_from_a_failing_disk(self, process: CompactionProcess, tmp_path: Path) -> None:
        plan = self.plan(tmp_path / "t-0")
        path = tmp_path / "t-0" / "00000000000000000000.log"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptBatch, match="does not match"):
            list(process.compact(plan))
        path.unlink()
        with pytest.raises(OSError, match="No such file"):
            list(process.compact(plan))

    def test_one_that_is_killed_is_an_error_and_the_next_plan_starts_another(
        self, process: CompactionProcess, tmp_path: Path
    ) -> None:
        list(process.compact(self.plan(tmp_path / "t-0")))
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.wait()
        assert list(process.compact(self.plan(tmp_path / "t-1")))

    def test_closing_ends_one_that_is_at_work(self, process: CompactionProcess, tmp_path: Path) -> None:
        plan = replace(self.plan(tmp_path / "t-0"), bytes_per_second=0.01)
        errors: list[Exception] = []

        def work() -> None:
            try:
                list(process.compact(plan))
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        eventually(plan.cleaned_directory.exists)
        process.close()
        thread.join(60)
        assert len(errors) == 1
        with pytest.raises(OSError, match="closed"):
            list(process.compact(plan))

    def test_it_does_not_outlive_a_broker_that_is_killed(self, tmp_path: Path) -> None:
        plan = replace(self.plan(tmp_path / "t-0"), bytes_per_second=0.01)
        (tmp_path / "plan").write_bytes(pickle.dumps(plan))
        with subprocess.Popen([sys.executable, "-c", BROKER, str(tmp_path / "plan")], stdout=subprocess.PIPE) as broker:
            assert broker.stdout is not None
            worker = int(broker.stdout.readline())
            eventually(plan.cleaned_directory.exists)
            broker.kill()
        eventually(lambda: not Path(f"/proc/{worker}").exists())
        assert not plan.cleaned_directory.exists()

    def test_with_the_whole_machinery(self, tmp_path: Path, clock: ManualClock) -> None:
        manager = LogManager([tmp_path], clock, cleaner=AT_ONCE)
        manager.load(lambda topic: EAGER)
        log = manager.create(T0, EAGER)
        put(log, (b"a", b"1"))
        put(log, (b"a", b"2"), roll=True)
        clean(manager)
        assert offsets_of(log) == [1]
        manager.close()
