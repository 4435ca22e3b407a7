"""A log whose first records are only in the archive answers as it did when all were on this disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from broker.archive.archived_read import ArchiveReader
from broker.clock import SystemClock
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.segment_file import ColdRead, unless_cold
from broker.records.record import decode_records
from broker.storage.storage import open_storage
from tests.support.archiving import MIB, archive_all_but_active
from tests.support.batches import NOW, append, batch, open_log
from tests.support.log_transactions import Producers, committed_records
from tests.support.randomness import seeded

P = ParamSpec("P")
T = TypeVar("T")


def answer(attempt: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As the event loop gets it: after each miss it tries again."""
    while True:
        try:
            return unless_cold(lambda: attempt(*args, **kwargs))
        except ColdRead as cold:
            cold.warm()
            cold.keep()


def let_go(log: Log, tmp_path: Path) -> None:
    """Only the active segment stays on this disk."""
    storage = open_storage(str(tmp_path / "archive"))
    reader = ArchiveReader(storage, tmp_path / "cache", max_bytes=64 * MIB, threads=2, clock=SystemClock())
    archive_all_but_active(log, reader, storage)
    assert log.local_start_offset > 0 == log.log_start_offset


def times_of(log: Log, start: int, max_bytes: int) -> list[tuple[int, int, bytes | None]]:
    """(offset, timestamp, value) of all records from `start`."""
    offset = start
    found: list[tuple[int, int, bytes | None]] = []
    while (piece := log.read(offset, max_bytes)) is not None:
        found += [(one.offset, one.timestamp, one.value) for one in decode_records(piece.read(), low=offset)]
        offset = found[-1][0] + 1
    return found


def test_records_times_and_epochs_are_the_same(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=4_000, index_interval_bytes=300))
    chance = seeded(1)
    for number in range(200):
        times = [NOW + number * 10 + chance.randint(-300, 300) for _ in range(chance.randint(1, 3))]
        append(log, batch(*[b"%d" % number] * len(times), timestamps=times), leader_epoch=number // 40)
    end = log.log_end_offset
    starts = [0, *(chance.randrange(end) for _ in range(10))]
    sought = [NOW + chance.randint(-400, 2500) for _ in range(30)]

    def answers() -> Any:
        return (
            [answer(times_of, log, start, 700) for start in starts],
            [answer(log.offset_for_timestamp, ms) for ms in sought],
            answer(log.max_timestamp),
            [log.end_offset_for_epoch(epoch, 5) for epoch in range(6)],
            [log.epochs.epoch_of(offset) for offset in range(end)],
        )

    before = answers()
    let_go(log, tmp_path)
    assert answers() == before
    append(log, batch(b"last", timestamp=NOW))
    assert answers()[1:3] == before[1:3], "a newer record is not the newest"


def test_a_newest_record_that_is_archived_is_found_beside_newer_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, batch(b"newest", timestamp=NOW + 50_000))
    log.roll()
    append(log, batch(b"older", timestamp=NOW))
    let_go(log, tmp_path)
    assert answer(log.max_timestamp) == (0, NOW + 50_000)
    assert answer(log.offset_for_timestamp, NOW + 1) == (0, NOW + 50_000)
    assert answer(log.offset_for_timestamp, NOW + 50_001) is None


@pytest.mark.parametrize("seed", range(3))
def test_committed_records_are_the_same_wherever_the_markers_are(tmp_path: Path, seed: int) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=1_000))
    producers, chance = Producers(log), seeded(seed)
    for _ in range(200):
        producer = chance.randrange(1, 6)
        producers.send(producer)
        if chance.random() < 0.2:
            (producers.abort if chance.random() < 0.5 else producers.commit)(producer)
    for producer in range(1, 6):
        producers.send(producer)
    log.roll()
    for producer in range(1, 6):  # the markers are in the segment that stays
        (producers.abort if producer % 2 else producers.commit)(producer)
    before = committed_records(log)
    let_go(log, tmp_path)
    for start in range(0, log.log_end_offset, 7):
        assert answer(committed_records, log, start) == [one for one in before if one[0] >= start]


def test_a_read_that_goes_on_locally_tells_the_aborted_transactions_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction, before the topic was archived, may have removed the last archived records."""
    log = open_log(tmp_path / "t-0")
    append(log, batch(b"archived"))
    log.roll()
    producers = Producers(log)
    producers.send(1, b"dropped")
    producers.abort(1)
    let_go(log, tmp_path)
    monkeypatch.setattr(log.archived, "read", lambda *_: None)
    assert answer(committed_records, log, 0) == []
