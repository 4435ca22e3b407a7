"""Loads for the tests of a read with `history`: a real broker's records into a real table, small enough for the driver,
so that no Spark is needed; and reads of both sides, planned and read in this process.

`python -m tests.support.history_loads ARGUMENTS` (JSON) loads again and again until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from broker.errors import PykafkaError
from spark_connector.history_and_tail.fitted_read import FittedRead, fit_read
from spark_connector.history_and_tail.readers import HistoryBatchReader
from spark_connector.load import run_load
from spark_connector.loads.load_loop import Phase
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.options.history_options import parse_history
from spark_connector.options.read_options import Mode

FORMATS = ("delta", "parquet", "iceberg")
CATALOG = "union"
_NAMESPACE, _NAME = "lake", "orders"

Position = tuple[str, int, int]
"""(topic, partition, offset)"""


class HistoryLoads:
    """One group's loads of `topic` to `to`, a directory in which an Iceberg table has its catalog, and reads of both
    sides."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        to: str,
        format: str,
        *,
        group: str | None = None,
        options: Mapping[str, str] | None = None,
        max_records: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap, self.topic, self.to, self.format = bootstrap, topic, to, format
        self.group = group or f"g-{topic}"
        if format == "iceberg":
            use_catalog(Path(to))
            self.target = Target(f"iceberg:{_NAMESPACE}.{_NAME}", self.group, catalog=CATALOG).check()
        else:
            self.target = Target(to, self.group, format=format, storage_options=storage_options or {}).check()
        self._options, self._max_records = options or {}, max_records

    @property
    def history(self) -> str:
        return f"delta:{self.to}" if self.format == "delta" else self.target.to

    def load(self, on_phase: Phase = lambda phase, record: None, **more: Any) -> LoadResult:
        """One load, which is small enough for the driver alone."""
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.bootstrap,
            topic=self.topic,
            **{"options": self._options, "max_records": self._max_records, "publish_offsets": False, **more},
        )
        return run_load(request, no_session, on_phase)

    def must_load(self) -> str:
        """The id of a load that must find something new."""
        load_id = self.load().load_id
        assert load_id is not None
        return load_id

    def options(self, **more: str) -> dict[str, str]:
        """The options of a read of both sides."""
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "history": self.history,
            "group": self.group,
            **({"catalog": CATALOG} if self.format == "iceberg" else {}),
            **({"historyStorageSecrets": json.dumps(found)} if (found := self.target.storage_options) else {}),
            "fetchOffset.retryIntervalMs": "20",
            **more,
        }

    def fitted(self, **more: str) -> FittedRead:
        history = parse_history(self.options(**more))
        assert history is not None
        return fit_read(history, Mode.ANY)

    def plan(self, **more: str) -> tuple[HistoryBatchReader, list[InputPartition]]:
        reader = HistoryBatchReader(self.fitted(**more))
        return reader, reader.partitions()

    def read(self, **more: str) -> pa.Table:
        """The rows of both sides, by one plan, without Spark."""
        fitted = self.fitted(**more)
        reader = HistoryBatchReader(fitted)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return pa.Table.from_batches(batches, fitted.schema)


def use_catalog(home: Path, name: str = CATALOG) -> None:
    """Have a catalog in SQLite in this directory, for this process, its children, and Spark's workers. Only the file of
    PYICEBERG_HOME tells it: workers keep the environment of when Spark was started, which outdoes the file."""
    home.mkdir(exist_ok=True)
    settings = {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    lines = ["catalog:", f"  {name}:", *(f"    {key}: {value}" for key, value in settings.items())]
    file = Path(os.environ["PYICEBERG_HOME"], ".pyiceberg.yaml")
    file.with_suffix(".new").write_text("\n".join(lines))
    file.with_suffix(".new").replace(file)  # a process may read it while its child comes here
    with suppress(NamespaceAlreadyExistsError):
        load_catalog(name, **settings).create_namespace(_NAMESPACE)


def no_session() -> SparkSession:
    raise AssertionError("this load needs Spark")


def positions(rows: pa.Table) -> list[Position]:
    """(topic, partition, offset) of every row, sorted, duplicates included."""
    columns = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return sorted(zip(*columns, strict=True))


def main() -> None:
    """Load what is new, again and again, until killed."""
    loads = HistoryLoads(**json.loads(sys.argv[1]))
    print("ready", flush=True)
    while Path(sys.argv[0]).exists():
        try:
            if (load_id := loads.load().load_id) is not None:
                print(load_id, flush=True)
            time.sleep(0.1)
        except PykafkaError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
