"""Lag tools see loads: the brokers' consumer group is told how far they are, unless it is somebody else's."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from spark_connector.load import LoadResult, run_load
from spark_connector.loads.commit import publish_offsets
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of
from tests.support.kafka import await_topics
from tests.support.plain_loads import PlainLoads, open_files
from tests.support.topic_data import TopicData


def find_nothing(loads: PlainLoads) -> LoadResult:
    """`load`, which must find nothing new and so needs no Spark."""
    result = run_load(loads.request(), lambda: pytest.fail("there is nothing to write"), lambda phase, record: None)
    assert result.load_id is None
    return result


def publish(loads: PlainLoads) -> None:
    with open_files(loads.target) as site:
        publish_offsets(loads.request(), site)


def test_the_lag_of_a_group_of_loads_is_what_is_not_loaded(data: TopicData, tmp_path: Path) -> None:
    gone = TopicData(data.bootstrap, f"{data.topic}-gone", partitions=1)
    gone.produce(1)
    loads = PlainLoads(data.bootstrap, f"{data.topic},{gone.topic}", tmp_path, group=f"g-{data.topic}")
    load_id = loads.must_load()
    with Cluster(data.bootstrap) as cluster:
        Admin(cluster).delete_topics([gone.topic])
        await_topics(data.bootstrap, gone.topic, partitions=0)
        publish(loads)
        data.produce(4)
        described = json.loads(
            answer_of("groups", "describe", "--group", loads.target.group, "-b", data.bootstrap, "--json")
        )
        rows = [(row["partition"], row["currentOffset"], row["lag"]) for row in described[0]["partitions"]]
        assert rows == [(0, 10, 2), (1, 10, 2)]
        committed = GroupOffsets(cluster, loads.target.group).committed()
        assert {one.metadata for one in committed.values()} == {f"pykafka load {load_id}"}
        publish(loads)  # again, over its own


def test_an_application_of_that_name_keeps_its_offsets(
    data: TopicData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path)
    loads.must_load()
    tp = TopicPartition(data.topic, 0)
    with Cluster(data.bootstrap) as cluster, caplog.at_level(logging.WARNING, "pykafka.spark"):
        offsets = GroupOffsets(cluster, loads.target.group)
        offsets.commit({tp: 3})
        publish(loads)
        publish(loads)
        assert offsets.fetch() == {tp: 3}
    (warning,) = caplog.messages
    assert f"not published to the consumer group '{loads.target.group}'" in warning
    assert "offsets of another application" in warning


def test_a_broker_that_cannot_be_told_is_a_warning(
    tmp_path: Path,
    broker_factory: Callable[..., BrokerProcess],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_connector.loads.commit._PATIENCE", 0.5)
    broker = broker_factory()
    data = TopicData(broker.bootstrap, "t", partitions=1)
    data.produce(1)
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path / "out")  # beside the broker's own directory
    loads.must_load()
    broker.kill()
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        publish(loads)
    assert "The load is committed, but its offsets were not published to the consumer group 'g-t'" in caplog.text


def test_a_load_that_finds_nothing_publishes_what_was_not_told_of_the_one_before(
    data: TopicData, tmp_path: Path
) -> None:
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path, group=f"g-{data.topic}")
    load_id = loads.must_load()  # and is killed before it tells the brokers
    with Cluster(data.bootstrap) as cluster:
        offsets = GroupOffsets(cluster, loads.target.group)
        assert offsets.committed() == {}
        find_nothing(loads)
        told = {TopicPartition(data.topic, partition): (10, f"pykafka load {load_id}") for partition in (0, 1)}
        assert {tp: (one.offset, one.metadata) for tp, one in offsets.committed().items()} == told


def test_what_brokers_have_forgotten_they_are_told_again_though_not_at_every_look(
    data: TopicData, tmp_path: Path
) -> None:
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path, group=f"g-{data.topic}")
    loads.must_load()
    now = 1000.0
    with Cluster(data.bootstrap) as cluster, open_files(loads.target) as site:
        offsets = GroupOffsets(cluster, loads.target.group)

        def look(seconds: float) -> dict[TopicPartition, int]:
            nonlocal now
            now += seconds
            publish_offsets(loads.request(), site, idle=True, clock=lambda: now)
            return offsets.fetch()

        assert len(look(0)) == 2
        Admin(cluster).delete_group(loads.target.group)  # as offsets.retention.minutes does
        assert look(299) == {}
        assert len(look(1)) == 2


def test_a_load_that_finds_nothing_does_not_fail_for_what_brokers_refuse(
    data: TopicData, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path)
    loads.must_load()

    def refuse(*_arguments: object, **_options: object) -> None:
        raise BrokerError(ErrorCode.group_authorization_failed, "no right")

    monkeypatch.setattr(GroupOffsets, "commit", refuse)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        find_nothing(loads)
    assert "not published" in caplog.text
    monkeypatch.undo()
    find_nothing(loads)
    with Cluster(data.bootstrap) as cluster:
        assert len(GroupOffsets(cluster, loads.target.group).fetch()) == 2
