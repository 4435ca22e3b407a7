"""What the rounds of table_kills.py work on: a topic, a table, the job that is struck, and the audit of the table.

One `Work` per round, all its names its own. The auditors are deltalake, pyiceberg and pyarrow, not the product.
`Sites` are the places of tables that need a server.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.record_audit import Row, audit_rows
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
CATALOG = "kills"
NAMESPACE, TABLE = "lake", "kills"

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


def jobs() -> dict[str, Job]:
    """Every job by its name."""
    return {"load": load}


# --- the places


class Site(enum.Enum):
    """Where the table is."""

    DIRECTORY = "directory"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Sites:
    """The servers that places need, started with their first use."""

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()

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
    begins_loaded = False
    """Whether the table must be there before the first blow."""

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
        format = {Site.DIRECTORY: "parquet", Site.DELTA: "delta"}[self.cell.site]
        return {"to": str(self.directory / "table"), "group": self.group, "format": format}

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

    @abc.abstractmethod
    def audit(self, audit: Audit) -> list[str]:
        """What is wrong with the table; empty when nothing is."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what the work holds."""

    # what a reader finds

    def rows(self) -> pa.Table | None:
        """Every row that a foreign reader finds; None while there is no table."""
        if self.cell.site is Site.DIRECTORY:
            root = self.directory / "table"
            if not list(root.glob("load=*")):
                return None
            return pyarrow.dataset.dataset(root, format="parquet", partitioning="hive").to_table()
        if self.cell.site is Site.ICEBERG:
            identifier = (NAMESPACE, TABLE)
            return (
                self.catalog.load_table(identifier).scan().to_arrow() if self.catalog.table_exists(identifier) else None
            )
        url = str(self.directory / "table")
        return DeltaTable(url).to_pyarrow_table() if DeltaTable.is_deltatable(url) else None

    def strays(self) -> list[str]:
        """Data files that no snapshot names."""
        if self.cell.site is Site.ICEBERG:
            named = self.catalog.load_table((NAMESPACE, TABLE)).inspect.all_files()["file_path"].to_pylist()
            there = {f"file://{path}" for path in (self.directory / "warehouse").rglob("*.parquet")}
            return sorted(there - set(named))
        root = self.directory / "table"
        found = {path for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}
        if self.cell.site is Site.DIRECTORY:
            return sorted(
                str(path.relative_to(root)) for path in found if not path.relative_to(root).parts[0].startswith("load=")
            )
        known = {root / path for path in _files_of_delta(root)}
        return sorted(str(path.relative_to(root)) for path in found - known)


def _files_of_delta(root: Path) -> set[str]:
    """Of every version: an older one may still be read."""
    table = DeltaTable(str(root))
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


_WORKS: dict[str, type[Work]] = {"append": _Append}

CELLS = (
    Cell(Site.DIRECTORY, "append"),
    Cell(Site.DELTA, "append"),
    Cell(Site.ICEBERG, "append"),
)
