"""Which records lie in a load's files: topic, partition and offset of every row, nothing else, without Spark.

Used by loads/file_holdings.py and loads/delta_rows.py. A file is read in parts and gives its offsets as arrays, one
list per partition, in no order. What cannot be read raises `UnreadableFile` naming the file. Columns that a partitioned
layout keeps in the names of directories (`topic=flights/partition=3/part-…`) are taken from there.

On a local disk Hadoop leaves a checksum file beside each file (`.part-….crc`); where there is one, every byte is
checked. HDFS checks its own.
"""

from __future__ import annotations

import itertools
import posixpath
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.hadoop_codecs import decompressed
from spark_connector.storage import Storage

__all__ = ["Offsets", "UnreadableFile", "gather_offsets", "read_offsets", "sort_rows"]

Offsets = npt.NDArray[np.int64]
_Given = Mapping[str, str | None]
_File = TypeVar("_File")

_FILES_AT_ONCE = 4
_POSITION = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_AVRO_TYPES = {"topic": "string", "partition": "int", "offset": "long"}
_AVRO_ROWS = 10_000  # of one part
_JSON_BLOCK = 64 << 20  # bytes; a line must fit
_CRC_MAGIC = b"crc\0"
_CRC_READ = 4 << 20  # bytes


class UnreadableFile(PykafkaError):
    """A file is not what its name says; the text names it."""


def gather_offsets(
    read: Callable[[_File], dict[TopicPartition, list[Offsets]]], files: Iterable[_File]
) -> tuple[dict[TopicPartition, Offsets], list[str]]:
    """The sorted offsets of every partition that the files hold, some read at once, and the texts of UnreadableFile."""
    held: dict[TopicPartition, list[Offsets]] = {}
    problems = []

    def attempt(file: _File) -> dict[TopicPartition, list[Offsets]] | UnreadableFile:
        try:
            return read(file)
        except UnreadableFile as error:
            return error

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for found in pool.map(attempt, files):
            if isinstance(found, UnreadableFile):
                problems.append(str(found))
                continue
            for tp, arrays in found.items():
                held.setdefault(tp, []).extend(arrays)
    return {tp: np.sort(np.concatenate(arrays)) for tp, arrays in held.items()}, problems


def read_offsets(
    storage: Storage,
    directory: str,
    name: str,
    format: str,
    *,
    given: Mapping[str, str | None] | None = None,
    keep: npt.NDArray[np.bool_] | None = None,
    strict: bool = True,
) -> dict[TopicPartition, list[Offsets]]:
    """The offsets of every row in the file `name` below `directory`. Raises UnreadableFile.

    `given`: values of columns that the file does not have; by default what its path says. `keep`: which rows count; by
    default all. A row that lacks topic, partition or offset is an error, or, without `strict`, passed over.
    """
    path = f"{directory}/{name}" if directory else name
    values = _from_path(name) if given is None else given
    offsets: dict[TopicPartition, list[Offsets]] = {}
    begin = 0
    try:
        _check_sums(storage, path)
        with storage.open_input(path) as file:
            for part in _READERS[format](file, name, values):
                end = begin + part.num_rows
                kept = part if keep is None else _filter(part, keep[begin:end])
                sort_rows(kept if strict else kept.drop_null(), offsets)
                begin = end
    except UnreadableFile:
        raise
    except FileNotFoundError as error:
        raise UnreadableFile(f"{name} is missing") from error
    except Exception as error:  # whatever a decoder makes of damaged bytes
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnreadableFile(f"{name} cannot be read as {format}: {reason}") from error
    return offsets


def _filter(part: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """`keep` may end before the rows do: those behind it count."""
    mask = np.ones(part.num_rows, np.bool_)
    mask[: len(keep)] = keep
    return part.filter(pa.array(mask))


def sort_rows(part: pa.Table, offsets: dict[TopicPartition, list[Offsets]]) -> None:
    """Sort rows (columns topic, partition, offset) into the lists of their partitions. Raises ValueError for a null."""
    if part.num_rows == 0:
        return
    topics = part.column("topic").combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    if topics.null_count or part.column("partition").null_count or part.column("offset").null_count:
        raise ValueError("a row has no topic, partition or offset")
    partitions = part.column("partition").to_numpy().astype(np.int64)
    values = part.column("offset").to_numpy().astype(np.int64)
    keys = topics.indices.to_numpy().astype(np.int64) << 32 | partitions
    for key in np.unique(keys):
        tp = TopicPartition(topics.dictionary[int(key) >> 32].as_py(), int(key) & 0xFFFFFFFF)
        offsets.setdefault(tp, []).append(values[keys == key])


def _parquet(file: Any, _name: str, given: _Given) -> Iterator[pa.Table]:
    reader = pyarrow.parquet.ParquetFile(file)
    columns = _present(reader.schema_arrow.names)
    for batch in reader.iter_batches(columns=columns):
        yield _complete(pa.Table.from_batches([batch]), given)


def _orc(file: Any, _name: str, given: _Given) -> Iterator[pa.Table]:
    reader = pyarrow.orc.ORCFile(file)
    columns = _present(reader.schema.names)
    for stripe in range(reader.nstripes):
        yield _complete(pa.Table.from_batches([reader.read_stripe(stripe, columns=columns)]), given)


def _json(file: Any, name: str, given: _Given) -> Iterator[pa.Table]:
    data = decompressed(name, file.read())
    if not data.strip():
        return
    schema = pa.schema([field for field in _POSITION if field.name not in given])
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pyarrow.json.ReadOptions(block_size=_JSON_BLOCK)
    table = pyarrow.json.read_json(pa.BufferReader(data), read_options=reading, parse_options=parsing)
    yield _complete(table, given)


def _avro(file: Any, _name: str, given: _Given) -> Iterator[pa.Table]:
    reader = fastavro.reader(file)
    schema: Any = reader.writer_schema
    columns = _present([field["name"] for field in schema["fields"]])
    fields = [{"name": column, "type": ["null", _AVRO_TYPES[column]]} for column in columns]
    file.seek(0)
    rows = iter(fastavro.reader(file, {"type": "record", "name": schema["name"], "fields": fields}))
    wanted = pa.schema([_POSITION.field(column) for column in columns])
    while part := list(itertools.islice(rows, _AVRO_ROWS)):
        yield _complete(pa.Table.from_pylist(part, schema=wanted), given)


_READERS = {"parquet": _parquet, "orc": _orc, "json": _json, "avro": _avro}


def _present(names: list[str]) -> list[str]:
    return [name for name in _POSITION.names if name in names]


def _from_path(name: str) -> dict[str, str]:
    """Columns that the names of the directories give."""
    segments = (segment.partition("=") for segment in posixpath.dirname(name).split("/"))
    return {unquote(key): unquote(value) for key, separator, value in segments if separator}


def _complete(part: pa.Table, given: _Given) -> pa.Table:
    """The three columns in their types."""
    columns = []
    for field in _POSITION:
        if field.name in part.column_names:
            columns.append(part.column(field.name).cast(field.type))
        elif field.name in given:
            value = pa.scalar(given[field.name], pa.string()).cast(field.type)
            columns.append(pa.chunked_array([pa.repeat(value, part.num_rows)]))
        else:
            raise ValueError(f"there is no column '{field.name}'")
    return pa.Table.from_arrays(columns, schema=_POSITION)


def _check_sums(storage: Storage, path: str) -> None:
    """Compare with Hadoop's checksum file, when there is one: `crc\\0`, the size of a chunk, a CRC-32 per chunk."""
    directory, name = posixpath.split(path)
    if storage.is_hdfs:
        return
    try:
        sums = storage.read(f"{directory}/.{name}.crc")
    except FileNotFoundError:
        return
    size = int.from_bytes(sums[4:8], "big")
    if sums[:4] != _CRC_MAGIC or not 0 < size <= _CRC_READ:
        return
    expected = np.frombuffer(sums, ">u4", offset=8)
    found: list[int] = []
    with storage.open_input(path) as file:
        while block := file.read(_CRC_READ // size * size):
            view = memoryview(block)
            found += [zlib.crc32(view[at : at + size]) for at in range(0, len(block), size)]
    if len(found) != len(expected) or not np.array_equal(np.array(found, np.uint32), expected):
        raise UnreadableFile(f"{name} is damaged: its bytes do not agree with the checksums beside it (.{name}.crc)")
