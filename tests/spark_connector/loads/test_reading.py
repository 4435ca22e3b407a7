"""How loads read is part of them: committed records by default, kept with each load, and not changed unnoticed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import ConfigError
from spark_connector.loads.plan import plan_load
from spark_connector.loads.reading import describe_changes, reading_of
from spark_connector.loads.request import LoadRequest
from spark_connector.maintenance import history, rewind, verify
from spark_connector.options import registry_options
from spark_connector.options.option_table import OPTIONS
from tests.support.kafka import Kafka, await_markers
from tests.support.plain_loads import PlainLoads, open_files
from tests.support.table_harness import TableWorld, delta_world, sqlite_world
from tests.support.topic_data import TopicData, transact

NOT_KEPT = {
    # where a read begins and ends: each load has ranges of its own
    *("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp"),
    *("endingOffsetsByTimestamp", "kafka.group.id", "offsetStore", "offsetStore.path"),
    *("offsetStore.zookeeper.connect", "group"),
    # how a read is done
    *("failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"),
    *("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "minBytesPerPartition"),
    *(
        "delegationToken",
        "maxPrefetchedRecords",
        "pushDown",
        "timestampsGrow",
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    ),
    *("kafkaConsumer.pollTimeoutMs", "badRecordsTopic"),
    *registry_options.ACCESS,
    # from where the same records are read
    *("archive", "archive.url", "archive.cluster", "archive.option.*"),
    # the table of a load that is read with its topic: a load reads topics only
    *("history", "catalog", "historyColumn", "historyStorageSecrets"),
    # what the columns of the rows show
    *("includeHeaders", "columns"),
}
"""The options that a load's record does not have, and why."""

UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    data = TopicData(broker.bootstrap, topic, partitions=1)
    data.produce(10)
    return data


def loads_of(data: TopicData, to: Path, options: dict[str, str] | None = None, *, allowed: bool = False) -> PlainLoads:
    return PlainLoads(data.bootstrap, data.topic, to, options=options, allow_changed_options=allowed)


def rows(loads: PlainLoads) -> int:
    return len(loads.visible())


def forget_reading(to: Path) -> None:
    """As loads were recorded before they kept it."""
    for path in [*to.glob("_offsets/*/*.json"), *to.glob("load=*/_manifest.json")]:
        document = json.loads(path.read_text())
        del document.get("load", document)["reading"]
        path.write_text(json.dumps(document))


def test_a_load_takes_committed_records_only_and_keeps_that(data: TopicData, tmp_path: Path) -> None:
    transact(data.bootstrap, data.topic, "abort", "commit")
    loads = loads_of(data, tmp_path)
    loads.must_load()
    assert rows(loads) == 10 + 10
    (entry,) = history(loads.target).entries
    assert entry.record.reading == {"kafka.isolation.level": "read_committed"}
    assert entry.manifest is not None
    assert entry.manifest.reading == entry.record.reading


def test_a_load_stops_before_an_open_transaction_and_takes_it_when_it_has_ended(
    data: TopicData, tmp_path: Path
) -> None:
    producer = transact(data.bootstrap, data.topic, "open")
    loads = loads_of(data, tmp_path)
    assert [range.end for range in loads.load().ranges] == [10]
    assert loads.load().load_id is None
    producer.commit_transaction(30)
    await_markers(data.bootstrap, data.topic)
    loads.must_load()
    assert rows(loads) == 20


def test_a_group_that_reads_otherwise_is_told_and_may_go_on_when_that_is_meant(data: TopicData, tmp_path: Path) -> None:
    first = loads_of(data, tmp_path).must_load()
    transact(data.bootstrap, data.topic, "abort")
    other = {**UNCOMMITTED, "filterKeyPrefix": "key"}
    with pytest.raises(ConfigError) as refused:
        loads_of(data, tmp_path, other).load()
    for text in (
        f"load {first}",
        "filterKeyPrefix=key (before: not set)",
        "kafka.isolation.level=read_uncommitted (before: read_committed)",
        "--allow-changed-options",
        "a new group",
    ):
        assert text in str(refused.value)
    loads_of(data, tmp_path, UNCOMMITTED, allowed=True).must_load()
    loads = loads_of(data, tmp_path)
    assert rows(loads) == 20
    found = verify(loads.target, loads.bootstrap)
    assert [load.verdict for load in found.loads] == ["ok", "ok"], "each is recounted as it was read"
    rewind(loads.target, first)
    data.produce(1)
    assert loads_of(data, tmp_path).load().load_id is not None, "a rewind goes back to how that load was read"


def test_a_group_that_stands_behind_an_open_transaction_waits_for_its_end(data: TopicData, tmp_path: Path) -> None:
    """As every group that has loaded before loads read committed records by default."""
    producer = transact(data.bootstrap, data.topic, "open")
    loads_of(data, tmp_path, UNCOMMITTED).must_load()
    forget_reading(tmp_path)
    loads = loads_of(data, tmp_path)
    assert loads.load().load_id is None
    producer.commit_transaction(30)
    await_markers(data.bootstrap, data.topic)
    data.produce(1)
    loads.must_load()
    assert rows(loads) == 21


def test_loads_of_before_are_gone_on_from_and_what_they_took_too_much_is_said(data: TopicData, tmp_path: Path) -> None:
    transact(data.bootstrap, data.topic, "abort")
    loads_of(data, tmp_path, UNCOMMITTED).must_load()
    forget_reading(tmp_path)
    loads = loads_of(data, tmp_path)
    (load,) = verify(loads.target, loads.bootstrap).loads
    assert (load.verdict, load.partitions[0].extra) == ("mismatch", 10)
    assert any("does not say with which options it was read" in note for note in load.notes)
    assert verify(loads.target, loads.bootstrap, options=UNCOMMITTED).ok
    data.produce(1)
    loads.must_load()


def test_a_directory_keeps_its_format(data: TopicData, tmp_path: Path) -> None:
    loads = loads_of(data, tmp_path)
    loads.must_load()
    data.produce(1)
    target = dataclasses.replace(loads.target, format="orc")
    request = LoadRequest.build(target, bootstrap_servers=data.bootstrap, topic=data.topic)
    with open_files(request.target) as site:
        record = plan_load(request, site)
        assert record is not None
        with pytest.raises(ConfigError, match="holds loads in parquet so far, not in orc"):
            site.stage(record)


@pytest.mark.parametrize("make", [delta_world, sqlite_world])
def test_tables_keep_it_in_their_logs(make: Callable[..., TableWorld], tmp_path: Path) -> None:
    world = make(tmp_path, begin=False)
    world.reading = {"kafka.isolation.level": "read_committed", "filterHeader": "a=b"}
    world.grow()
    assert world.load() is not None
    (entry,) = history(world.target).entries
    assert entry.record.reading == world.reading


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {}),
        ({"Kafka.Isolation.Level": " READ_UNCOMMITTED "}, {"kafka.isolation.level": "read_uncommitted"}),
        ({"kafka.security.protocol": "SSL", "minPartitions": "4", "failOnDataLoss": "false"}, {}),
        ({"valueformat": "BINARY", "mode": "permissive", "sep": ","}, {}),
        (
            {"VALUEFORMAT": "Json", "valueSchema": "a INT", "mode": "DropMalformed"},
            {"valueFormat": "json", "valueSchema": "a INT", "mode": "dropmalformed"},
        ),
        (
            {"valueFormat": "avro", "schema.registry.url": "https://me:s3cret@host:1/x"},
            {"valueFormat": "avro", "schema.registry.url": "https://host:1/x"},
        ),
        ({"schema.registry.basic.auth.user.info": "me:s3cret", "badRecordsTopic": "b"}, {}),
        ({"valueFormat": "avro", "recursiveFieldMaxDepth": "-1"}, {"valueFormat": "avro"}),
        (
            {"valueFormat": "avro", "recursivefieldmaxdepth": "3"},
            {"valueFormat": "avro", "recursiveFieldMaxDepth": "3"},
        ),
        (
            {"filterPartitions": "0-3", "filterTimestampFrom": "7", "filterOffsets": "1-", "WHERE": "key = 'A'"},
            {"filterPartitions": "0-3", "filterTimestampFrom": "7", "filterOffsets": "1-", "where": "key = 'A'"},
        ),
    ],
)
def test_what_is_kept_decides_what_is_loaded_and_holds_no_secret(options: dict[str, str], kept: dict[str, str]) -> None:
    assert reading_of(options) == {"kafka.isolation.level": "read_committed", **kept}


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_each_option_is_kept_or_known_not_to_choose_or_change_records(name: str) -> None:
    assert (name in reading_of({name: "x"})) != (name in NOT_KEPT), (
        f"{name}: if it decides which records are read or what they become, say so in its row (`kept`); else add it to "
        "NOT_KEPT here"
    )


def test_changes_are_named_both_ways() -> None:
    assert describe_changes({"a": "1", "b": "x"}, {"b": "x"}) == "a=not set (before: 1)"
    assert describe_changes({}, {"valueSchema": "a" * 99}) == f"valueSchema={'a' * 60}… (before: not set)"
    assert describe_changes({"mode": "failfast"}, {}) == "mode=permissive (before: failfast)"
    assert describe_changes({"a": "1"}, {"a": "1"}) == ""
    assert describe_changes({"columnNameOfCorruptRecord": "_corrupt_record"}, {}) == "", "it has its default"
