"""Compacted logs for tests: keyed batches, a compactor in this process, and what a log holds per key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from broker.clock import Clock
from broker.config.setting_groups import CleanerSettings
from broker.log.compaction import compact
from broker.log.compaction_process import Compacted, CompactionPlan, CompactionProcess, CompactionResult
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.records.builder import BatchBuilder
from broker.records.record import Header, Record, decode_records
from tests.support.batches import NOW, append

EAGER = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000)
AT_ONCE = CleanerSettings(log_cleaner_backoff_ms=0)

Pair = tuple[bytes | None, bytes | None]


class InlineCompactor(CompactionProcess):
    """Does at once what `CompactionProcess` has done elsewhere."""

    def compact(self, plan: CompactionPlan) -> Iterator[Compacted | CompactionResult]:
        return compact(plan)


def eager_manager(
    directory: Path, clock: Clock, config: LogConfig = EAGER, settings: CleanerSettings = AT_ONCE
) -> LogManager:
    """A loaded manager that compacts whatever is dirty, in this process."""
    manager = LogManager([directory], clock, cleaner=settings, compactor=InlineCompactor())
    manager.load(lambda topic: config)
    return manager


def keyed(
    *pairs: Pair,
    timestamp: int = NOW,
    codec: int = 0,
    headers: Sequence[Header] = (),
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch of records with these keys and values; the timestamps are `timestamp` and up."""
    builder = BatchBuilder(
        codec=codec,
        max_bytes=1 << 30,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    for number, (key, value) in enumerate(pairs):
        builder.append(timestamp + number, key, value, headers)
    return builder.build()


def put(log: Log, *pairs: Pair, roll: bool = False, timestamp: int = NOW, codec: int = 0) -> int:
    """Append one batch, perhaps as the last of its segment; returns its base offset."""
    base_offset = append(log, keyed(*pairs, timestamp=timestamp, codec=codec)).base_offset
    if roll:
        log.roll()
    return base_offset


def clean(manager: LogManager, ticks: int = 8) -> None:
    """Let the cleaner do all there is to do. Its back-off must be 0."""
    for _ in range(ticks):
        manager.tick()


def raw(log: Log) -> bytes:
    """All batches of the log, as a consumer gets them that goes from one to the next."""
    return b"".join(segment.file().pread(segment.size, 0) for segment in log.segments)


def records_of(log: Log, *, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record, fetched piece by piece from the start to the end, over gaps and empty batches."""
    offset, found = log.log_start_offset, []
    while (piece := log.read(offset, max_bytes)) is not None:
        data = piece.read()
        found += [record for record in decode_records(data) if record.offset >= offset]
        offset = next_offset(data)
    assert offset == log.log_end_offset
    return found


def next_offset(data: bytes) -> int:
    position = end = 0
    while position < len(data):
        base, length = int.from_bytes(data[position : position + 8]), int.from_bytes(data[position + 8 : position + 12])
        end = base + int.from_bytes(data[position + 23 : position + 27]) + 1
        position += 12 + length
    return end


def latest(records: Sequence[Record]) -> dict[bytes | None, bytes]:
    """What a reader that applies the records in order ends up with."""
    state: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state
