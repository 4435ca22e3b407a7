"""One batch of a segment, as a line for people or a document for programs, with its records if they are wanted.

Called by log.py for `pykafka log dump`. Markers that end transactions are named; records of the internal topics are
decoded (internal_records.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.text import Text

from broker.errors import CorruptBatch
from broker.log.inspection import InspectedBatch, inspect_segment
from broker.records.batch import BatchHeader
from broker.records.compression import Codec
from broker.records.control import read_end_marker
from broker.records.record import Record, decode_batch
from broker.tools.internal_records import InternalDecoder, internal_decoder
from broker.tools.output import as_time

__all__ = ["print_segment", "segment_documents"]

_COLUMNS: Final = (
    "offsets",
    "position",
    "bytes",
    "records",
    "first timestamp",
    "newest timestamp",
    "codec",
    "producer",
    "epoch",
    "flags",
    "crc",
)
_LINE: Final = "{:<18} {:>10} {:>9} {:>7}  {:<23}  {:<23}  {:<6}  {:<14} {:>5} {:<14}{}"


def print_segment(console: Console, path: Path, records: bool) -> None:
    """A line as each batch is read: a segment may have a hundred thousand."""
    decode = internal_decoder(path.absolute().parent)
    console.print(Text(f"{path} ({path.stat().st_size:,} bytes)", style="bold"), soft_wrap=True)
    console.print(Text(_LINE.format(*_COLUMNS), style="dim"), soft_wrap=True)
    for batch in inspect_segment(path):
        line = _line(batch)
        if batch.problem:
            console.print(Text.assemble(line, (batch.problem, "red")), soft_wrap=True)
        else:
            typer.echo(f"{line}ok")
        if records:
            for record in _records(batch):
                typer.echo(f"    {_record_line(record, decode)}")


def segment_documents(path: Path, records: bool) -> Iterator[dict[str, Any]]:
    """A document for each batch of the segment."""
    decode = internal_decoder(path.absolute().parent)
    for batch in inspect_segment(path):
        yield _document(path, batch, decode, records)


def _line(batch: InspectedBatch) -> str:
    header = batch.header
    if header is None:
        return f"byte {batch.position}: "
    sequence = "" if header.base_sequence < 0 else f" #{header.base_sequence}"
    return _LINE.format(
        f"{header.base_offset}-{header.last_offset}",
        batch.position,
        header.size,
        header.record_count,
        as_time(header.base_timestamp) or "none",
        as_time(header.max_timestamp) or "none",
        _codec(header),
        "" if header.producer_id < 0 else f"{header.producer_id}:{header.producer_epoch}{sequence}",
        header.leader_epoch,
        _marker(batch) or " ".join(_flags(header)),
        " ",
    )


def _document(path: Path, batch: InspectedBatch, decode: InternalDecoder | None, records: bool) -> dict[str, Any]:
    header = batch.header
    row: dict[str, Any] = {"file": str(path), "position": batch.position, "valid": not batch.problem}
    if batch.problem:
        row["problem"] = batch.problem
    if header is not None:
        row |= {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "size": header.size,
            "record_count": header.record_count,
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "codec": _codec(header),
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "leader_epoch": header.leader_epoch,
            "flags": _flags(header),
            "crc": header.crc,
        }
        if header.is_control:
            row["marker"] = _marker(batch)
    if records:
        row["records"] = [_record_document(record, decode) for record in _records(batch)]
    return row


def _record_document(record: Record, decode: InternalDecoder | None) -> dict[str, Any]:
    decoded = decode(record.key, record.value) if decode else None
    key, value = decoded or (_text(record.key), _text(record.value))
    headers = {name: _text(given) for name, given in record.headers}
    return {"offset": record.offset, "timestamp": record.timestamp, "key": key, "value": value, "headers": headers}


def _records(batch: InspectedBatch) -> list[Record]:
    """The records of a sound batch; none of a marker, nor of one that cannot be decoded."""
    if batch.header is None or batch.data is None or batch.problem or batch.header.is_control:
        return []
    try:
        return decode_batch(batch.data, 0, batch.header)
    except CorruptBatch:
        return []


def _record_line(record: Record, decode: InternalDecoder | None) -> str:
    decoded = decode(record.key, record.value) if decode else None
    if decoded is not None:
        key, value = (json.dumps(one, ensure_ascii=False) for one in decoded)
    else:
        key, value = repr(_text(record.key)), repr(_text(record.value))
    headers = "".join(f" {name}={_text(given)!r}" for name, given in record.headers)
    return f"{record.offset} {as_time(record.timestamp) or 'none'} {key} {value}{headers}"


def _marker(batch: InspectedBatch) -> str | None:
    """How a marker ends its transaction: `ABORT by 3`, the epoch of the coordinator that wrote it."""
    if batch.header is None or batch.data is None or batch.problem or not batch.header.is_control:
        return None
    try:
        marker = read_end_marker(batch.data, 0, batch.header)
    except CorruptBatch:
        return None
    return None if marker is None else f"{marker.control_type.name} by {marker.coordinator_epoch}"


def _codec(header: BatchHeader) -> str:
    return Codec(header.codec).name.lower() if header.codec in set(Codec) else f"codec {header.codec}"


def _flags(header: BatchHeader) -> list[str]:
    flags = {
        "append-time": header.is_log_append_time,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }
    return [name for name, is_set in flags.items() if is_set]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
