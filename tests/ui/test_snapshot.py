"""What a group is, as far as its committed offsets tell."""

from __future__ import annotations

import pytest

from broker.client.cluster import Cluster
from broker.client.committed_offsets import CommittedOffset, GroupOffsets
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.snapshot import Group
from spark_connector.offset_store.base import open_store
from spark_connector.write.decision import Decision, Prepared, pack
from spark_connector.write.decision_log import DecisionLog, Recorded
from spark_connector.write.write_plan import SinkNames
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData


def group_of(*texts: str, protocol_type: str = "") -> Group:
    return Group(
        "g", "Empty", protocol_type, {TopicPartition("t", n): CommittedOffset(5, t) for n, t in enumerate(texts)}
    )


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (group_of("", "pykafka load nightly-000007-0123abcd"), "load"),
        (group_of("pykafka stream"), "stream"),
        (group_of(*pack(Decision(7, (Prepared(0, 1, 2, 3, 4),)), 99)), "exactly-once write"),
        (group_of("", protocol_type="consumer"), "consumer"),
        (group_of("mine", protocol_type="connect"), "connect"),
        (group_of("mine"), "offsets only"),
    ],
)
def test_kinds_by_what_is_committed(group: Group, kind: str) -> None:
    assert group.kind == kind
    assert group.has_lag == (kind != "exactly-once write"), "its offsets are numbers of batches"


def test_what_the_connector_commits_is_recognized(broker: Kafka, topic: str, group: str) -> None:
    TopicData(broker.bootstrap, topic, partitions=1)
    store = open_store("group", {"kafka.bootstrap.servers": broker.bootstrap})
    store.commit(group, {TopicPartition(topic, 0): 1})
    store.close()
    with Cluster(broker.bootstrap) as cluster:
        names = SinkNames(group, "sink")
        DecisionLog(cluster, names).mark_done(Recorded(Decision(3, ()), topic))

        def kind_of(name: str) -> str:
            return Group(name, "Empty", "", GroupOffsets(cluster, name).committed()).kind

        assert kind_of(group) == "stream"
        assert kind_of(names.group_of_done) == "exactly-once write"
