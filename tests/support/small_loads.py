"""Loads of one group into one place, so small that they need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_connector.load import run_load
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest, Target
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic


class SmallLoads:
    """Of the topic `records`, into a place below `root` or to `to`."""

    def __init__(self, records: Topic, root: Path, format: str, *, to: str | None = None, **given: Any) -> None:
        catalog = add_catalog(root) if format == "iceberg" else None
        places = {"iceberg": "iceberg:lake.loads", "sql": f"sqlite:///{root}/loads.db#loads"}
        place = to or places.get(format, str(root / "out"))
        self.target = Target(place, f"g-{records.name}", format=format, catalog=catalog).check()
        self._given: dict[str, Any] = {"bootstrap_servers": records.bootstrap, "topic": records.name, **given}

    def load(self, options: dict[str, str] | None = None, **arguments: Any) -> LoadResult:
        request = LoadRequest.build(self.target, **{**self._given, "options": options or {}, **arguments})
        return run_load(request, _no_spark, lambda phase, record: None)


def _no_spark() -> Any:
    raise AssertionError("a load as small as this needs no Spark")
