"""A crash at any file operation of a swap, and at any of the start after it, leaves one consistent log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BrokerError
from broker.log.compaction import compact
from broker.log.compaction_process import Compacted, CompactionPlan, PlannedSegment
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.segment_swap import was_compacted
from broker.records.record import Record
from tests.support.batches import NOW, append, open_log
from tests.support.compaction import keyed, latest, put, records_of

CONFIG = LogConfig(cleanup_policy=("compact",))


class Crash(BaseException):
    """Not an Exception: nothing survives it."""


@contextmanager
def crash_at(step: int, *, before: bool) -> Iterator[list[str]]:
    """Die at the `step`-th change of a name in the file system (from 0), before or after it; yields those made."""
    done: list[str] = []
    patch = pytest.MonkeyPatch()

    def counted(name: str, real: Any) -> Any:
        def act(path: Path, *arguments: Any, **named: Any) -> Any:
            if len(done) > step:
                raise Crash
            done.append(f"{name} {path.name}")
            if len(done) > step and before:
                raise Crash
            result = real(path, *arguments, **named)
            if len(done) > step:
                raise Crash
            return result

        return act

    for name in ("rename", "unlink", "touch"):
        patch.setattr(Path, name, counted(name, getattr(Path, name)))
    try:
        yield done
    finally:
        patch.undo()


class Prepared:
    """A log of three closed segments and an active one, and the compaction of the first three, ready to go in."""

    def __init__(self, directory: Path) -> None:
        log = open_log(directory, CONFIG)
        put(log, (b"a", b"1"), (b"b", b"1"), roll=True)
        append(log, keyed((b"a", b"2"), producer_id=5, producer_epoch=0, sequence=0))
        log.roll()
        put(log, (b"b", None), (b"c", b"3"), roll=True)
        put(log, (b"d", b"4"))
        log.flush()
        self.before = records_of(log)
        closed = log.segments[:-1]
        planned = tuple(PlannedSegment(segment.base_offset, segment.size) for segment in closed)
        self.plan = CompactionPlan(directory, planned, 0, NOW, 1000, 1 << 20, 4096)
        answers = list(compact(self.plan))
        assert isinstance(answers[0], Compacted)
        self.size = answers[0].size
        self.log = log

    def swap(self) -> None:
        assert self.log.replace_segments(self.log.segments[:-1], self.plan.cleaned_directory, self.size)


def steps_of_a_swap(directory: Path) -> int:
    prepared = Prepared(directory / "count-0")
    with crash_at(1000, before=True) as done:
        prepared.swap()
    assert len(done) > 12
    return len(done)


def recovered(directory: Path, before: list[Record], *, clean: bool) -> Log:
    log = open_log(directory, CONFIG, clean=clean)
    found = records_of(log)
    assert found in (before, [before[2], *before[3:]]), "the old segments or the new one"
    assert latest(found) == latest(before)
    known = log.producers.get(5)
    assert known is not None
    assert known.batches[-1].last_sequence == 0
    log.close()
    assert check_partition(directory) == []
    left = [path.name for path in directory.iterdir() if path.suffix in (".swap", ".cleaned", ".deleted")]
    assert left == []
    return log


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_any_step(tmp_path: Path, before: bool) -> None:
    for step in range(steps_of_a_swap(tmp_path)):
        directory = tmp_path / f"t-{step}"
        prepared = Prepared(directory)
        with crash_at(step, before=before) as done, suppress(Crash):
            prepared.swap()
        assert len(done) == step + 1
        for clean in (True, False):
            copy = tmp_path / f"copy-{step}"
            shutil.copytree(directory, copy)
            recovered(copy, prepared.before, clean=clean)
            shutil.rmtree(copy)


def test_a_crash_in_the_recovery_from_a_crash(tmp_path: Path) -> None:
    for step in range(0, steps_of_a_swap(tmp_path), 3):
        directory = tmp_path / f"t-{step}"
        prepared = Prepared(directory)
        with crash_at(step, before=False), suppress(Crash):
            prepared.swap()
        for again in range(30):
            copy = tmp_path / f"copy-{step}"
            shutil.copytree(directory, copy)
            with crash_at(again, before=False) as done, suppress(Crash):
                open_log(copy, CONFIG, clean=False)
            recovered(copy, prepared.before, clean=False)
            shutil.rmtree(copy)
            if len(done) <= again:
                break


def test_without_a_crash_the_new_segment_is_in_its_place(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path / "t-0")
    prepared.swap()
    log = prepared.log
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert records_of(log) == [prepared.before[2], *prepared.before[3:]]
    assert was_compacted(log.directory)
    log.close()
    assert records_of(open_log(tmp_path / "t-0", CONFIG)) == [prepared.before[2], *prepared.before[3:]]


def test_nothing_is_swapped_when_retention_was_faster(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path / "t-0")
    old = prepared.log.segments[:-1]
    prepared.log.delete_records(2)
    held = records_of(prepared.log)
    assert not prepared.log.replace_segments(old, prepared.plan.cleaned_directory, prepared.size)
    assert records_of(prepared.log) == held


def test_nor_the_active_segment(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path / "t-0")
    assert not prepared.log.replace_segments(prepared.log.segments, prepared.plan.cleaned_directory, prepared.size)


def test_a_disk_that_fails_in_a_swap_ends_the_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(tmp_path / "t-0")

    def refuse(path: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(BrokerError, match="Input/output error"):
        prepared.swap()
    monkeypatch.undo()
    with pytest.raises(BrokerError, match="restart the broker"):
        put(prepared.log, (b"x", b"y"))
    recovered(tmp_path / "t-0", prepared.before, clean=False)
