"""Record batches for tests of the log, and a log of a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker.clock import ManualClock
from broker.log.append_checks import BatchCheck, writable
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.pending_append import AppendResult, complete
from broker.records.builder import BatchBuilder
from broker.records.control import ControlType, EndMarker
from broker.records.record import decode_records

NOW = 1_700_000_000_000


def batch(
    *values: bytes,
    timestamp: int = NOW,
    timestamps: Sequence[int] | None = None,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch of `values`, all at `timestamp` unless `timestamps` gives each its own."""
    builder = BatchBuilder(
        codec=codec,
        max_bytes=1 << 30,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    for number, value in enumerate(values):
        builder.append(timestamps[number] if timestamps else timestamp, None, value)
    return builder.build()


def open_log(
    directory: Path,
    config: LogConfig | None = None,
    clock: ManualClock | None = None,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int | None = None,
) -> Log:
    """The log in `directory`, with a clock that stands still."""
    return Log.open(
        directory,
        config or LogConfig(),
        clock or ManualClock(NOW),
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )


def append(log: Log, records: bytes | bytearray | memoryview, *, leader_epoch: int = 0) -> AppendResult:
    """Check and append one client's batch, as the Produce handler and the partition do on a fast disk."""
    check = BatchCheck(writable(records), log.config, log._clock.now_ms())
    check.run()
    return complete(log.prepare_append(check, leader_epoch=leader_epoch))


def append_as_coordinator(log: Log, records: bytes | bytearray | memoryview, *, leader_epoch: int = 0) -> AppendResult:
    """Append batches as a coordinator does."""
    buffer, batches = log.check_coordinator_batches(records)
    return complete(log.prepare_coordinator_append(buffer, batches, leader_epoch=leader_epoch))


def append_marker(
    log: Log,
    producer_id: int,
    producer_epoch: int,
    control_type: ControlType,
    coordinator_epoch: int,
    *,
    leader_epoch: int = 0,
) -> AppendResult:
    """End a producer's transaction."""
    marker = EndMarker(producer_id, producer_epoch, control_type, coordinator_epoch)
    return complete(log.prepare_marker(marker, leader_epoch=leader_epoch))


def fill(log: Log, count: int, size: int = 100) -> None:
    """Append `count` batches of one record of `size` bytes; the value begins with its offset."""
    for _ in range(count):
        append(log, batch(b"%d:" % log.log_end_offset + b"x" * size))


def read_all(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """(offset, value) of every record from `start`, read as a consumer reads."""
    offset = log.log_start_offset if start is None else start
    found: list[tuple[int, bytes]] = []
    while (piece := log.read(offset, max_bytes)) is not None:
        records = [record for record in decode_records(piece.read()) if record.offset >= offset]
        found += [(record.offset, record.value or b"") for record in records]
        offset = records[-1].offset + 1
    return found
