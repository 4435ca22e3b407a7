"""Many producers begin, commit and abort while the log rolls, is cut, loses its head and dies: it equals a list.

The model is the list of all batches that are still in the log or were deleted from its head; everything asked of
the log is worked out from that list by the shortest loop there is.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.log.inspection import check_partition
from broker.log.log_config import LogConfig
from broker.log.segment import segment_path
from broker.records.aborted_entries import AbortedEntry
from broker.records.batch import walk_batches
from broker.records.control import ControlType
from tests.support.batches import append, batch, open_log
from tests.support.log_transactions import Producers, committed_records, stable_end

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
PRODUCERS = st.integers(1, 4)
FRACTION = st.floats(0, 1)


@dataclass
class Entry:
    """A batch as it was appended; `marker` is None for records."""

    base: int
    last: int
    producer: int = -1
    epoch: int = -1
    last_sequence: int = -1
    marker: ControlType | None = None
    coordinator: int = -1


@dataclass
class Producer:
    """What the log should know of one."""

    epoch: int
    last_sequence: int = -1
    coordinator: int = -1
    open_since: int = -1


class Outcome:
    """The list, walked once."""

    def __init__(self, history: list[Entry], start: int) -> None:
        self.producers: dict[int, Producer] = {}
        self.aborted: list[AbortedEntry] = []
        aborted_offsets: set[int] = set()
        for entry in history:
            if entry.producer < 0:
                continue
            known = self.producers.setdefault(entry.producer, Producer(entry.epoch))
            if known.epoch != entry.epoch:
                known.epoch, known.last_sequence = entry.epoch, -1
            if entry.marker is None:
                known.last_sequence = entry.last_sequence
                known.open_since = entry.base if known.open_since < 0 else known.open_since
                continue
            began, known.open_since, known.coordinator = known.open_since, -1, entry.coordinator
            if entry.marker is ControlType.ABORT and began >= 0:
                stable = self._first_unstable(entry.base + 1)
                self.aborted.append(AbortedEntry(entry.producer, began, entry.base, stable))
                aborted_offsets |= {
                    offset
                    for other in history
                    if other.producer == entry.producer and began <= other.base < entry.base
                    for offset in range(other.base, other.last + 1)
                }
        end = history[-1].last + 1 if history else 0
        self.stable_end = max(self._first_unstable(end), start)
        self.committed = [
            offset
            for entry in history
            if entry.marker is None
            for offset in range(entry.base, entry.last + 1)
            if start <= offset < self.stable_end and offset not in aborted_offsets
        ]

    def _first_unstable(self, end: int) -> int:
        return min([known.open_since for known in self.producers.values() if known.open_since >= 0], default=end)


class TransactionalLog(RuleBasedStateMachine):
    """The log beside its list."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / "t-0"
        self.log = open_log(self.directory, CONFIG)
        self.producers = Producers(self.log)
        self.epochs: dict[int, int] = {}
        self.history: list[Entry] = []

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def outcome(self) -> Outcome:
        return Outcome(self.history, self.log.log_start_offset)

    def values(self, count: int) -> list[bytes]:
        return [b"%d" % (self.log.log_end_offset + number) for number in range(count)]

    # --- what producers do

    @rule(producer=PRODUCERS, count=st.integers(1, 3))
    def send(self, producer: int, count: int) -> None:
        epoch = self.epochs.get(producer, 0)
        result = self.producers.send(producer, *self.values(count), epoch=epoch)
        known = self.log.producers.get(producer)
        assert known is not None
        self.history.append(Entry(result.base_offset, result.last_offset, producer, epoch, known.last_sequence))

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        result = append(self.log, batch(*self.values(count)))
        self.history.append(Entry(result.base_offset, result.last_offset))

    @rule(producer=PRODUCERS, how=st.sampled_from(ControlType), bump=st.booleans(), coordinator=st.integers(0, 1))
    def end(self, producer: int, how: ControlType, bump: bool, coordinator: int) -> None:
        epoch = self.epochs[producer] = self.epochs.get(producer, 0) + bump
        known = self.log.producers.get(producer)
        coordinator = max(coordinator, -1 if known is None else known.coordinator_epoch)
        offset = self.producers.end(producer, how, epoch=epoch, coordinator=coordinator)
        self.history.append(Entry(offset, offset, producer, epoch, -1, how, coordinator))

    # --- what happens to the log

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def release(self) -> None:
        self.log.release()

    @rule(where=FRACTION)
    def delete_records(self, where: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.delete_records(start + int(where * (end - start)))

    @rule(where=FRACTION)
    def truncate(self, where: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.truncate_to(start + int(where * (end - start)))
        self._forget_from(self.log.log_end_offset)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self._open(clean=True)

    @rule(where=FRACTION, lose_snapshots=st.booleans())
    def die_and_start(self, where: float, lose_snapshots: bool) -> None:
        """The last segment ends at any byte of what was not fsynced; of the head there is a snapshot only."""
        path = segment_path(self.directory, self.log.active_base_offset, ".log")
        synced = max(self.log.recovery_point, self.log.log_start_offset)
        data = path.read_bytes()
        lowest = max([0, *(at + header.size for at, header in walk_batches(data) if header.base_offset < synced)])
        data = data[: lowest + int(where * (len(data) - lowest))]
        path.write_bytes(data)
        end = max([self.log.active_base_offset, *(header.next_offset for _, header in walk_batches(data))])
        if lose_snapshots and self.log.recovery_point == self.log.segments[0].base_offset == 0:
            for snapshot in self.directory.glob("*.snapshot"):
                snapshot.unlink()
        self._open(clean=False)
        assert self.log.log_end_offset == end
        self._forget_from(end)

    def _open(self, *, clean: bool) -> None:
        point, start = self.log.recovery_point, self.log.log_start_offset
        self.log = open_log(self.directory, CONFIG, clean=clean, recovery_point=point, log_start_offset=start)
        self.producers.log = self.log

    def _forget_from(self, end: int) -> None:
        self.history = [entry for entry in self.history if entry.last < end]
        self.producers.follow()
        self.epochs = {entry.producer_id: entry.epoch for entry in self.log.producers}

    # --- what is promised

    @invariant()
    def producers_are_as_they_should(self) -> None:
        found = {
            entry.producer_id: Producer(
                entry.epoch, entry.last_sequence, entry.coordinator_epoch, entry.transaction_first_offset
            )
            for entry in self.log.producers
        }
        assert found == self.outcome().producers

    @invariant()
    def the_last_stable_offset_is_right(self) -> None:
        assert stable_end(self.log) == self.outcome().stable_end

    @rule(low=FRACTION, high=FRACTION)
    def the_aborted_list_is_right(self, low: float, high: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        first, past = sorted(start + int(where * (end - start)) for where in (low, high))
        expected = [
            entry for entry in self.outcome().aborted if entry.last_offset >= first and entry.first_offset < past
        ]
        assert self.log.aborted.between(first, past) == expected

    @rule(max_bytes=st.integers(1, 1000))
    def a_reader_gets_the_committed_records(self, max_bytes: int) -> None:
        expected = [(offset, b"%d" % offset) for offset in self.outcome().committed]
        assert committed_records(self.log, max_bytes=max_bytes) == expected

    @rule()
    def the_files_fit_together(self) -> None:
        self.log.save_epochs()  # their file follows the log with the next flush
        assert check_partition(self.directory) == []


TransactionalLog.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestTransactionalLog = TransactionalLog.TestCase
