"""Transactional producers of a log without a broker, and the reader of committed data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.log.log import Log
from broker.log.pending_append import AppendResult
from broker.records.batch import walk_batches
from broker.records.control import ControlType
from broker.records.record import decode_records
from tests.support.batches import append, append_marker, batch

ALICE, BOB, CAROL = 1, 2, 3
"""Producer ids."""


class Producers:
    """Appends to `log`, which may be exchanged for its reopened self; keeps each producer's next sequence."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._next: dict[tuple[int, int], int] = {}

    def send(self, producer: int, *values: bytes, epoch: int = 0, transactional: bool = True) -> AppendResult:
        """One batch; its one value is its offset unless told otherwise."""
        values = values or (b"%d" % self.log.log_end_offset,)
        sequence = self._next.get((producer, epoch), 0)
        data = batch(
            *values, producer_id=producer, producer_epoch=epoch, sequence=sequence, transactional=transactional
        )
        result = append(self.log, data)
        self._next[producer, epoch] = sequence + len(values)
        return result

    def end(self, producer: int, how: ControlType, *, epoch: int = 0, coordinator: int = 0) -> int:
        """The offset of the marker."""
        return append_marker(self.log, producer, epoch, how, coordinator).base_offset

    def commit(self, producer: int) -> int:
        return self.end(producer, ControlType.COMMIT)

    def abort(self, producer: int) -> int:
        return self.end(producer, ControlType.ABORT)

    def follow(self) -> None:
        """Go on at the sequences that the log knows: what was sent after them is lost."""
        self._next = {(entry.producer_id, entry.epoch): entry.last_sequence + 1 for entry in self.log.producers}


def stable_end(log: Log) -> int:
    """The last stable offset."""
    return log.log_end_offset if log.first_unstable_offset is None else log.first_unstable_offset


def committed_records(log: Log, start: int | None = None, max_bytes: int = 300) -> list[tuple[int, bytes]]:
    """(offset, value) of what a read_committed consumer gets from `start`, fetch after fetch of `max_bytes`."""
    end = stable_end(log)
    offset = log.log_start_offset if start is None else start
    found: list[tuple[int, bytes]] = []
    while (piece := log.read(offset, max_bytes, up_to=end)) is not None:
        aborted = log.aborted_in(offset, piece, end)
        data = piece.read()
        found += [(record.offset, record.value or b"") for record in decode_records(data, low=offset, aborted=aborted)]
        for _, header in walk_batches(data):
            offset = header.next_offset
        assert offset <= end
    return found


def refused(act: Callable[[], object]) -> ErrorCode:
    """The error `act` is refused with."""
    with pytest.raises(BrokerError) as caught:
        act()
    return caught.value.code


def index_files(directory: Path) -> list[str]:
    """Names of the indexes of aborted transactions."""
    return sorted(path.name for path in directory.iterdir() if ".txnindex" in path.name)
