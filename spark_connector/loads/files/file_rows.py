"""Reads the topic, partition and offset of every row in a load's files, or counts rows that have none.

parquet and avro are read here, part by part, without Spark; Spark reads orc and json. Columns that a partitioned layout
keeps in directory names (`topic=flights/partition=3/part-…`) are taken from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from spark_connector.loads.destination import NewSession, Offsets, RowOffsets
from spark_connector.loads.footers import pages_are_whole
from spark_connector.loads.path_values import values_in_path
from spark_connector.outages import is_out_of_reach, summary

_FILES_AT_ONCE = 4
_POSITION = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_AVRO_TYPES = {"topic": "string", "partition": "int", "offset": "long"}
_AVRO_ROWS = 10_000  # of one part

T = TypeVar("T")


class Faults(NamedTuple):
    """What is wrong with files, and which of them cannot be reached, in words."""

    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class _OutOfReach(str):
    """Says why a file cannot be reached; any other text says what is wrong with it."""


def read_offsets(
    storage: Storage, directory: str, names: Sequence[str], format: str, session: NewSession
) -> tuple[dict[TopicPartition, Offsets], Faults]:
    """The sorted offsets of every partition in the files `names` below `directory`, and what could not be read.

    `session` gives the Spark session for orc and json; it is not called for other formats.
    """
    found, said = RowOffsets(), list[str]()
    if format in _READERS:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            for part in pool.map(lambda name: _read_file(storage, directory, name, format), names):
                if isinstance(part, RowOffsets):
                    found.extend(part)
                else:
                    said.append(part)
    elif names:
        try:
            frame = session().read.format(format).schema("topic string, partition int, offset long")
            for run in _runs(frame.load(storage.pattern_of(directory))).toArrow().to_pylist():
                if None in run.values():
                    raise ValueError("a row has no topic, partition or offset")
                offsets = np.arange(run["first"], run["first"] + run["length"], dtype=np.int64)
                found.append(TopicPartition(run["topic"], run["partition"]), np.repeat(offsets, run["copies"]))
        except Exception as error:  # Spark's errors have many classes
            said.append(_why_unread(storage, directory, format, error))
    return found.sorted(), _faults(said)


def _why_unread(storage: Storage, directory: str, format: str, error: Exception) -> str:
    """What an error of Spark says about the files."""
    told = f"{storage.url_of(directory)} cannot be read as {format}: {summary(str(error))}"
    return _OutOfReach(told) if is_out_of_reach(summary(str(error))) else told


def _faults(said: Sequence[str]) -> Faults:
    unread = tuple(text for text in said if isinstance(text, _OutOfReach))
    return Faults(tuple(text for text in said if not isinstance(text, _OutOfReach)), unread)


def count_rows(
    storage: Storage, directory: str, names: Sequence[str], format: str, session: NewSession
) -> tuple[int, Faults]:
    """The number of rows in files without the columns that identify rows, and what could not be read. `session` as in
    `read_offsets`."""
    if format not in _COUNTERS:
        return _counted(storage, directory, format, session) if names else (0, Faults())
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        read = _COUNTERS[format]
        counts = list(pool.map(lambda name: _checked(storage, directory, name, format, read), names))
    return sum(one for one in counts if isinstance(one, int)), _faults([one for one in counts if isinstance(one, str)])


def _counted(storage: Storage, directory: str, format: str, session: NewSession) -> tuple[int, Faults]:
    """By Spark; of json it counts the lines."""
    try:
        reader = session().read.format("text" if format == "json" else format)
        return reader.load(storage.pattern_of(directory)).count(), Faults()
    except Exception as error:  # Spark's errors have many classes
        return 0, _faults([_why_unread(storage, directory, format, error)])


def _runs(rows: Any) -> Any:
    """A data frame of the runs of offsets with as many rows each: topic, partition, first, length, copies.

    Spark's driver could not hold every row of a large load. In SQL, because PySpark's `mapInArrow` needs pandas.
    """
    number = "row_number() OVER (PARTITION BY topic, partition, count ORDER BY offset)"
    numbered = rows.groupBy(*_POSITION.names).count().selectExpr("*", f"offset - {number} AS run")
    runs = numbered.groupBy("topic", "partition", "count", "run").agg({"offset": "min", "*": "count"})
    return runs.selectExpr("topic", "partition", "`min(offset)` first", "`count(1)` length", "count copies")


def _read_file(storage: Storage, directory: str, name: str, format: str) -> RowOffsets | str:
    """The rows of one file, or what is wrong with it."""

    def read(file: Any) -> RowOffsets:
        found = RowOffsets()
        for part in _READERS[format](file):
            found.add(_with_path_columns(part, values_in_path(name)))
        return found

    return _checked(storage, directory, name, format, read)


def _checked(storage: Storage, directory: str, name: str, format: str, read: Callable[[Any], T]) -> T | str:
    """What `read` finds in the open file, or what is wrong with the file."""
    path = f"{directory}/{name}"
    try:
        if not storage.agrees_with_checksums(path):
            sums = f".{name.rpartition('/')[2]}.crc"
            return f"{name} is damaged: its bytes do not agree with the checksums beside it ({sums})"
        if not pages_are_whole(storage, path):
            return f"{name} is damaged: its bytes do not agree with the checksums in it"
        with storage.open_input(path) as file:
            return read(file)
    except FileNotFoundError:
        return f"{name} is missing"
    except Exception as error:  # whatever a decoder raises for damaged bytes
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        told = f"{name} cannot be read as {format}: {reason}"
        return _OutOfReach(told) if is_out_of_reach(error) else told


def _parquet(file: Any) -> Iterator[pa.Table]:
    reader = pyarrow.parquet.ParquetFile(file)
    for batch in reader.iter_batches(columns=_present(reader.schema_arrow.names)):
        yield pa.Table.from_batches([batch])


def _avro(file: Any) -> Iterator[pa.Table]:
    schema: Any = fastavro.reader(file).writer_schema
    columns = _present([field["name"] for field in schema["fields"]])
    fields = [{"name": column, "type": ["null", _AVRO_TYPES[column]]} for column in columns]
    file.seek(0)
    rows = iter(fastavro.reader(file, {"type": "record", "name": schema["name"], "fields": fields}))
    wanted = pa.schema([_POSITION.field(column) for column in columns])
    while part := list(itertools.islice(rows, _AVRO_ROWS)):
        yield pa.Table.from_pylist(part, schema=wanted)


_READERS = {"parquet": _parquet, "avro": _avro}
_COUNTERS: dict[str, Callable[[Any], int]] = {
    "parquet": lambda file: int(pyarrow.parquet.read_metadata(file).num_rows),
    "avro": lambda file: sum(block.num_records for block in fastavro.block_reader(file)),
}


def _present(names: list[str]) -> list[str]:
    return [name for name in _POSITION.names if name in names]


def _with_path_columns(part: pa.Table, given: Mapping[str, str | None]) -> pa.Table:
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
