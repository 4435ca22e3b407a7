"""Upserts without Spark and broker: a topic of events with keys, real tables, and a dict that obeys each event.

An `UpsertTopic` is what producers wrote; several worlds may load it. A world loads as load.py does, and its table must
hold what the topic's `rows` say.
"""

from __future__ import annotations

import itertools
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.change_files import table_layout
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.destination import Destination
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.upsert import Upsert
from tests.support.table_harness import DeltaWorld, IcebergWorld, TableWorld

ROW = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
SOURCE = pa.schema(
    [
        ("key", pa.int64()),
        ("value", ROW),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
BY_ID = Upsert(("id",))
_counter = itertools.count()


@dataclass
class UpsertTopic:
    """Partitions of events (key, name); the name None deletes."""

    partitions: int = 2
    name: str = "customers"
    key_type: pa.DataType = field(default_factory=pa.int64)
    key_of: Callable[[int], Any] = int
    """The value of the key's type for a number."""
    events: dict[TopicPartition, list[tuple[int, str | None]]] = field(default_factory=dict)

    def send(self, key: int, name: str | None, partition: int | None = None) -> None:
        tp = TopicPartition(self.name, key % self.partitions if partition is None else partition)
        self.events.setdefault(tp, []).append((key, name))

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {tp: len(events) for tp, events in self.events.items()}

    @property
    def schema(self) -> pa.Schema:
        """Of the records, as they are read."""
        row = pa.struct([("id", self.key_type), *list(ROW)[1:]])
        return SOURCE.set(0, pa.field("key", self.key_type)).set(1, pa.field("value", row))

    def rows(self, ends: dict[TopicPartition, int] | None = None) -> dict[Any, str]:
        """Key → name after every event up to `ends`; a key keeps to its partition."""
        found: dict[Any, str] = {}
        for tp, events in self.events.items():
            for number, name in events[: (ends or self.ends).get(tp, 0)]:
                key = self.key_of(number)
                if name is None:
                    found.pop(key, None)
                else:
                    found[key] = name
        return found

    def records(self, range_: LoadRange) -> pa.RecordBatch:
        events = self.events[range_.tp][range_.start : range_.end]
        rows: list[dict[str, Any]] = [
            {
                "key": self.key_of(key),
                "value": None if name is None else {"id": self.key_of(key), "name": name, "tags": [name, None]},
                "topic": range_.topic,
                "partition": range_.partition,
                "offset": offset,
                "timestamp": offset,
            }
            for offset, (key, name) in enumerate(events, range_.start)
        ]
        return pa.RecordBatch.from_pylist(rows, self.schema)


class UpsertWorld(TableWorld):
    """What a world of upserts adds to one of a kind of table."""

    source: UpsertTopic
    upsert: Upsert | None = BY_ID
    partition_by: tuple[str, ...] = ()
    most: int | None = None
    """At most so many offsets of each partition in one load."""

    def plan(self, site: Destination) -> LoadRecord | None:
        self.ends.clear()
        self.ends.update(self.source.ends)
        record = super().plan(site)
        if record is None:
            return None
        ranges = tuple(replace(one, end=min(one.end, one.start + (self.most or one.size))) for one in record.ranges)
        return replace(record, upsert=self.upsert, ranges=ranges, partition_by=self.partition_by)

    def write(self, site: Destination, record: LoadRecord, place: str) -> tuple[LoadRecord, list[WrittenFile]]:
        """What write.py does, with a task for every range."""
        schema = self.source.schema
        layout = FileLayout(schema, TableColumns.of((), schema))
        self.layout = site.file_layout(record, table_layout(record, layout))
        files: list[WrittenFile] = []
        for range in record.ranges:
            writer = FileWriter(layout, site.task_output(place))
            writer.write(self.source.records(range))
            files += writer.close()
        site.gather(place, files)
        sizes = {file.name: file.size for file in files}
        return record.completed({range.tp: range.size for range in record.ranges}, sizes), files

    def table_rows(self) -> list[dict[str, Any]]:
        """All rows of the table, with all columns."""
        raise NotImplementedError

    def append_foreign(self, key: int) -> None:
        """Another program adds a row with this key."""
        raise NotImplementedError

    def forget(self) -> None:
        """Another program cleans the table of all older versions."""
        raise NotImplementedError

    def meddled(self, meddle: Callable[[], None]) -> Any:
        """A context in which `meddle` is called right before each commit of a load."""
        raise NotImplementedError

    def names(self) -> dict[Any, str]:
        """Key → name in the table, of which each key may be there once."""
        rows = self.table_rows()
        found = {row["id"]: row["name"] for row in rows}
        assert len(found) == len(rows)
        assert all(row["tags"] == [row["name"], None] for row in rows)
        return found


class UpsertIntoDelta(UpsertWorld, DeltaWorld):
    """Upserts into a Delta table."""

    def __init__(self, root: Path, source: UpsertTopic, name: str | None = None) -> None:
        number = next(_counter)
        super().__init__(open_storage(str(root / (name or f"upsert-{number}"))), f"group-{name or number}")
        self.source = source

    def table_rows(self) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(self.output.url):
            return []
        rows: list[dict[str, Any]] = DeltaTable(self.output.url).to_pyarrow_table().to_pylist()
        return rows

    def append_foreign(self, key: int) -> None:
        write_deltalake(self.output.url, _foreign(key), mode="append", schema_mode="merge")

    def forget(self) -> None:
        DeltaTable(self.output.url).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        for name in self.output.names(""):  # directories that it leaves empty
            if not name.startswith("_") and not self.output.data_files(name):
                self.output.remove(name)

    @contextmanager
    def meddled(self, meddle: Callable[[], None]) -> Iterator[None]:
        merge = DeltaCommitLog._merge

        def late(log: DeltaCommitLog, table: DeltaTable, record: LoadRecord, changes: Any) -> None:
            meddle()
            merge(log, table, record, changes)

        with unittest.mock.patch.object(DeltaCommitLog, "_merge", late):
            yield


class UpsertIntoIceberg(UpsertWorld, IcebergWorld):
    """Upserts into an Iceberg table of a catalog that `add_catalog` has configured."""

    def __init__(self, catalog: str, source: UpsertTopic, name: str | None = None) -> None:
        number = next(_counter)
        super().__init__(catalog, f"group-{name or number}", name=f"iceberg:lake.{name or f'upsert_{number}'}")
        self.source = source

    def table_rows(self) -> list[dict[str, Any]]:
        if not open_catalog(self.catalog).table_exists(self.target.iceberg_name.identifier):
            return []
        rows: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return rows

    def append_foreign(self, key: int) -> None:
        table = self.table()
        table.append(_foreign(key).cast(table.scan(selected_fields=("id", "name", "tags")).projection().as_arrow()))

    def forget(self) -> None:
        table = self.table()
        head = table.metadata.current_snapshot_id
        others = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id != head]
        table.maintenance.expire_snapshots().by_ids(others).commit()

    @contextmanager
    def meddled(self, meddle: Callable[[], None]) -> Iterator[None]:
        commit = IcebergCommitLog._commit

        def late(log: IcebergCommitLog, *arguments: Any) -> None:
            meddle()
            commit(log, *arguments)

        with unittest.mock.patch.object(IcebergCommitLog, "_commit", late):
            yield

    def leftovers(self) -> list[str]:
        return super().leftovers() if self.table_rows() else []


def _foreign(key: int) -> pa.Table:
    return pa.table({"id": [key], "name": ["foreign"], "tags": [["foreign", None]]})


def send_all(source: UpsertTopic, events: Sequence[tuple[int, str | None]]) -> None:
    for key, name in events:
        source.send(key, name)
