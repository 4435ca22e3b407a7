"""Loads of a real broker's records without Spark: planned, staged and committed as load.py does it, written by pyarrow.

`PlainLoads` is one group's loads into one directory. Used where the Spark side does not matter: history, verification,
the service. `python -m tests.support.plain_loads ARGUMENTS` (JSON) is a service of such loads, to be killed.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from spark_connector.destinations import open_destination
from spark_connector.loads.files.directory import FilesDestination
from spark_connector.loads.load_loop import LoadLoop
from spark_connector.loads.plan import confirm_topics, plan_load
from spark_connector.loads.record import LoadRange, LoadRecord, LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.read.fetch import read_range
from spark_connector.read.planning import OffsetRange


@contextmanager
def open_files(target: Target) -> Iterator[FilesDestination]:
    with open_destination(target) as destination:
        assert isinstance(destination, FilesDestination)
        yield destination


class PlainLoads:
    """Loads `topic` into `to`, a parquet file per partition."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        to: Path,
        *,
        zookeeper: str | None = None,
        max_records: int | None = None,
        options: Mapping[str, str] | None = None,
        group: str | None = None,
        **more: Any,
    ) -> None:
        """`more` are arguments of LoadRequest.build."""
        offsets = "files" if zookeeper is None else "zookeeper"
        self.bootstrap, self.topic, self.to = bootstrap, topic, to
        self.target = Target(str(to), group or f"g-{topic}", offsets, zookeeper)
        self._max_records = max_records
        self._options = options or {}
        self._more = more
        self.words = ["--to", str(to), "--group", self.target.group]
        self.words += ["--zookeeper", zookeeper] if zookeeper else []

    def request(self) -> LoadRequest:
        return LoadRequest.build(
            self.target,
            bootstrap_servers=self.bootstrap,
            topic=self.topic,
            max_records=self._max_records,
            options=self._options,
            **self._more,
        )

    def load(self, on_phase: Callable[[str, LoadRecord | None], None] | None = None) -> LoadResult:
        tell = on_phase or (lambda phase, record: None)
        request = self.request()
        with open_files(self.target) as site:
            tell("repair", None)
            recovered = tuple(site.repair())
            tell("plan", None)
            record = plan_load(request, site)
            if record is None:
                return LoadResult(self.target.group, site.url, "parquet", None, None, 0, (), recovered)
            tell("write", record)
            directory = site.stage(record)
            rows = {}
            for range in filter(lambda range: range.size, record.ranges):
                table = self._read(range, request)
                path = f"{directory}/part-{range.partition}.parquet"
                with site.output.open_output(path) as file:
                    pyarrow.parquet.write_table(table, file)
                rows[range.tp] = table.num_rows
            confirm_topics(request.source, record)
            sealed = record.completed(rows, site.output.tree_sizes(directory))
            site.seal(sealed)
            tell("commit", sealed)
            site.commit(sealed)
            tell("done", sealed)
            path = site.path_of(sealed.load_id)
            return LoadResult(
                self.target.group, site.url, "parquet", sealed.load_id, path, sealed.rows, sealed.ranges, recovered
            )

    def must_load(self) -> str:
        """The id of a load that must find something new."""
        load_id = self.load().load_id
        assert load_id is not None
        return load_id

    def directory(self, load_id: str) -> Path:
        return self.to / f"load={load_id}"

    def visible(self) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of every row that a reader of the directory finds, sorted."""
        rows: list[tuple[str, int, int]] = []
        for path in self.to.glob("load=*/*.parquet"):
            table = pyarrow.parquet.ParquetFile(path).read(["topic", "partition", "offset"])
            rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
        return sorted(rows)

    def _read(self, range: LoadRange, request: LoadRequest) -> pa.Table:
        return pa.Table.from_batches(read_range(request.tasks_source, OffsetRange(range.tp, range.start, range.end)))


def main() -> None:
    """Load at once whatever is new, again and again, until killed; a line per load."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    arguments["to"] = Path(arguments["to"])
    loads = PlainLoads(**arguments)
    print("ready", flush=True)
    for loaded in LoadLoop(loads.load, interval=0.05, stop=threading.Event()):
        print(loaded.load_id, flush=True)


if __name__ == "__main__":
    main()
