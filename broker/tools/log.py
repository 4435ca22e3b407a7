"""`pykafka log`: look into the files of a partition, offline (kafka-dump-log.sh).

Reads only; a broker may be running on the same directory. `dump` prints one line per batch, `check` every
inconsistency, with exit status 1 if there is one. Both take a partition's directory or a whole data directory;
`--json` prints one JSON object per line. Raises ConfigError for a directory without segments.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from broker.errors import CorruptBatch
from broker.log.consistency import Problem, check_partition
from broker.log.inspection import InspectedBatch, inspect_segment, partition_directories, segment_files
from broker.records.batch import BatchHeader
from broker.records.compression import Codec
from broker.records.record import Record, decode_batch

__all__ = ["app"]

app = typer.Typer(help="Dump and check the files of a partition, offline.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="A partition's directory, or a data directory for all in it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

_COLUMNS = (
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
_LINE = "{:<18} {:>10} {:>9} {:>7}  {:<23}  {:<23}  {:<6}  {:<14} {:>5} {:<14}{}"


@app.command()
def dump(
    directory: Directory,
    records: Annotated[bool, typer.Option("--records", help="Print the records of every batch, too.")] = False,
    as_json: Json = False,
) -> None:
    """Print every batch: offsets, timestamps, size, producer, and whether it is sound."""
    console = Console()
    for partition in partition_directories(directory):
        for path in segment_files(partition):
            if as_json:
                for batch in inspect_segment(path):
                    typer.echo(json.dumps(_as_json(path, batch, records)))
            else:
                _print_segment(console, path, records)


@app.command()
def check(
    directory: Directory,
    compacted: Annotated[bool, typer.Option("--compacted", help="Gaps between offsets are no fault.")] = False,
    as_json: Json = False,
) -> None:
    """Verify every batch and index; exit status 1 if anything is wrong."""
    partitions = partition_directories(directory)
    problems = [problem for partition in partitions for problem in check_partition(partition, compacted=compacted)]
    if as_json:
        for path, position, text in problems:
            typer.echo(json.dumps({"file": str(path), "position": position, "problem": text}))
    else:
        _print_problems(Console(soft_wrap=True), problems, len(partitions))
    if problems:
        raise typer.Exit(1)


def _print_segment(console: Console, path: Path, records: bool) -> None:
    """A line as each batch is read: a segment may have a hundred thousand."""
    console.print(Text(f"{path} ({path.stat().st_size:,} bytes)", style="bold"), soft_wrap=True)
    console.print(Text(_LINE.format(*_COLUMNS), style="dim"), soft_wrap=True)
    for batch in inspect_segment(path):
        line = _line(batch)
        if batch.problem:
            console.print(Text.assemble(line, (batch.problem, "red")), soft_wrap=True)
        else:
            console.out(f"{line}ok", highlight=False)
        if records:
            for record in _records(batch):
                console.out(f"    {_record_line(record)}", highlight=False)


def _line(batch: InspectedBatch) -> str:
    header = batch.header
    if header is None:
        return f"byte {batch.position}: "
    return _LINE.format(
        f"{header.base_offset}-{header.last_offset}",
        batch.position,
        header.size,
        header.record_count,
        _time(header.base_timestamp),
        _time(header.max_timestamp),
        _codec(header),
        "" if header.producer_id < 0 else f"{header.producer_id}:{header.producer_epoch} #{header.base_sequence}",
        header.leader_epoch,
        " ".join(_flags(header)),
        "",
    )


def _as_json(path: Path, batch: InspectedBatch, records: bool) -> dict[str, Any]:
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
    if records:
        row["records"] = [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": {name: _text(value) for name, value in record.headers},
            }
            for record in _records(batch)
        ]
    return row


def _records(batch: InspectedBatch) -> list[Record]:
    """The records of a sound batch; none of one that is not, or cannot be decoded."""
    if batch.header is None or batch.data is None or batch.problem:
        return []
    try:
        return decode_batch(batch.data, 0, batch.header)
    except CorruptBatch:
        return []


def _record_line(record: Record) -> str:
    headers = "".join(f" {name}={_text(value)!r}" for name, value in record.headers)
    return f"{record.offset} {_time(record.timestamp)} {_text(record.key)!r} {_text(record.value)!r}{headers}"


def _print_problems(console: Console, problems: list[Problem], partitions: int) -> None:
    for path, position, text in problems:
        where = f"{path}" if position is None else f"{path}, byte {position}"
        console.print(Text.assemble((where, "bold"), ": ", (text, "red")))
    if problems:
        console.print(f"{_count(len(problems), 'problem')} in {_count(partitions, 'partition')}", style="red")
    else:
        console.print(f"{_count(partitions, 'partition')}, no problem found", style="green")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _codec(header: BatchHeader) -> str:
    return Codec(header.codec).name.lower() if header.codec in set(Codec) else f"codec {header.codec}"


def _flags(header: BatchHeader) -> list[str]:
    flags = {
        "append-time": header.is_log_append_time,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }
    return [name for name, is_set in flags.items() if is_set]


def _time(ms: int) -> str:
    if ms < 0:
        return "none"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
