"""Loads for the tests of a read with `history`: a real broker's records into a real table, planned and committed as
load.py does it, written by pyarrow in this process.

`python -m tests.support.union_loads ARGUMENTS` (JSON) loads again and again until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from broker.errors import PykafkaError
from spark_connector.destinations import open_destination
from spark_connector.loads.destination import Destination
from spark_connector.loads.plan import plan_load
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN, LoadRequest, Target
from spark_connector.options.history_options import parse_history
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.fetch import read_range
from spark_connector.read.planning import OffsetRange
from spark_connector.union_read.sides import Sides, fit_sides
from spark_connector.union_read.union_readers import UnionBatchReader

Position = tuple[str, int, int]
"""(topic, partition, offset)"""


class UnionLoads:
    """One group's loads of `topic` to `to`, and reads of both sides. `format`: parquet or delta."""

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
    ) -> None:
        self.bootstrap, self.topic, self.to, self.format = bootstrap, topic, to, format
        self.group = group or f"g-{topic}"
        self.target = Target(to, self.group, format=format).check()
        self._options, self._max_records = options or {}, max_records

    @property
    def history(self) -> str:
        return f"delta:{self.to}" if self.format == "delta" else self.to

    def load(self, at_step: Callable[[str], None] = lambda step: None, **more: Any) -> LoadRecord | None:
        """One load; None when there is nothing new. `at_step` is told what is done next."""
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.bootstrap,
            topic=self.topic,
            options=self._options,
            max_records=self._max_records,
            **more,
        )
        with open_destination(request.target) as site:
            site.repair()
            record = plan_load(request, site)
            if record is None:
                return None
            at_step("stage")
            place = site.stage(record)
            rows = {}
            at_step("write")
            for range in filter(lambda range: range.size, record.ranges):
                table = self._read(range, request)
                if self.format == "delta":
                    site.prepare(record, from_arrow_schema(table.schema).json())
                    table = table.append_column(LOAD_COLUMN, pa.array([record.load_id] * table.num_rows, pa.string()))
                self._write(site, f"{place}/part-{range.partition}.parquet", table)
                rows[range.tp] = table.num_rows
            assert site.output is not None
            sealed = record.completed(rows, site.output.tree_sizes(place))
            at_step("seal")
            site.seal(sealed)
            at_step("commit")
            site.commit(sealed)
            return sealed

    def options(self, **more: str) -> dict[str, str]:
        """The options of a read of both sides."""
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "history": self.history,
            "group": self.group,
            "fetchOffset.retryIntervalMs": "20",
            **more,
        }

    def sides(self, **more: str) -> Sides:
        history = parse_history(self.options(**more))
        assert history is not None
        return fit_sides(history, Mode.ANY)

    def plan(self, **more: str) -> tuple[UnionBatchReader, list[InputPartition]]:
        reader = UnionBatchReader(self.sides(**more))
        return reader, reader.partitions()

    def read(self, **more: str) -> pa.Table:
        """The rows of both sides, by one plan, without Spark."""
        sides = self.sides(**more)
        reader = UnionBatchReader(sides)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return pa.Table.from_batches(batches, sides.schema)

    def _read(self, range: LoadRange, request: LoadRequest) -> pa.Table:
        options = parse_options({**request.options, "subscribe": range.topic}, Mode.BATCH)
        return pa.Table.from_batches(read_range(options, OffsetRange(range.tp, range.start, range.end)))

    @staticmethod
    def _write(site: Destination, path: str, table: pa.Table) -> None:
        assert site.output is not None
        with site.output.open_output(path) as file:
            pyarrow.parquet.write_table(table, file)


def positions(rows: pa.Table) -> list[Position]:
    """(topic, partition, offset) of every row, sorted, duplicates included."""
    columns = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return sorted(zip(*columns, strict=True))


def main() -> None:
    """Load what is new, again and again, until killed."""
    loads = UnionLoads(**json.loads(sys.argv[1]))
    print("ready", flush=True)
    while Path(sys.argv[0]).exists():
        try:
            if loads.load() is None:
                time.sleep(0.01)
        except PykafkaError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
