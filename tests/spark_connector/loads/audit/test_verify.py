"""Recounting loads against a real broker's log: what is sound is called so, and every damage is found and named."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.partition_offsets import list_offsets
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.audit import kafka_log
from spark_connector.loads.audit.kafka_log import Extent, KafkaLog
from spark_connector.loads.audit.verify import LoadCheck, Verification
from spark_connector.loads.record import LoadRange
from spark_connector.maintenance import history, prune, rewind, verify
from spark_connector.offset_store.files import FilesEntry, FilesOffsetStore
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.fetch import read_range
from spark_connector.read.planning import OffsetRange
from tests.support.kafka import Kafka, await_topics
from tests.support.plain_loads import PlainLoads, open_files
from tests.support.topic_data import TopicData, transact
from tests.support.topics import Topic
from tests.support.waiting import eventually


@contextlib.contextmanager
def administration(bootstrap: str) -> Iterator[Admin]:
    cluster = Cluster(ClientSettings.from_properties({"bootstrap.servers": bootstrap}), create_topics=False)
    yield Admin(cluster)
    cluster.close()


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(400)
    return data


@pytest.fixture
def loads(data: TopicData, tmp_path: Path) -> PlainLoads:
    """Two loads: offsets 0 to 199 and 200 to 249 of two partitions."""
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path / "output")
    loads.must_load()
    data.produce(100)
    loads.must_load()
    return loads


def verified(loads: PlainLoads) -> Verification:
    return verify(loads.target, loads.bootstrap)


def directories(loads: PlainLoads) -> list[Path]:
    return sorted(loads.to.glob("load=*"))


def only_mismatch(loads: PlainLoads, number: int) -> LoadCheck:
    """The check of the load with this number, the only one that does not add up."""
    found = verified(loads)
    assert not found.ok
    (wrong,) = (load for load in found.loads if load.verdict == "mismatch")
    assert f"-{number:06d}-" in wrong.load_id
    return wrong


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Another program's idea of the same file; its manifest is made to agree, so that only the rows can tell."""
    pyarrow.parquet.write_table(change(pyarrow.parquet.ParquetFile(path).read()), path)
    manifest = json.loads((path.parent / "_manifest.json").read_text())
    for file in manifest["files"]:
        if file["name"] == path.name:
            file["size"] = path.stat().st_size
    (path.parent / "_manifest.json").write_text(json.dumps(manifest))


def test_sound_loads_are_counted_partition_by_partition(loads: PlainLoads) -> None:
    found = verified(loads)
    assert found.ok
    assert [load.verdict for load in found.loads] == ["ok", "ok"]
    counts = [(c.start, c.end, c.rows, c.file_rows, c.log_rows, c.low, c.high) for c in found.loads[1].partitions]
    assert counts == [(200, 250, 50, 50, 50, 200, 249)] * 2
    assert json.loads(json.dumps(found.to_json()))["ok"] is True


def test_a_file_that_is_missing_is_named(loads: PlainLoads) -> None:
    (directories(loads)[0] / "part-1.parquet").unlink()
    wrong = only_mismatch(loads, 1)
    assert "part-1.parquet is missing" in wrong.problems
    assert any("200 rows were committed, 0 are in the files" in problem for problem in wrong.problems)
    assert any("200 records of the log are not in the files, such as offset 0, 1, 2" in p for p in wrong.problems)


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_file_that_is_damaged_is_named(loads: PlainLoads, damage: str) -> None:
    path = directories(loads)[1] / "part-0.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] if damage == "cut" else b"\xff" * len(whole))
    wrong = only_mismatch(loads, 2)
    assert any(problem.startswith("part-0.parquet cannot be read as parquet") for problem in wrong.problems)


def test_a_file_that_is_there_twice_is_named(loads: PlainLoads) -> None:
    directory = directories(loads)[0]
    shutil.copy(directory / "part-0.parquet", directory / "part-0-copy.parquet")
    wrong = only_mismatch(loads, 1)
    assert "part-0-copy.parquet is not a file of this load" in wrong.problems
    assert any("200 rows are there more than once, such as offset 0, 1, 2" in problem for problem in wrong.problems)


def test_rows_that_are_missing_doubled_or_foreign_are_counted(loads: PlainLoads) -> None:
    path = directories(loads)[0] / "part-0.parquet"
    rewrite(path, lambda table: pa.concat_tables([table.slice(0, 10), table.slice(20), table.slice(30, 5)]))
    wrong = only_mismatch(loads, 1)
    (count,) = (count for count in wrong.partitions if count.partition == 0)
    assert (count.missing, count.doubled, count.file_rows, count.extra, count.outside) == (10, 5, 195, 0, 0)

    def move(table: pa.Table) -> pa.Table:
        moved = pa.array([offset + 190 for offset in table.column("offset").to_pylist()], pa.int64())
        return table.set_column(table.schema.get_field_index("offset"), "offset", moved)

    rewrite(path, move)
    (count,) = (count for count in only_mismatch(loads, 1).partitions if count.partition == 0)
    assert (count.outside, count.missing) == (180, 190)


def test_a_manifest_that_is_forged_is_named(loads: PlainLoads) -> None:
    path = directories(loads)[1] / "_manifest.json"
    forged = json.loads(path.read_text())
    forged["ranges"][0]["rows"] += 1
    path.write_text(json.dumps(forged))
    assert any("disagrees with the commit log" in problem for problem in only_mismatch(loads, 2).problems)
    path.write_text("{}")
    assert any("is not the manifest of this load" in problem for problem in only_mismatch(loads, 2).problems)


def test_a_directory_that_is_gone_or_of_nobody_is_named(loads: PlainLoads) -> None:
    first, second = directories(loads)
    shutil.copytree(second, second.with_name(second.name + "-copy"))
    (loads.to / "stray.parquet").write_bytes(b"")
    shutil.rmtree(first)
    found = verified(loads)
    assert [problem.split()[0].rpartition("/")[2] for problem in found.problems] == [
        second.name + "-copy",
        "stray.parquet",
    ]
    assert found.loads[0].problems[0].endswith("is gone")


def test_loads_that_overlap_and_offsets_that_went_back_are_named(loads: PlainLoads) -> None:
    with open_files(loads.target) as site:
        store = FilesOffsetStore(site.output.below("_offsets"))
    tp = TopicPartition(loads.topic, 0)
    store.commit(loads.target.group, {tp: 240})
    assert f"{tp}: loaded up to offset 250, but the group stands at 240: the next load doubles rows" in (
        verified(loads).problems
    )
    loads.must_load()
    assert any(f"{tp}: offsets 240 to 249 are in" in problem for problem in verified(loads).problems)


def test_records_that_were_skipped_between_two_loads_are_named(loads: PlainLoads, data: TopicData) -> None:
    data.produce(100)
    store = FilesOffsetStore(open_storage(str(loads.to)).below("_offsets"))
    store.commit(loads.target.group, {TopicPartition(loads.topic, 1): 290})
    loads.must_load()
    (problem,) = verified(loads).problems
    assert "40 records of offsets 250 to 289, between" in problem


def test_what_the_log_no_longer_has_is_unknown_not_wrong(loads: PlainLoads) -> None:
    with administration(loads.bootstrap) as admin:
        admin.delete_records({TopicPartition(loads.topic, 0): 220, TopicPartition(loads.topic, 1): 200})
    found = verified(loads)
    assert not found.ok
    assert [load.verdict for load in found.loads] == ["unknown", "unknown"], "of the second a part is gone"
    assert [count.gone for load in found.loads for count in load.partitions] == [200, 200, 20, 0]
    (directories(loads)[0] / "part-0.parquet").unlink()
    assert only_mismatch(loads, 1).partitions[0].file_rows == 0


def test_a_topic_that_is_gone_is_unknown(loads: PlainLoads) -> None:
    with administration(loads.bootstrap) as admin:
        admin.delete_topics([loads.topic])
    await_topics(loads.bootstrap, loads.topic, partitions=0)
    found = verified(loads)
    assert (found.verdict, found.ok) == ("unknown", False)
    assert {load.verdict for load in found.loads} == {"unknown"}


def test_transactions_and_their_markers_are_no_rows(broker: Kafka, topic: str, tmp_path: Path) -> None:
    TopicData(broker.bootstrap, topic, partitions=1)
    transact(broker.bootstrap, topic, "commit", "abort", "commit")
    sound = PlainLoads(broker.bootstrap, topic, tmp_path / "committed")
    sound.must_load()
    (load,) = verified(sound).loads
    assert (load.verdict, load.partitions[0].log_rows, load.partitions[0].end) == ("ok", 20, 33)
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    loads = PlainLoads(broker.bootstrap, topic, tmp_path / "output", options=uncommitted)
    loads.must_load()
    (load,) = verified(loads).loads
    assert (load.verdict, load.partitions[0].log_rows, load.partitions[0].end) == ("ok", 30, 33)
    committed = {"kafka.isolation.level": "read_committed"}
    (load,) = verify(loads.target, loads.bootstrap, options=committed).loads
    assert (load.verdict, load.partitions[0].extra) == ("mismatch", 10)
    with administration(loads.bootstrap) as admin:
        admin.alter_configs(ResourceType.TOPIC, topic, {"cleanup.policy": "compact"})

    def let_pass() -> bool:
        (load,) = verify(loads.target, loads.bootstrap, options=committed).loads
        return (load.verdict, load.partitions[0].compacted) == ("unknown", 10)

    eventually(let_pass)  # compaction might have dropped them; brokers hear of it in their own time


def test_rewound_loads_are_left_out_and_pruned_ones_are_not(loads: PlainLoads) -> None:
    first, second = directories(loads)
    rewind(loads.target, first.name.removeprefix("load="))
    found = verified(loads)
    assert found.ok
    assert [load.load_id for load in found.loads] == [first.name.removeprefix("load=")]
    loads.must_load()
    assert prune(loads.target, 1) == [1, 2, 3]
    found = verified(loads)
    assert found.ok
    assert len(found.loads) == 2
    (directories(loads)[0] / "_manifest.json").unlink()
    assert only_mismatch(loads, 1).problems == ("its manifest is missing, and the commit log has forgotten it",)
    with pytest.raises(ConfigError, match="is unknown: it is pruned and has no manifest"):
        rewind(loads.target, first.name.removeprefix("load="))
    assert (loads.to / "_rewound").exists()
    assert not second.exists()


def test_one_load_may_be_asked_for_and_must_be_there(loads: PlainLoads) -> None:
    name = directories(loads)[0].name.removeprefix("load=")
    assert [load.load_id for load in verify(loads.target, loads.bootstrap, only=[name]).loads] == [name]
    with pytest.raises(ConfigError, match="there is no committed load 'nobody'"):
        verify(loads.target, loads.bootstrap, only=["nobody"])


def test_the_loads_of_another_kind_of_entry_do_not_disturb(loads: PlainLoads) -> None:
    store = FilesOffsetStore(open_storage(str(loads.to)).below("_offsets"))
    newest = store.newest(loads.target.group)
    assert newest is not None
    store.append(FilesEntry(loads.target.group, newest.sequence + 1, {**newest.offsets, TopicPartition("else", 0): 3}))
    assert verified(loads).ok


@pytest.mark.parametrize(
    "options",
    [
        {"includeHeaders": "true"},
        {"valueFormat": "string"},
        {"subscribePattern": "t.*"},
        {"columns": "topic,partition,offset,timestamp"},
        {"kafka.isolation.level": "read_uncommitted", "filterPartitions": "0-7"},
    ],
)
def test_the_options_of_a_load_may_be_given_as_they_are(loads: PlainLoads, options: dict[str, str]) -> None:
    assert verify(loads.target, loads.bootstrap, options=options).ok


def test_malformed_records_that_a_load_has_dropped_are_not_missing(broker: Kafka, topic: str, tmp_path: Path) -> None:
    records = Topic(broker.bootstrap, topic)
    records.produce([b'{"a":1}', b"no JSON", b'{"a":2}', b"nor this"])
    options = {"valueFormat": "json", "valueSchema": "a INT", "mode": "DROPMALFORMED"}
    loads = PlainLoads(broker.bootstrap, topic, tmp_path, options=options)
    loads.must_load()
    assert loads.visible() == [(topic, 0, 0), (topic, 0, 2)]
    found = verified(loads)
    assert found.ok
    assert [(count.rows, count.log_rows) for count in found.loads[0].partitions] == [(2, 2)]
    as_they_are = {"mode": "PERMISSIVE", "badRecordsTopic": "not-written-again"}
    assert verify(loads.target, loads.bootstrap, options=as_they_are).loads[0].partitions[0].missing == 2


def test_the_ends_of_all_partitions_are_asked_at_once(loads: PlainLoads, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(cluster: Cluster, timestamps: Mapping[TopicPartition, int]) -> Any:
        asked.append(len(timestamps))
        return list_offsets(cluster, timestamps)

    monkeypatch.setattr(kafka_log, "list_offsets", counted)
    assert verified(loads).ok
    assert asked == [2, 2]  # the first and the last offsets of two partitions, for both loads


@pytest.mark.parametrize(("small", "alone"), [(200, 0), (199, 2), (0, 4)])
def test_small_ranges_are_fetched_together(
    loads: PlainLoads, monkeypatch: pytest.MonkeyPatch, small: int, alone: int
) -> None:
    read: list[OffsetRange] = []

    def counted(options: SourceOptions, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        read.append(part)
        return read_range(options, part)

    monkeypatch.setattr(kafka_log, "read_range", counted)
    monkeypatch.setattr(kafka_log, "_SMALL", small)
    assert verified(loads).ok
    assert len(read) == alone


def test_partitions_of_a_topic_that_is_gone_have_no_offsets(loads: PlainLoads) -> None:
    load = history(loads.target).entries[0].record
    there, gone = (LoadRange(topic, 0, 0, 9, None) for topic in (loads.topic, "gone"))
    both = replace(load, ranges=(there, gone), topic_ids={})
    with KafkaLog(loads.bootstrap, {}) as log:
        assert log.extent(there.tp, both) == Extent(0, 250)
        assert log.extent(gone.tp, both) == Extent(0, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filterOffsets": "10-19,30-"}, [*range(10, 20), *range(30, 40)]),
        ({"where": "offset BETWEEN 10 AND 30 AND offset <> 20 AND key <> 'x'"}, [*range(10, 20), *range(21, 31)]),
        ({"filterKey": "no such key"}, []),
    ],
)
def test_filters_are_heeded(loads: PlainLoads, options: dict[str, str], expected: list[int]) -> None:
    tp, load = TopicPartition(loads.topic, 0), history(loads.target).entries[0].record
    with KafkaLog(loads.bootstrap, options) as log:
        found = [offset for part in log.offsets(tp, 5, 40, load) for offset in part.tolist()]
    assert found == expected
