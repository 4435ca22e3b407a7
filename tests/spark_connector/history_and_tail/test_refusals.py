"""When a table and the rest of its topic cannot be read as one: each case is told, none gives wrong rows."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.history_and_tail.plan import files_at
from spark_connector.loads.files.directory import FilesCommitLog, FilesDestination
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadInterrupted
from spark_connector.loads.shared_path import SHARED
from spark_connector.loads.table_snapshot import no_longer_there
from spark_connector.maintenance import rewind
from spark_connector.source import PykafkaSource
from tests.support.history_loads import HistoryLoads, positions
from tests.support.kafka import Kafka
from tests.support.load_harness import World
from tests.support.topic_data import TopicData, transact
from tests.support.topics import Topic


def test_retention_that_has_eaten_the_gap(
    loads: HistoryLoads, data: TopicData, caplog: pytest.LogCaptureFixture
) -> None:
    loads.must_load()
    data.produce(10)
    Topic.eat(loads.bootstrap, loads.topic, 0, before=10)
    assert positions(loads.read()) == data.positions(), "what is eaten is in the table"
    Topic.eat(loads.bootstrap, loads.topic, 0, before=12)
    with pytest.raises(DataLoss, match=r"loaded up to offset 10, but begins at 12 now: 2 offsets were deleted"):
        loads.plan()
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        rows = positions(loads.read(failOnDataLoss="false"))
    assert rows == [row for row in data.positions() if row[1:] not in {(0, 10), (0, 11)}]
    assert "2 offsets were deleted" in caplog.text


def test_records_that_a_load_copies_and_retention_deletes_during_the_plan(
    loads: HistoryLoads, data: TopicData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was opened before: the plan begins again, with the table as it is now; also where losses are let be."""
    from spark_connector.read.offset_reader import OffsetReader

    loads.must_load()
    earliest, meddling = OffsetReader.earliest, iter([True, True])

    def late(reader: OffsetReader, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if next(meddling, False):
            data.produce(10)
            with monkeypatch.context() as patch:
                patch.setattr(OffsetReader, "earliest", earliest)
                loads.must_load()
            Topic.eat(loads.bootstrap, loads.topic, 0, before=data.ends[0])
        return earliest(reader, partitions)

    monkeypatch.setattr(OffsetReader, "earliest", late)
    assert positions(loads.read()) == data.positions()
    meddling = iter([True])
    assert positions(loads.read(failOnDataLoss="false")) == data.positions()


def test_records_that_a_load_copies_and_retention_deletes_after_the_plan(loads: HistoryLoads, data: TopicData) -> None:
    loads.must_load()
    data.produce(10)
    reader, tasks = loads.plan()
    loads.must_load()
    Topic.eat(loads.bootstrap, loads.topic, 0, before=data.ends[0])

    def read_all() -> list[pa.RecordBatch]:
        return [batch for task in tasks for batch in reader.read(task)]

    with pytest.raises(ConnectorError, match=r"PYKAFKA_HISTORY_GONE.* nothing is lost: run the query again") as caught:
        read_all()
    assert not isinstance(caught.value, DataLoss)
    assert positions(loads.read()) == data.positions(), "as it says"


def test_a_topic_that_was_created_again(loads: HistoryLoads, data: TopicData, broker: Kafka) -> None:
    loads.must_load()
    topic = Topic.__new__(Topic)
    Topic.__init__(topic, loads.bootstrap, f"{loads.topic}-other")  # for its admin client
    topic.name = loads.topic
    topic.delete()
    topic.create(2)
    topic.number(30)
    with pytest.raises(DataLoss, match="deleted and created again"):
        loads.plan()


def test_a_table_ahead_of_its_topic(loads: HistoryLoads, data: TopicData, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers have lost the end of the log, and give no topic ids."""
    from spark_connector.read.offset_reader import OffsetReader

    loads.must_load()
    ends = OffsetReader.log_ends

    def shorter(reader: OffsetReader, partitions: object) -> object:
        found = ends(reader, partitions)  # type: ignore[arg-type]
        return {tp: end._replace(offset=end.offset - 4) for tp, end in found.items()}

    monkeypatch.setattr(OffsetReader, "log_ends", shorter)
    monkeypatch.setattr("spark_connector.loads.plan._unstable", lambda options, beyond: {})
    with pytest.raises(DataLoss, match=r"loaded up to offset 10, but ends at 6"):
        loads.plan()


def test_a_group_that_has_loaded_nothing_there(loads: HistoryLoads, data: TopicData) -> None:
    with pytest.raises(ConfigError, match="holds no loads|no Delta table"):
        loads.fitted()
    loads.must_load()
    with pytest.raises(ConfigError, match=rf"no loads of group '{loads.group}s', only of group '{loads.group}'.*mean"):
        loads.fitted(group=f"{loads.group}s")


def test_rows_of_topics_that_are_not_selected(loads: HistoryLoads, data: TopicData) -> None:
    other = TopicData(loads.bootstrap, f"{loads.topic}-2", partitions=1)
    other.produce(3)
    both = f"{loads.topic},{other.topic}"
    loads.load(options={}, starting_offsets="earliest")
    one, loads.topic = loads.topic, both
    loads.must_load()
    assert positions(loads.read()) == data.positions() + other.positions()
    loads.topic = one
    with pytest.raises(ConfigError, match=rf"rows of {other.topic}.*select all topics"):
        loads.plan()
    assert positions(loads.read(failOnDataLoss="false")) == data.positions() + other.positions()


def test_options_that_the_loads_were_not_read_with(loads: HistoryLoads, data: TopicData) -> None:
    loads.must_load()
    for name, value in {
        "valueFormat": "string",
        "filterPartitions": "0",
        "filterTimestampFrom": "5",
        "kafka.isolation.level": "read_uncommitted",
    }.items():
        with pytest.raises(ConfigError, match=rf"read with other options; this read has {name}={value}"):
            loads.fitted(**{name: value})
    for name in ("startingOffsets", "endingTimestamp"):
        with pytest.raises(ConfigError, match=f"'{name}' cannot be used with 'history'"):
            loads.fitted(**{name: "earliest"})


def test_options_that_the_table_cannot_obey(loads: HistoryLoads, data: TopicData) -> None:
    loads.must_load()
    iceberg = loads.format == "iceberg"
    why = "an Iceberg catalog in pyiceberg's configuration" if iceberg else "is a local directory, which takes none"
    with pytest.raises(ConfigError, match=why):
        loads.fitted(historyStorageSecrets='{"key": "k"}')
    if loads.format != "parquet":
        with pytest.raises(ConfigError, match="'offsetStore' goes with a directory of loads"):
            loads.fitted(**{"offsetStore": "zookeeper", "offsetStore.zookeeper.connect": "localhost:1"})


def test_options_of_streams_are_told_in_a_batch(
    loads: HistoryLoads, data: TopicData, caplog: pytest.LogCaptureFixture
) -> None:
    loads.must_load()
    source = PykafkaSource(loads.options(maxOffsetsPerTrigger="5"))
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        source.reader(source.schema())
    assert "maxOffsetsPerTrigger option ignored in batch queries" in caplog.text


def test_a_store_that_does_not_answer_is_not_a_version_that_is_gone(
    broker: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is started again must not be told to begin anew."""
    loads = HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), "delta")
    TopicData(broker.bootstrap, topic, partitions=1).produce(3)
    loads.must_load()
    fitted = loads.fitted()

    def fail(table: object, version: int) -> None:
        raise OSError(
            "Kernel error -> Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET http://s3/t?sig=hidden - "
            "HTTP error\n   \x1b[31m↳\x1b[0m error sending request"
        )

    monkeypatch.setattr(DeltaTable, "load_as_version", fail)
    with pytest.raises(LoadInterrupted, match="version 1 of .* cannot be opened: .*error sending request") as found:
        files_at(fitted, "1")
    assert "hidden" not in str(found.value)
    assert "hidden" not in str(no_longer_there("t", "1", "GET http://s3/t?sig=hidden failed"))


def test_loads_that_go_on_with_other_options_after_the_frame_was_made(loads: HistoryLoads, data: TopicData) -> None:
    from spark_connector.history_and_tail.readers import HistoryBatchReader

    loads.must_load()
    fitted = loads.fitted()
    data.produce(2)
    loads.load(options={"kafka.isolation.level": "read_uncommitted"}, allow_changed_options=True)
    with pytest.raises(ConfigError, match="make it again"):
        HistoryBatchReader(fitted).partitions()


def test_columns_that_the_table_lacks(loads: HistoryLoads, data: TopicData) -> None:
    loads.load(options={"columns": "topic,partition,offset,value"})
    data.produce(2)
    rows = loads.read()
    assert rows.column_names == ["value", "topic", "partition", "offset"]
    assert positions(rows) == data.positions()
    assert loads.read(columns="offset,value").column_names == ["offset", "value"]
    with pytest.raises(ConfigError, match="no column key.*leave it out"):
        loads.fitted(columns="key,offset")
    with pytest.raises(ConfigError, match="no column .*headers"):
        loads.fitted(includeHeaders="true")
    with pytest.raises(ConfigError, match="must name a column that the read does not have"):
        loads.fitted(historyColumn="Value")


def test_a_column_that_another_program_renames_or_drops(loads: HistoryLoads, data: TopicData) -> None:
    if loads.format != "iceberg":
        pytest.skip("a Delta table with renamed columns is no table for loads; files keep their columns")
    loads.must_load()
    assert loads.target.catalog is not None
    table = open_catalog(loads.target.catalog).load_table(loads.target.iceberg_name.identifier)
    with table.update_schema() as update:
        update.rename_column("value", "payload")
    with pytest.raises(ConfigError, match="no longer has the column 'value'.*renamed it to 'payload'"):
        loads.fitted()
    assert loads.read(columns="topic,partition,offset,key").num_rows == len(data.positions())
    with table.update_schema() as update:
        update.rename_column("payload", "value").delete_column("timestamp")
    with pytest.raises(ConfigError, match="no longer has the column 'timestamp'.*dropped it"):
        loads.fitted()


def test_files_that_are_deleted_between_plan_and_read(loads: HistoryLoads, data: TopicData) -> None:
    loads.must_load()
    reader, tasks = loads.plan()
    for path in Path(loads.to).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(ConnectorError, match=r"PYKAFKA_HISTORY_GONE.*Run the query again"):
        [list(reader.read(task)) for task in tasks]


def test_files_that_are_on_the_host_of_the_plan_only(
    loads: HistoryLoads, data: TopicData, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.must_load()
    reader, tasks = loads.plan()
    for path in Path(loads.to).rglob("*.parquet"):
        path.unlink()
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    with pytest.raises(
        ConnectorError, match=r"PYKAFKA_HISTORY_NOT_SHARED.*a file of it is not on host worker-7"
    ) as told:
        [list(reader.read(task)) for task in tasks]
    assert f". {SHARED}" in str(told.value)


def test_records_of_aborted_transactions_are_on_neither_side(loads: HistoryLoads, data: TopicData) -> None:
    transact(loads.bootstrap, loads.topic, "commit", "abort")
    loads.must_load()
    transact(loads.bootstrap, loads.topic, "abort", "commit")
    rows = loads.read(historyColumn="loaded")
    assert rows.num_rows == 20 + 10 + 10
    assert len(set(positions(rows))) == rows.num_rows


def test_a_rewind_gives_its_records_back_to_the_topic(loads: HistoryLoads, data: TopicData) -> None:
    first = loads.must_load()
    data.produce(6)
    loads.must_load()
    reader, tasks = loads.plan()
    rewind(loads.target, first)
    rows = loads.read(historyColumn="loaded")
    assert positions(rows) == data.positions()
    assert rows.column("loaded").to_pylist().count(True) == 20
    if loads.format == "parquet":  # Delta keeps the files of older versions
        with pytest.raises(ConnectorError, match="by a rewind"):
            [list(reader.read(task)) for task in tasks]


def test_rows_of_another_group_are_left_out_of_a_table(broker: Kafka, topic: str, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    loads = HistoryLoads(broker.bootstrap, topic, table, "delta")
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(20)
    loads.must_load()
    other = HistoryLoads(broker.bootstrap, topic, table, "delta", group=f"{loads.group}-2")
    other.load(new_group=True)
    data.produce(4)
    DeltaTable(table).optimize.compact()
    assert positions(loads.read()) == positions(other.read()) == data.positions()


def test_rows_of_other_writers_belong_to_the_table(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), "delta")
    data = TopicData(broker.bootstrap, topic, partitions=1)
    data.produce(3)
    loads.load(options={"columns": "topic,partition,offset"})
    backfill = {"topic": ["archive"], "partition": pa.array([0], pa.int32()), "offset": [7], "load": [None]}
    schema = pa.schema(DeltaTable(loads.to).schema().to_arrow())
    write_deltalake(loads.to, pa.table(backfill).cast(schema), mode="append")
    assert positions(loads.read()) == [("archive", 0, 7), *data.positions()]


def test_delta_tables_whose_files_do_not_say_all(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), "delta")
    TopicData(broker.bootstrap, topic, partitions=1).produce(3)
    loads.must_load()
    table = DeltaTable(loads.to)
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"}, raise_if_not_exists=False)
    with pytest.raises(ConfigError, match="deletionVectors"):
        loads.fitted()


def test_a_database_is_not_read_file_by_file(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = HistoryLoads(broker.bootstrap, topic, str(tmp_path), "delta")
    with pytest.raises(ConfigError, match="names a database"):
        loads.fitted(history="sqlite:///x.db#rows")


def test_only_parquet_is_read_from_directories(tmp_path: Path) -> None:
    output = open_storage(str(tmp_path))
    world = World(output, lambda: FilesCommitLog(output, "g"), "g")
    world.grow()
    world.load()  # writes JSON
    with pytest.raises(ConfigError, match="loads in json; only parquet"):
        FilesDestination(output, FilesCommitLog(output, "g"), "g").snapshot(())


def test_a_table_with_one_row_per_key(loads: HistoryLoads) -> None:
    if loads.format == "parquet":
        pytest.skip("directories have all records")
    Topic(loads.bootstrap, loads.topic).produce([b'{"id": 1}', b'{"id": 1}'])
    loads.load(options={"valueFormat": "json", "valueSchema": "id BIGINT"}, mode="upsert", key="id")
    with pytest.raises(ConfigError, match="one row per key"):
        loads.fitted()
