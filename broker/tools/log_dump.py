"""The files of a partition as lines for people and documents for programs: segments, and the files beside them.

Called by log_command.py for `pykafka log dump`. Transaction markers are named. Records of `__consumer_offsets` and
`__transaction_state` are decoded (in Kafka: OffsetsMessageParser, TransactionLogMessageParser). Formats are Kafka's.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.text import Text

from broker.coordinator.group_records import GroupMetadata, OffsetKey, decode_group, decode_key, decode_offset
from broker.coordinator.record_format import MalformedRecord
from broker.coordinator.transaction_records import decode_transaction, decode_transaction_key
from broker.errors import CorruptBatch, ProtocolError, PykafkaError
from broker.log.index import OFFSET_ENTRY, TIME_ENTRY
from broker.log.inspection import InspectedBatch, inspect_segment
from broker.log.producer_snapshot import decode_snapshot
from broker.protocol.consumer_protocol import decode_assignment
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from broker.records.aborted_entries import decode_aborted
from broker.records.batch import BatchHeader
from broker.records.compression import Codec
from broker.records.control import read_end_marker
from broker.records.record import Record, decode_batch
from broker.share import share_records
from broker.stored_names import number_named
from broker.tools.output import as_time, print_lines

Row = dict[str, Any]
InternalDecoder = Callable[[bytes | None, bytes | None], tuple[Any, Any] | None]
"""Documents of a key and a value. A value of None deletes what the key names. None: the record cannot be decoded."""

_COLUMNS: Final = (
    *("offsets", "position", "bytes", "records", "first timestamp", "newest timestamp"),
    *("codec", "producer", "epoch", "flags", "crc"),
)
_HEADER_FIELDS: Final = (
    *("base_offset", "last_offset", "size", "record_count", "base_timestamp", "max_timestamp"),
    *("producer_id", "producer_epoch", "base_sequence", "leader_epoch", "crc"),
)
_LINE: Final = "{:<18} {:>10} {:>9} {:>7}  {:<23}  {:<23}  {:<6}  {:<14} {:>5} {:<14}{}"


def print_segment(console: Console, path: Path, records: bool) -> None:
    """Print a line as soon as each batch is read: a segment may have a hundred thousand."""
    decode = _internal_decoder(path.absolute().parent)
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
                print_lines([f"    {_record_line(record, decode)}"])


def segment_documents(path: Path, records: bool) -> Iterator[Row]:
    decode = _internal_decoder(path.absolute().parent)
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


def _document(path: Path, batch: InspectedBatch, decode: InternalDecoder | None, records: bool) -> Row:
    header = batch.header
    row: Row = {"file": str(path), "position": batch.position, "valid": not batch.problem}
    if batch.problem:
        row["problem"] = batch.problem
    if header is not None:
        row |= {name: getattr(header, name) for name in _HEADER_FIELDS}
        row |= {"codec": _codec(header), "flags": _flags(header)}
        if header.is_control:
            row["marker"] = _marker(batch)
    if records:
        row["records"] = [_record_document(record, decode) for record in _records(batch)]
    return row


def _record_document(record: Record, decode: InternalDecoder | None) -> Row:
    decoded = decode(record.key, record.value) if decode else None
    key, value = decoded or (_text(record.key), _text(record.value))
    headers = {name: _text(given) for name, given in record.headers}
    return {"offset": record.offset, "timestamp": record.timestamp, "key": key, "value": value, "headers": headers}


def _records(batch: InspectedBatch) -> list[Record]:
    """The records of a valid batch. None of a control batch, nor of one that cannot be decoded."""
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
    """`ABORT by 3` for a transaction marker, with the epoch of the coordinator that wrote it."""
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


# --- records of the internal topics ----------------------------------------------------------------------------------


def _internal_decoder(partition: Path) -> InternalDecoder | None:
    """The decoder for a partition's directory, if the partition is of an internal topic."""
    topic = partition.name.rpartition("-")[0]
    return {
        GROUP_OFFSETS_TOPIC: _decode_group_record,
        TRANSACTION_STATE_TOPIC: _decode_transaction_record,
        SHARE_STATE_TOPIC: _decode_share_record,
    }.get(topic)


def _decode_share_record(key: bytes | None, value: bytes | None) -> tuple[Any, Any] | None:
    try:
        named = share_records.decode_key(key or b"")
        if named is None:
            return None
        of, is_snapshot = named
        decode = share_records.decode_snapshot if is_snapshot else share_records.decode_update
        found = None if value is None else decode(value)
    except MalformedRecord:
        return None
    document = {"type": "snapshot" if is_snapshot else "update", **of._asdict(), "topic_id": str(of.topic_id)}
    if found is None:
        return document, None
    return document, {**found._asdict(), "state_batches": [batch._asdict() for batch in found.state_batches]}


def _decode_group_record(key: bytes | None, value: bytes | None) -> tuple[Any, Any] | None:
    try:
        named = decode_key(key or b"")
        if named is None:
            return None
        if isinstance(named, OffsetKey):
            committed = None if value is None else decode_offset(value)._asdict()
            return {"type": "offset", **named._asdict()}, committed
        stored = None if value is None else _group(decode_group(value))
        return {"type": "group", **named._asdict()}, stored
    except MalformedRecord:
        return None


def _group(group: GroupMetadata) -> Row:
    row = dataclasses.asdict(group)
    for member in row["members"]:
        del member["subscription"]
        member["assignment"] = _assignment(group.protocol_type, member["assignment"])
    return row


def _assignment(protocol_type: str, data: bytes) -> list[str] | str:
    if protocol_type == "consumer":
        try:
            return [str(tp) for tp in decode_assignment(data)]
        except ProtocolError:
            pass
    return data.hex()


def _decode_transaction_record(key: bytes | None, value: bytes | None) -> tuple[Any, Any] | None:
    try:
        name = decode_transaction_key(key or b"")
        if name is None:
            return None
        if value is None:
            return {"transactional_id": name}, None
        found = decode_transaction(value)
    except MalformedRecord:
        return None
    return {"transactional_id": name}, {
        "state": found.state.title,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "last_update_ms": found.last_update_ms,
        "partitions": [str(tp) for tp in sorted(found.partitions)],
    }


# --- files beside a segment ------------------------------------------------------------------------------------------


def side_files(partition: Path, *, only: frozenset[str] | None = None) -> list[Path]:
    """The side files in a partition's directory with the suffixes `only`, in the order of their offsets."""
    wanted = SIDE_FILES.keys() if only is None else only
    return sorted(path for path in partition.iterdir() if path.suffix in wanted and number_named(path.stem) is not None)


def side_file_rows(path: Path) -> list[Row]:
    """The entries of a side file. Raises PykafkaError if it cannot be read."""
    try:
        return list(SIDE_FILES[path.suffix](path))
    except (ValueError, struct.error) as error:
        raise PykafkaError(f"{path}: {error}") from None


def _offset_index(path: Path) -> Iterator[Row]:
    base = _base(path)
    for relative, position in OFFSET_ENTRY.iter_unpack(path.read_bytes()):
        yield {"offset": base + relative, "position": position}


def _time_index(path: Path) -> Iterator[Row]:
    base = _base(path)
    for timestamp, relative in TIME_ENTRY.iter_unpack(path.read_bytes()):
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
    base = number_named(path.stem)
    if base is None:
        raise ValueError("its name is not the offset that its segment begins at")
    return base


SIDE_FILES: Final[dict[str, Callable[[Path], Iterator[Row]]]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _aborted,
    ".snapshot": _snapshot,
}
