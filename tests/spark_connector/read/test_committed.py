"""`startingOffsets=committed` from every kind of store, in batch and stream, and where the log has moved on since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.offset_store.base import STORE_KINDS, open_store
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader
from tests.support import stream_calls
from tests.support.stream_calls import ALL, as_spark_does, planned, ranges_of
from tests.support.topics import Topic


@pytest.fixture(params=STORE_KINDS)
def store(request: pytest.FixtureRequest, numbers: Topic, tmp_path: Path, zookeeper: str, group: str) -> dict[str, str]:
    """The options of a query over `numbers` that starts where the group stands in a store of each kind."""
    places = {
        "files": {"offsetStore.path": str(tmp_path)},
        "zookeeper": {"offsetStore.zookeeper.connect": f"{zookeeper}/{group}"},
        "group": {},
    }
    where = {"kafka.bootstrap.servers": numbers.bootstrap, "subscribe": numbers.name, "startingOffsets": "committed"}
    return {**where, "offsetStore": request.param, "group": group, **places[request.param]}


def commit(store: dict[str, str], numbers: Topic, *offsets: int) -> None:
    opened = open_store(store["offsetStore"], store)
    opened.commit(store["group"], {TopicPartition(numbers.name, p): offset for p, offset in enumerate(offsets)})
    opened.close()


def batch_plan(store: dict[str, str]) -> list[tuple[int, int, int]]:
    return ranges_of(KafkaBatchReader(parse_options(store, Mode.BATCH)).partitions())


def stream_plan(store: dict[str, str]) -> list[tuple[int, int, int]]:
    reader = stream_calls.reader({**store, "fetchOffset.retryIntervalMs": "20"})
    try:
        start: dict[str, Any] = as_spark_does(reader.initialOffset())
        return planned(reader, start, reader.latestOffset(start, ALL))
    finally:
        reader.stop()


@pytest.mark.parametrize("plan", [batch_plan, stream_plan])
@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        pytest.param((6, 2), [(0, 6, 10), (1, 2, 5)], id="all"),
        pytest.param((10, 5), [], id="at the end"),
        pytest.param((6,), [(0, 6, 10), (1, 0, 5)], id="some: the others from earliest"),
        pytest.param((), [(0, 0, 10), (1, 0, 5)], id="none: from earliest"),
    ],
)
def test_a_query_starts_where_its_group_stands(
    store: dict[str, str],
    numbers: Topic,
    plan: Callable[[dict[str, str]], object],
    committed: tuple[int, ...],
    expected: object,
) -> None:
    if committed:
        commit(store, numbers, *committed)
    assert plan(store) == expected


def test_a_topic_that_was_made_again_since_the_commit_is_data_loss_or_read_from_its_beginning(
    store: dict[str, str], numbers: Topic
) -> None:
    reader = stream_calls.reader(store)
    reader.commit(as_spark_does(reader.latestOffset(as_spark_does(reader.initialOffset()), ALL)))
    reader.stop()
    assert batch_plan(store) == []
    numbers.delete()
    numbers.create(2)
    numbers.produce([b"new"] * 20)
    if store["offsetStore"] == "group":  # its coordinator has forgotten the old topic
        assert batch_plan(store) == [(0, 0, 20)]
        return
    for plan in (batch_plan, stream_plan):
        with pytest.raises(DataLoss, match=f"TOPIC_RECREATED.*Topic {numbers.name} was deleted and recreated after"):
            plan(store)
        assert plan({**store, "failOnDataLoss": "false"}) == [(0, 0, 20)]
    commit(store, numbers, 8, 0)
    assert batch_plan(store) == [(0, 8, 20)], "by a program that tells no id"


def test_what_was_deleted_since_the_commit_is_data_loss_or_counted(store: dict[str, str], numbers: Topic) -> None:
    commit(store, numbers, 2, 5)
    cluster = Cluster(numbers.bootstrap)
    Admin(cluster).delete_records({TopicPartition(numbers.name, 0): 7})
    cluster.close()
    with pytest.raises(DataLoss, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[2, 7\)"):
        stream_plan(store)
    assert stream_plan({**store, "failOnDataLoss": "false"}) == [(0, 7, 10)]


def test_a_commit_beyond_the_end_is_said_to_be(store: dict[str, str], numbers: Topic) -> None:
    commit(store, numbers, 99, 5)
    with pytest.raises(DataLoss, match=r"PARTITION_OFFSET_CHANGED.* from 99 to 10"):
        stream_plan(store)
    with pytest.raises(ConnectorError, match=r"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.* 99 .* 10"):
        batch_plan(store)
