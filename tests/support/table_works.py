"""What the rounds of table_kills.py work on: a topic, a table, the job that is struck, and the audit of the table.

One `Work` per round, all its names its own. The auditors are deltalake, pyiceberg and pyarrow, not the product.
`Sites` are the places of tables that need a server.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import functools
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import pyarrow as pa
import pyarrow.dataset
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from broker.storage.storage import open_storage
from spark_connector.history_and_tail.fitted_read import fit_read
from spark_connector.history_and_tail.readers import HistoryBatchReader
from spark_connector.options.history_options import parse_history
from spark_connector.options.read_options import Mode
from tests.support.fake_s3 import FakeS3
from tests.support.record_audit import Row, audit_rows
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
CATALOG = "kills"
NAMESPACE, TABLE, BAD = "lake", "killed", "bad"
BAD_SHARE = 0.1
KEYS, DELETES = 50, 0.1

Tell = Callable[[str], None]
Job = Callable[[Mapping[str, Any], Tell], None]


# --- the jobs, which run in the processes that are killed


def _no_spark() -> SparkSession:
    raise AssertionError("so small a load needs no Spark")


def load(arguments: Mapping[str, Any], tell: Tell) -> None:
    """One load of what is new."""
    from spark_connector.load import run_load
    from spark_connector.loads.request import LoadRequest, Target

    request = LoadRequest.build(Target(**arguments["target"]), **arguments["request"])
    run_load(request, _no_spark, lambda phase, _record: tell(phase))


def compact(arguments: Mapping[str, Any], tell: Tell) -> None:
    """One compaction, of all loads however young."""
    from spark_connector.loads.request import Target
    from spark_connector.maintenance import compact as run_compaction

    tell("begin")
    run_compaction(Target(**arguments["target"]).check(), rewindable="0")


def jobs() -> dict[str, Job]:
    """Every job by its name."""
    return {"load": load, "compact": compact}


# --- the places


class Site(enum.Enum):
    """Where the table is."""

    DIRECTORY = "directory"
    DELTA = "delta"
    DELTA_ON_S3 = "delta-s3"
    ICEBERG = "iceberg"


class Sites:
    """The servers that places need, started with their first use."""

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()

    @functools.cached_property
    def s3(self) -> FakeS3:
        return self._running.enter_context(FakeS3())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()


class Audit(enum.Enum):
    """How much may be asked of a table."""

    MEANWHILE = "after a blow"
    """Rows may be missing, none doubled."""
    WHOLE = "after a load that ended well"
    SWEPT = "after the load behind it"
    """No file lies there that is no part of the table."""


@dataclass(frozen=True)
class Cell:
    """What is struck, and where it writes."""

    site: Site
    name: str

    def __str__(self) -> str:
        return f"{self.site.value}-{self.name}"

    def work(self, bootstrap: str, sites: Sites, directory: Path, seed: int) -> Work:
        """New work of this cell. Its topic is named by `directory`."""
        return _WORKS[self.name](self, bootstrap, sites, directory, seed)


class Work(abc.ABC):
    """One round's topic and table."""

    loading = "load"
    """The job that brings what is new into the table."""
    struck = "load"
    """The job that is killed."""
    steps: tuple[str, ...] = ("plan", "write", "write", "commit", "commit", "done")
    """What it tells of, to strike there or after; twice what matters more."""
    first_loads = 0
    """So many loads there must be before the first blow."""

    def __init__(self, cell: Cell, bootstrap: str, sites: Sites, directory: Path, seed: int) -> None:
        self.cell, self.bootstrap, self.sites, self.directory = cell, bootstrap, sites, directory
        self.dice = random.Random(seed)
        self.topic = f"{cell}-{directory.name}"
        self.group = self.topic
        if cell.site is Site.ICEBERG:
            (directory / "warehouse").mkdir()
            self.catalog.create_namespace(NAMESPACE)

    @property
    def catalog(self) -> Catalog:
        """As a reader opens it."""
        return load_catalog(CATALOG, **self._catalog_settings())

    def _catalog_settings(self) -> dict[str, str]:
        uri, warehouse = f"sqlite:///{self.directory}/catalog.db", f"file://{self.directory}/warehouse"
        return {"type": "sql", "uri": uri, "warehouse": warehouse}

    def target(self) -> dict[str, Any]:
        """Arguments of Target."""
        if self.cell.site is Site.ICEBERG:
            return {"to": f"iceberg:{NAMESPACE}.{TABLE}", "group": self.group, "catalog": CATALOG}
        if self.cell.site is Site.DELTA_ON_S3:
            options = self.sites.s3.options
            return {"to": self._url, "group": self.group, "format": "delta", "storage_options": options}
        format = {Site.DIRECTORY: "parquet", Site.DELTA: "delta"}[self.cell.site]
        return {"to": str(self.directory / TABLE), "group": self.group, "format": format}

    @property
    def _url(self) -> str:
        return f"s3://lake/{self.topic}"

    def request(self) -> dict[str, Any]:
        """Arguments of LoadRequest.build."""
        return {"bootstrap_servers": self.bootstrap, "topic": self.topic, "publish_offsets": False}

    def arguments(self) -> dict[str, Any]:
        """What the job is given, the same for every run of the round."""
        return {"target": self.target(), "request": self.request()}

    def environment(self) -> dict[str, str]:
        """What its process needs beside."""
        if self.cell.site is not Site.ICEBERG:
            return {}
        settings = self._catalog_settings()
        return {f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name.upper()}": value for name, value in settings.items()}

    @abc.abstractmethod
    def produce(self) -> None:
        """More for the job to do."""

    def look(self) -> list[str]:
        """What is wrong at this very moment, while a job runs; empty when nothing is."""
        return []

    @abc.abstractmethod
    def audit(self, audit: Audit) -> list[str]:
        """What is wrong with the table; empty when nothing is."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what the work holds."""

    # what a reader finds

    def rows(self, name: str = TABLE) -> pa.Table | None:
        """Every row that a foreign reader finds in the table or another one; None while there is none."""
        if self.cell.site is Site.DIRECTORY:
            root = self.directory / name
            if not list(root.glob("load=*")):
                return None
            return pyarrow.dataset.dataset(root, format="parquet", partitioning="hive").to_table()
        if self.cell.site is Site.ICEBERG:
            identifier = (NAMESPACE, name)
            return (
                self.catalog.load_table(identifier).scan().to_arrow() if self.catalog.table_exists(identifier) else None
            )
        if self.cell.site is Site.DELTA_ON_S3:
            options = open_storage(self._url, self.sites.s3.options).object_store_options
            if not DeltaTable.is_deltatable(self._url, storage_options=options):
                return None
            return DeltaTable(self._url, storage_options=options).to_pyarrow_table()
        url = str(self.directory / name)
        return DeltaTable(url).to_pyarrow_table() if DeltaTable.is_deltatable(url) else None

    def strays(self) -> list[str]:
        """Data files that no snapshot names."""
        if self.cell.site is Site.ICEBERG:
            named = self.catalog.load_table((NAMESPACE, TABLE)).inspect.all_files()["file_path"].to_pylist()
            there = {f"file://{path}" for path in (self.directory / "warehouse").rglob("*.parquet")}
            return sorted(there - set(named))
        if self.cell.site is Site.DELTA_ON_S3:
            options = open_storage(self._url, self.sites.s3.options).object_store_options
            names = {f"lake/{self.topic}/{path}" for path in _files_of_delta(self._url, options)}
            return sorted(
                {key for key in self.sites.s3.keys(f"lake/{self.topic}/") if key.endswith(".parquet")} - names
            )
        root = self.directory / TABLE
        found = {path for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}
        if self.cell.site is Site.DIRECTORY:
            return sorted(
                str(path.relative_to(root)) for path in found if not path.relative_to(root).parts[0].startswith("load=")
            )
        known = {root / path for path in _files_of_delta(str(root))}
        return sorted(str(path.relative_to(root)) for path in found - known)


def _files_of_delta(url: str, options: dict[str, str] | None = None) -> set[str]:
    """Of every version: an older one may still be read."""
    table = DeltaTable(url, storage_options=options)
    paths = set[str]()
    for version in range(table.version() + 1):
        table.load_as_version(version)
        paths |= {str(path) for path in pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()}
    return paths


# --- the works


class _Append(Work):
    """Records become rows, one each."""

    @functools.cached_property
    def data(self) -> TopicData:
        return TopicData(self.bootstrap, self.topic, partitions=PARTITIONS)

    def produce(self) -> None:
        self.data.produce(self.dice.randrange(20, 400))

    def audit(self, audit: Audit) -> list[str]:
        table = self.rows()
        names = ("topic", "partition", "offset", "key", "value")
        rows = [] if table is None else list(map(Row, *(table[name].to_pylist() for name in names)))
        complete = audit is not Audit.MEANWHILE
        problems = audit_rows(rows, self.topic, self.data.ends, TopicData.record, complete=complete)
        if audit is Audit.SWEPT and (strays := self.strays()):
            problems.append(f"{len(strays)} files are no part of the table: {strays[:3]}")
        return problems


class _Compaction(_Append):
    """Loads follow each other; what is killed is a compaction."""

    struck = "compact"
    steps = ("begin",)
    first_loads = 3


class _History(_Append):
    """What is read is the table with the rest of the topic, at any moment."""

    first_loads = 1

    def look(self) -> list[str]:
        """Each record once, without Spark: planned here as Spark's driver does, read as its tasks do."""
        to = self.target()["to"]
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "history": to if self.cell.site is Site.ICEBERG else f"delta:{to}",
            "group": self.group,
            **({"catalog": CATALOG} if self.cell.site is Site.ICEBERG else {}),
        }
        with mock.patch.dict(os.environ, self.environment()):
            history = parse_history(options)
            assert history is not None
            fitted = fit_read(history, Mode.ANY)
            reader = HistoryBatchReader(fitted)
            batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        rows = pa.Table.from_batches(batches, fitted.schema)
        names = ("topic", "partition", "offset", "key", "value")
        found = list(map(Row, *(rows[name].to_pylist() for name in names)))
        return audit_rows(found, self.topic, self.data.ends, TopicData.record)

    def audit(self, audit: Audit) -> list[str]:
        return super().audit(audit) + self.look()


class _Documents(Work):
    """JSON of numbered records, which `_send` writes."""

    def __init__(self, cell: Cell, bootstrap: str, sites: Sites, directory: Path, seed: int) -> None:
        super().__init__(cell, bootstrap, sites, directory, seed)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._ends = [0] * PARTITIONS
        self._number = 0

    @abc.abstractmethod
    def _send(self) -> None:
        """One record, the next of `_number`."""

    def produce(self) -> None:
        for _ in range(self.dice.randrange(20, 400)):
            self._number += 1
            self._send()
        assert self._producer.flush(30) == 0

    def _write(self, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Gives the offset: nobody else writes here."""
        self._producer.produce(self.topic, value, key, partition)
        self._ends[partition] += 1
        return self._ends[partition] - 1


class _DeadLetters(_Documents):
    """Documents become rows, and what is none becomes a row of another table; each record once."""

    def __init__(self, cell: Cell, bootstrap: str, sites: Sites, directory: Path, seed: int) -> None:
        super().__init__(cell, bootstrap, sites, directory, seed)
        self._good = dict[tuple[int, int], int]()
        self._bad = dict[tuple[int, int], bytes]()

    def request(self) -> dict[str, Any]:
        bad = f"iceberg:{NAMESPACE}.{BAD}" if self.cell.site is Site.ICEBERG else f"delta:{self.directory / BAD}"
        options = {"valueFormat": "json", "valueSchema": "n BIGINT"}
        return {
            **super().request(),
            "options": options,
            "columns": "value.n,topic,partition,offset",
            "dead_letters": bad,
        }

    def _send(self) -> None:
        partition, is_bad = self.dice.randrange(PARTITIONS), self.dice.random() < BAD_SHARE
        value = b"no JSON %d" % self._number if is_bad else b'{"n": %d}' % self._number
        place = (partition, self._write(partition, None, value))
        if is_bad:
            self._bad[place] = value
        else:
            self._good[place] = self._number

    def audit(self, audit: Audit) -> list[str]:
        """What a killed load has left in the table of bad records is settled by the next load, not before."""
        problems = _compared("rows", self.rows(), "n", self._good, complete=audit is not Audit.MEANWHILE)
        if audit is not Audit.MEANWHILE:
            problems += _compared("dead letters", self.rows(BAD), "value", self._bad, complete=True)
        return problems


class _Upsert(_Documents):
    """The last document of each key is its row; a record without a value deletes it."""

    def __init__(self, cell: Cell, bootstrap: str, sites: Sites, directory: Path, seed: int) -> None:
        super().__init__(cell, bootstrap, sites, directory, seed)
        self._model = dict[int, int]()

    def request(self) -> dict[str, Any]:
        options = {"valueFormat": "json", "valueSchema": "id BIGINT, n BIGINT"}
        options |= {"keyFormat": "json", "keySchema": "id BIGINT"}
        return {**super().request(), "options": options, "mode": "upsert", "key": "id"}

    def _send(self) -> None:
        id = self.dice.randrange(KEYS)
        deletes = self.dice.random() < DELETES
        value = None if deletes else b'{"id": %d, "n": %d}' % (id, self._number)
        self._write(id % PARTITIONS, b'{"id": %d}' % id, value)
        if deletes:
            self._model.pop(id, None)
        else:
            self._model[id] = self._number

    def audit(self, audit: Audit) -> list[str]:
        table = self.rows()
        ids = [] if table is None else table["id"].to_pylist()
        if len(set(ids)) < len(ids):
            return [f"{len(ids) - len(set(ids))} keys have two rows"]
        found = {} if table is None else dict(zip(ids, table["n"].to_pylist(), strict=True))
        if audit is Audit.MEANWHILE or found == self._model:
            return []
        wrong = sorted(key for key in found.keys() | self._model.keys() if found.get(key) != self._model.get(key))
        return [f"{len(wrong)} keys differ: {[(key, found.get(key), self._model.get(key)) for key in wrong[:3]]}"]


def _compared(
    what: str, table: pa.Table | None, column: str, wanted: Mapping[tuple[int, int], Any], *, complete: bool
) -> list[str]:
    """Rows by (partition, offset) against what was produced there."""
    names = ("partition", "offset", column)
    rows = [] if table is None else list(zip(*(table[name].to_pylist() for name in names), strict=True))
    found = {(partition, offset): value for partition, offset, value in rows}
    problems = [f"{len(rows) - len(found)} {what} are doubled"] if len(found) < len(rows) else []
    if complete and (missing := wanted.keys() - found.keys()):
        problems.append(f"{len(missing)} {what} are missing: {sorted(missing)[:3]}")
    if strange := [place for place, value in found.items() if wanted.get(place) != value]:
        problems.append(f"{len(strange)} {what} are strange: {sorted(strange)[:3]}")
    return problems


_WORKS: dict[str, type[Work]] = {
    "append": _Append,
    "compaction": _Compaction,
    "dead-letters": _DeadLetters,
    "history": _History,
    "upsert": _Upsert,
}

CELLS = (
    Cell(Site.DIRECTORY, "append"),
    Cell(Site.DELTA, "append"),
    Cell(Site.DELTA_ON_S3, "append"),
    Cell(Site.ICEBERG, "append"),
    Cell(Site.DELTA, "compaction"),
    Cell(Site.ICEBERG, "compaction"),
    Cell(Site.DELTA, "dead-letters"),
    Cell(Site.ICEBERG, "dead-letters"),
    Cell(Site.DELTA, "history"),
    Cell(Site.ICEBERG, "history"),
    Cell(Site.DELTA, "upsert"),
    Cell(Site.ICEBERG, "upsert"),
)
