"""ListOffsets: where partitions begin and end, and where they stood at a time."""

from __future__ import annotations

import pytest

from broker.client.batch_producer import produce_batches
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.partition_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, known_newest, list_offsets
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.builder import BatchBuilder
from tests.client.conftest import TopicMaker


def write(cluster: Cluster, tp: TopicPartition, timestamps: list[int]) -> None:
    """One batch of one record for each timestamp."""
    batches = []
    for timestamp in timestamps:
        builder = BatchBuilder()
        builder.append(timestamp, None, b"v")
        batches.append(builder.build())
    produce_batches(cluster, tp, batches)


def test_many_partitions_are_answered_at_once(cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(3)
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 2)
    write(cluster, full, [1000, 2000, 3000])
    earliest = list_offsets(cluster, {full: EARLIEST, empty: EARLIEST})
    assert {tp: found[:2] for tp, found in earliest.items()} == {full: (0, -1), empty: (0, -1)}
    assert list_offsets(cluster, {empty: LATEST, full: LATEST}) == {empty: (0, -1, 0), full: (3, -1, 0)}


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (0, (0, 1000)),
        (1000, (0, 1000)),
        (1001, (1, 2000)),
        (3000, (2, 3000)),
        (3001, (-1, -1)),
        (MAX_TIMESTAMP, (2, 3000)),
    ],
)
def test_the_first_record_as_young_as_a_timestamp(
    cluster: Cluster, make_topic: TopicMaker, timestamp: int, found: tuple[int, int]
) -> None:
    tp = TopicPartition(make_topic(), 0)
    write(cluster, tp, [1000, 2000, 3000])
    assert list_offsets(cluster, {tp: timestamp})[tp][:2] == found


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_without_transactions_both_isolation_levels_end_alike(
    cluster: Cluster, make_topic: TopicMaker, level: str
) -> None:
    tp = TopicPartition(make_topic(), 0)
    write(cluster, tp, [1, 2])
    assert list_offsets(cluster, {tp: LATEST}, isolation_level=level)[tp].offset == 2


def test_who_only_watches_gets_the_newest_times_of_partitions_that_have_a_leader(
    cluster: Cluster, make_topic: TopicMaker
) -> None:
    topic = make_topic(2)
    full, empty, none = (TopicPartition(topic, index) for index in (0, 1, 7))
    write(cluster, full, [1000, 3000, 2000])
    cluster.topics()
    assert known_newest(cluster, [full, empty, none]) == {full: 3000, empty: -1}


def test_a_partition_that_is_not_there_is_named(cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(1)
    with pytest.raises(UnknownTopic, match=f"topic '{topic}' has 1 partitions, but no 5"):
        list_offsets(cluster, {TopicPartition(topic, 0): LATEST, TopicPartition(topic, 5): LATEST})


def test_an_unknown_isolation_level_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"isolation\.level=serializable"):
        list_offsets(cluster, {}, isolation_level="serializable")


def test_nothing_asked_is_nothing_answered(cluster: Cluster) -> None:
    assert list_offsets(cluster, {}) == {}
