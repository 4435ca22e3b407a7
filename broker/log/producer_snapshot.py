"""Producer state on disk: `<20-digit offset>.snapshot`, in Kafka's format.

log.py takes one when it rolls a segment and writes it with the next flush; it writes one on a clean close. recovery.py
reads them. A snapshot is the state after all records before its offset. Kafka's `ProducerStateManager`, big-endian:

    version (int16, 1), crc (uint32, CRC-32C of all that follows), number of entries (int32), per entry:
    producer id (int64), epoch (int16), last sequence (int32), last offset (int64), offset delta (int32),
    timestamp (int64), coordinator epoch (int32), first offset of the open transaction (int64, -1 none)

Kafka stores one batch of each producer. We write an entry for each of the last five, the newest last, so that a retry
after a restart still finds its duplicate. Kafka's reader uses the last entry.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

from broker.durable_files import write_atomically
from broker.log.producer_state import AppendedBatch, ProducerEntry, ProducerStates
from broker.log.segment import segment_path
from broker.records.crc32c import crc32c
from broker.stored_names import number_named

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_NO_BATCH = AppendedBatch(-1, -1, 0, -1)


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    rows = [
        _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        for entry in entries
        for batch in entry.batches or (_NO_BATCH,)
    ]
    checked = _COUNT.pack(len(rows)) + b"".join(rows)
    return _HEAD.pack(_VERSION, crc32c(checked)) + checked


def decode_snapshot(data: bytes, now_ms: int) -> ProducerStates:
    """The state in a snapshot; `now_ms` is when its producers were last seen. Raises ValueError."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise ValueError("too short")
    version, crc = _HEAD.unpack_from(data)
    checked = memoryview(data)[_HEAD.size :]
    if version != _VERSION:
        raise ValueError(f"version {version} is not {_VERSION}")
    if crc32c(checked) != crc:
        raise ValueError("its CRC does not match")
    (count,) = _COUNT.unpack_from(checked)
    if len(checked) != _COUNT.size + count * _ENTRY.size:
        raise ValueError(f"{count} entries do not fill it")
    entries: dict[int, ProducerEntry] = {}
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator, first in _ENTRY.iter_unpack(
        checked[_COUNT.size :]
    ):
        entry = entries.setdefault(producer_id, ProducerEntry(producer_id, epoch))
        entry.epoch, entry.coordinator_epoch, entry.transaction_first_offset = epoch, coordinator, first
        entry.last_seen_ms = now_ms
        if offset >= 0:
            entry.batches.append(AppendedBatch(sequence, offset, delta, timestamp))
    return ProducerStates(entries.values())


def save_snapshot(directory: Path, offset: int, states: ProducerStates) -> None:
    """Write the state after all records before `offset`. Raises OSError."""
    write_atomically(segment_path(directory, offset, SNAPSHOT_SUFFIX), encode_snapshot(states))


def load_snapshot(directory: Path, offset: int, now_ms: int) -> ProducerStates | None:
    """The snapshot at `offset`. Deletes a damaged one and returns None."""
    path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
    try:
        return decode_snapshot(path.read_bytes(), now_ms)
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("producer snapshot %s is dropped: %s", path, error)
        path.unlink(missing_ok=True)
        return None


def snapshot_offsets(directory: Path) -> list[int]:
    """Offsets of the snapshots in a directory, ascending."""
    stems = (name.removesuffix(SNAPSHOT_SUFFIX) for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(number for number in map(number_named, stems) if number is not None)


def drop_snapshots(directory: Path, *, low: int = 0, high: int | None = None) -> None:
    """Delete the snapshots below offset `low` and above `high`. Raises OSError."""
    for offset in snapshot_offsets(directory):
        if offset < low or (high is not None and offset > high):
            segment_path(directory, offset, SNAPSHOT_SUFFIX).unlink(missing_ok=True)


class ProducerSnapshots:
    """The snapshots of one log. Those that were taken are written with the next flush: each needs two fsyncs, so a
    worker thread does it.

    After a crash before that, recovery starts from an older snapshot. Not thread-safe, except `save`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._taken: list[tuple[int, bytes]] = []
        self._saving = threading.Lock()

    def take(self, offset: int, states: ProducerStates) -> None:
        """Take a snapshot of the state after all records before `offset`."""
        self._taken.append((offset, encode_snapshot(states)))

    def write(self, offset: int, states: ProducerStates) -> None:
        """Take a snapshot and write it at once. Raises OSError."""
        save_snapshot(self._directory, offset, states)

    def save(self) -> None:
        """Write them; from any thread. A snapshot that cannot be written is tried again next time."""
        try:
            while self._save_oldest():
                pass
        except OSError as error:
            logger.warning("no producer snapshot in %s yet: %s", self._directory, error)

    def _save_oldest(self) -> bool:
        with self._saving:
            if not self._taken:
                return False
            offset, data = self._taken[0]
            write_atomically(segment_path(self._directory, offset, SNAPSHOT_SUFFIX), data)
            del self._taken[0]
        return True

    def keep_before_deletion(self, offset: int) -> None:
        """Write what was taken, if the records before `offset` will be deleted: recovery could not rebuild it."""
        if any(taken <= offset for taken, _ in self._taken[:1]):
            self.save()

    def forget_before(self, offset: int) -> None:
        """Delete snapshots below `offset`. Raises OSError."""
        drop_snapshots(self._directory, low=offset)

    def truncate(self, end: int) -> None:
        """Drop snapshots after offset `end`. Raises OSError."""
        self._forget_taken(end)
        drop_snapshots(self._directory, high=end)

    def abandon(self) -> None:
        """Write nothing any more: the partition was deleted, and a new one may get its directory."""
        self._forget_taken(-1)

    def _forget_taken(self, end: int) -> None:
        with self._saving:
            self._taken = [taken for taken in self._taken if taken[0] <= end]
