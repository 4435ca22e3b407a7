"""The files beside a segment: offset and time index, aborted transactions, producer snapshot, as rows.

Called by log.py for `pykafka log dump`. Formats are Kafka's; what cannot be read raises PykafkaError with the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from broker.errors import PykafkaError
from broker.log.aborted_index import decode_aborted
from broker.log.producer_snapshot import decode_snapshot

__all__ = ["SIDE_FILES", "side_file_rows", "side_files"]

Row = dict[str, Any]

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


def side_files(partition: Path, *, only: frozenset[str] | None = None) -> list[Path]:
    """Those of a partition's directory, of the kinds `only`, in the order of their offsets."""
    wanted = SIDE_FILES.keys() if only is None else only
    return sorted(path for path in partition.iterdir() if path.suffix in wanted and path.stem.isdigit())


def side_file_rows(path: Path) -> list[Row]:
    """What is in it, entry by entry."""
    try:
        return list(SIDE_FILES[path.suffix](path))
    except (ValueError, struct.error) as error:
        raise PykafkaError(f"{path}: {error}") from None


def _offset_index(path: Path) -> Iterator[Row]:
    base = _base(path)
    for relative, position in _OFFSET_ENTRY.iter_unpack(path.read_bytes()):
        yield {"offset": base + relative, "position": position}


def _time_index(path: Path) -> Iterator[Row]:
    base = _base(path)
    for timestamp, relative in _TIME_ENTRY.iter_unpack(path.read_bytes()):
        yield {"timestamp": timestamp, "offset": base + relative}


def _aborted(path: Path) -> Iterator[Row]:
    for entry in decode_aborted(path.read_bytes()):
        yield entry._asdict()


def _snapshot(path: Path) -> Iterator[Row]:
    for entry in decode_snapshot(path.read_bytes(), 0):
        last = entry.batches[-1] if entry.batches else None
        yield {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": last.last_offset if last else None,
            "last_timestamp": last.timestamp if last else None,
            "transaction_first_offset": None if entry.transaction_first_offset < 0 else entry.transaction_first_offset,
        }


def _base(path: Path) -> int:
    if not path.stem.isdigit():
        raise ValueError("its name is not the offset that its segment begins at")
    return int(path.stem)


SIDE_FILES: Final[dict[str, Callable[[Path], Iterator[Row]]]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _aborted,
    ".snapshot": _snapshot,
}
