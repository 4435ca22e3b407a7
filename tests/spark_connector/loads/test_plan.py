"""Planning against a real broker: a topic that was deleted and created again is another topic."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.partition_offsets import LATEST, OffsetAndTimestamp, list_offsets
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.loads.plan import plan_load
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRecord
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import rewind, verify
from spark_connector.read import offset_reader
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads, open_files
from tests.support.topic_data import TopicData
from tests.support.topics import Topic

LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture
def admin(broker: Kafka) -> Iterator[Admin]:
    with contextlib.closing(Cluster(broker.bootstrap, create_topics=False)) as cluster:
        yield Admin(cluster)


def created_anew(admin: Admin, data: TopicData, records: int) -> TopicData:
    admin.delete_topics([data.topic])
    again = TopicData(data.bootstrap, data.topic, partitions=2)
    again.produce(records)
    return again


def loads_of(data: TopicData, to: Path, **options: str) -> PlainLoads:
    return PlainLoads(data.bootstrap, data.topic, to, options=options)


@pytest.mark.parametrize("records", [10, 20, 60], ids=["shorter", "as long", "outgrown"])
def test_a_topic_created_anew_ends_the_loads_or_is_loaded_whole(
    admin: Admin, data: TopicData, tmp_path: Path, records: int
) -> None:
    loads = loads_of(data, tmp_path)
    loads.must_load()
    created_anew(admin, data, records)
    with pytest.raises(DataLoss, match="PARTITION_OFFSET_CHANGED"):
        loads.load()
    lenient = loads_of(data, tmp_path, **LENIENT)
    assert sum(range.size for range in lenient.load().ranges) == records
    assert loads.load().load_id is None, "the new topic is the known one now"
    found = verify(loads.target, loads.bootstrap)
    assert found.problems == found.unread == ()
    assert [load.verdict for load in found.loads] == ["unknown", "ok"]


def test_partitions_that_are_still_empty_forget_the_old_topic_too(
    admin: Admin, data: TopicData, tmp_path: Path
) -> None:
    loads_of(data, tmp_path).must_load()
    again = created_anew(admin, data, 1)
    lenient = loads_of(data, tmp_path, **LENIENT)
    lenient.must_load()
    again.produce(60)
    lenient.must_load()
    assert lenient.visible() == sorted([*data.positions(), *again.positions()])


@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
def test_a_leader_that_was_deposed_and_has_not_heard_of_it_is_asked_again(
    data: TopicData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """It answers for a moment when its host is back after a cut, with the end that it knew before."""
    loads = loads_of(data, tmp_path, **options, **{"fetchOffset.retryIntervalMs": "1"})
    loads.must_load()
    data.produce(10)
    deposed = [True]

    def answer(
        cluster: Cluster, timestamps: Mapping[TopicPartition, int], **given: Any
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = list_offsets(cluster, timestamps, **given)
        if LATEST in timestamps.values() and deposed:
            deposed.pop()
            return {tp: end._replace(offset=1) for tp, end in found.items()}
        return found

    monkeypatch.setattr(offset_reader, "list_offsets", answer)
    loads.must_load()
    assert not deposed
    assert loads.visible() == sorted(data.positions())


def test_a_topic_created_anew_while_it_is_loaded_commits_nothing(admin: Admin, data: TopicData, tmp_path: Path) -> None:
    loads = loads_of(data, tmp_path)

    def recreate(phase: str, _: LoadRecord | None) -> None:
        if phase == "write":
            created_anew(admin, data, 60)

    with pytest.raises(LoadInterrupted, match="created again"):
        loads.load(recreate)
    assert loads.visible() == []
    assert sum(range.size for range in loads.load().ranges) == 60


def test_a_topic_deleted_once_it_was_read_is_loaded(admin: Admin, data: TopicData, tmp_path: Path) -> None:
    def delete(phase: str, _: LoadRecord | None) -> None:
        if phase == "commit":
            admin.delete_topics([data.topic])

    assert loads_of(data, tmp_path).load(delete).load_id is not None


def test_a_rerun_over_two_topics_of_one_name_is_refused(admin: Admin, data: TopicData, tmp_path: Path) -> None:
    loads = loads_of(data, tmp_path / "output")
    first = loads.must_load()
    created_anew(admin, data, 60)
    request = LoadRequest.build(
        Target(str(tmp_path / "again"), loads.target.group),
        bootstrap_servers=data.bootstrap,
        topic=data.topic,
        from_load=first,
        from_directory=str(tmp_path / "output"),
    )
    deleted = f"load {first} has loaded, has been deleted"
    with (
        open_files(loads.target) as earlier,
        open_files(request.target) as site,
        pytest.raises(DataLoss, match=deleted),
    ):
        plan_load(request, site, earlier.log)


def test_a_rewind_goes_back_to_the_topic_that_was_loaded_then(admin: Admin, data: TopicData, tmp_path: Path) -> None:
    loads = loads_of(data, tmp_path)
    first = loads.must_load()
    data.produce(2)
    loads.must_load()
    created_anew(admin, data, 60)
    loads_of(data, tmp_path, **LENIENT).must_load()
    rewind(loads.target, first)
    with pytest.raises(DataLoss, match="created again"):
        loads.load()


def test_a_load_of_before_there_were_ids_is_gone_on_from(data: TopicData, tmp_path: Path) -> None:
    loads = loads_of(data, tmp_path)
    loads.must_load()
    (entry,) = (tmp_path / "_offsets").rglob("*.json")
    document = json.loads(entry.read_text())
    del document["load"]["topic_ids"]
    entry.write_text(json.dumps(document))
    data.produce(2)
    loads.must_load()
    assert loads.visible() == data.positions()


@pytest.mark.parametrize("options", [{}, {"startingOffsetsByTimestampStrategy": "latest"}], ids=["error", "latest"])
@pytest.mark.parametrize("shape", ["for all", "by partition"])
def test_a_partition_that_comes_later_has_no_record_that_is_young_enough_yet(
    broker: Kafka, topic: str, tmp_path: Path, options: dict[str, str], shape: str
) -> None:
    noon = 1_900_000_000_000
    records = Topic(broker.bootstrap, topic, message_timestamp_after_max_ms="9223372036854775807")
    records.produce([b"old"], timestamp=noon - 1)
    records.produce([b"young"], timestamp=noon)
    start = {"startingTimestamp": str(noon)}
    if shape == "by partition":
        start = {"startingOffsetsByTimestamp": json.dumps({topic: {"0": noon}})}
    loads = PlainLoads(broker.bootstrap, topic, tmp_path, options={**options, **start})
    loads.must_load()
    records.grow(2)
    records.produce([b"young"], timestamp=noon)
    loads.must_load()
    records.produce([b"old"], partition=1, timestamp=noon - 1)
    records.produce([b"young"], partition=1, timestamp=noon)
    loads.must_load()
    named = shape == "for all"  # what is not named begins at its beginning
    assert loads.visible() == [(topic, 0, 1), (topic, 0, 2), *([] if named else [(topic, 1, 0)]), (topic, 1, 1)]


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (PermissionError("HDFS: AccessControlException: user=nobody"), False),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), False),
        (OSError(errno.EROFS, "Read-only file system"), False),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), True),
        (OSError("HDFS: Name node is in safe mode"), True),
    ],
    ids=str,
)
def test_a_service_waits_for_what_heals_by_waiting_only(tmp_path: Path, error: OSError, heals: bool) -> None:
    with pytest.raises(LoadError, match=str(tmp_path)) as raised, open_files(Target(str(tmp_path), "g")):
        raise error
    assert raised.value.retriable is heals
    assert str(error) in str(raised.value)


def test_a_rerun_leaves_the_group_with_the_topics_that_it_has_loaded(
    admin: Admin, data: TopicData, zookeeper: str, tmp_path: Path
) -> None:
    other = TopicData(data.bootstrap, f"{data.topic}-other", partitions=2)
    other.produce(20)

    def plan(topics: str, **rest: Any) -> LoadRecord:
        request = LoadRequest.build(
            Target(str(tmp_path / rest.pop("to", "output")), f"g-{data.topic}", "zookeeper", zookeeper),
            bootstrap_servers=data.bootstrap,
            topic=topics,
            **rest,
        )
        with open_files(request.target) as site:
            record = plan_load(request, site)
            assert record is not None
            site.log.append(record)
            site.log.mark_published(record)
            return record

    both = f"{data.topic},{other.topic}"
    plan(both)
    data.produce(2)
    second = plan(data.topic)
    created_anew(admin, other, 60)
    again = plan(both, from_load=second.load_id, to="again")
    assert again.positions
    assert again.positions == second.positions
    data.produce(2)
    with pytest.raises(DataLoss, match=f"{other.topic}-0 was loaded up to offset 10 of a topic that has been deleted"):
        plan(both)
