"""A stream that begins with a table: the reader called as Spark calls it, without Spark."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.history_and_tail import batches
from spark_connector.history_and_tail.batches import count_files
from spark_connector.history_and_tail.fitted_read import for_query
from spark_connector.history_and_tail.readers import HistoryStreamReader
from spark_connector.loads.table_snapshot import TableFile
from spark_connector.options.read_options import Mode
from tests.support.history_loads import HistoryLoads, Position, positions
from tests.support.spark_versions import since_spark
from tests.support.stream_calls import ALL, Document, ReadMaxRows, as_spark_does
from tests.support.topic_data import TopicData
from tests.support.topics import Topic

pytestmark = since_spark("4.2", "the calls of these tests")


class Query:
    """The processes of one query on one checkpoint. `crash` forgets all but what Spark has logged."""

    def __init__(self, loads: HistoryLoads, **options: str) -> None:
        self._loads, self._options = loads, options
        self.logged: list[Document] = []
        self.rows: list[Position] = []
        self.finished = 0
        self._reader: Any = None
        self._start: Document | None = None

    @property
    def reader(self) -> Any:
        if self._reader is None:
            self._reader = HistoryStreamReader(for_query(self._loads.fitted(**self._options), Mode.STREAM))
            self._start = as_spark_does(self._reader.initialOffset())
            assert as_spark_does(self._reader.initialOffset()) == self._start
        return self._reader

    def crash(self) -> None:
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    def log(self, limit: Any = ALL) -> bool:
        """The next batch is logged, unless one is unfinished or there is none."""
        if len(self.logged) > self.finished:
            return True
        reader = self.reader
        start = self.logged[-1] if self.logged else self._start
        end = as_spark_does(reader.latestOffset(start, limit))
        if json.dumps(end) == json.dumps(start):
            return False
        self.logged.append(end)
        return True

    def run(self) -> list[Position]:
        """Run the batch that is logged; gives its rows."""
        reader = self.reader
        start = self.logged[self.finished - 1] if self.finished else self._start
        tasks = pickle.loads(pickle.dumps(reader.partitions(start, self.logged[self.finished])))
        worker = pickle.loads(pickle.dumps(reader))
        found: list[Position] = []
        if hasattr(reader, "getCache"):
            found = _positions(list(reader.getCache(None, None)))
        else:
            for task in tasks:
                found += _positions(list(worker.read(task)))
        return sorted(found)

    def finish(self) -> None:
        self.rows += self.run()
        self.finished += 1

    def all(self, limit: Any = ALL) -> list[Position]:
        """Run batch after batch until there is nothing new; gives all rows so far."""
        while self.log(limit):
            self.finish()
        return sorted(self.rows)


QueryOf = Callable[..., Query]


@pytest.fixture
def query_of() -> Iterator[QueryOf]:
    made: list[Query] = []

    def make(loads: HistoryLoads, **options: str) -> Query:
        made.append(Query(loads, **options))
        return made[-1]

    yield make
    for query in made:
        query.crash()


def _positions(batches: list[pa.RecordBatch]) -> list[Position]:
    return positions(pa.Table.from_batches(batches)) if batches else []


def test_the_table_comes_first_and_then_the_topic(loads: HistoryLoads, data: TopicData, query_of: QueryOf) -> None:
    loads.must_load()
    data.produce(6)
    query = query_of(loads, historyColumn="loaded")
    assert query.all() == data.positions()
    assert ["history" in end for end in query.logged] == [True, False]
    loads.must_load()
    data.produce(8)
    assert query.all() == data.positions(), "the topic, whatever is loaded in the meantime"


def test_a_limit_divides_the_files(loads: HistoryLoads, data: TopicData, query_of: QueryOf) -> None:
    for _ in range(3):
        loads.must_load()
        data.produce(20)
    query = query_of(loads)
    assert query.all(ReadMaxRows(20)) == data.positions()
    counts = [end["history"]["at"] for end in query.logged if "history" in end]
    assert len(counts) == 3
    assert counts[-1] == query.logged[0]["history"]["files"]


def test_a_crash_at_any_point_neither_loses_nor_doubles(
    loads: HistoryLoads, data: TopicData, query_of: QueryOf
) -> None:
    loads.must_load()
    data.produce(20)
    loads.must_load()
    data.produce(4)
    query = query_of(loads)
    for step in range(12):
        query.crash()
        if not query.log(ReadMaxRows(15)):
            break
        first = query.run()
        if step % 2 == 0:
            query.crash()
            data.produce(2)
            loads.load()  # the table of the restarted query has a newer version
            assert query.run() == first, "a batch that is run again reads the same"
        query.finish()
    assert query.all() == data.positions()


def test_a_query_without_a_file_begins_at_the_offsets_of_its_first_batch(
    loads: HistoryLoads, data: TopicData, query_of: QueryOf
) -> None:
    loads.load(options={"filterTimestampUntil": "1"})  # no record is as old
    query = query_of(loads)
    query.log()
    query.crash()
    data.produce(4)
    loads.load(options={"filterTimestampUntil": "1"})
    query.crash()
    query.finish()
    assert query.all() == [], "the records after the table's offsets are filtered as the loads filter them"
    assert query.logged[0]["topics"][loads.topic] == {"0": 10, "1": 10}


def test_a_version_that_is_gone_is_told(loads: HistoryLoads, data: TopicData, query_of: QueryOf) -> None:
    loads.must_load()
    query = query_of(loads)
    assert query.log()
    for path in Path(loads.to).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(ConnectorError, match=r"PYKAFKA_HISTORY_GONE.*new checkpoint"):
        query.run()
    if loads.format == "delta":
        query.crash()
        loads.load()
        shutil.rmtree(Path(loads.to) / "_delta_log")
        with pytest.raises(Exception, match="no Delta table|holds no loads"):
            query.run()


def test_what_the_topic_has_lost_when_the_table_is_read_is_told(
    loads: HistoryLoads, data: TopicData, query_of: QueryOf
) -> None:
    loads.must_load()
    query = query_of(loads)
    assert query.log()
    query.finish()
    data.produce(6)
    Topic.eat(loads.bootstrap, loads.topic, 0, before=12)
    with pytest.raises(DataLoss, match="12"):
        query.log()


def test_what_is_wrong_at_the_start_is_told_when_the_first_batch_is_asked_for(
    loads: HistoryLoads, data: TopicData, query_of: QueryOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for the start also when it goes on with a batch that it has logged."""
    loads.must_load()
    query = query_of(loads)
    assert query.log()
    query.crash()

    def fail(_fitted: object) -> None:
        raise ValueError("whatever a library says")

    monkeypatch.setattr(batches, "plan_history", fail)
    query.finish()
    assert sorted(query.rows) == data.positions()
    with pytest.raises(Exception, match="whatever a library says"):
        query_of(loads).log()


def test_files_fill_a_batch_up_to_the_limits() -> None:
    files = [TableFile(str(number), (), size=10, rows=5) for number in range(4)]
    assert count_files(files, None, None) == 4
    assert count_files(files, 11, None) == 2
    assert count_files(files, None, 39) == 3
    assert count_files(files, 1, 1) == 1, "at least one"
    assert count_files([], 1, 1) == 0
