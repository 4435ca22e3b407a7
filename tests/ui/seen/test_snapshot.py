"""What a group is, as far as its committed offsets tell."""

from __future__ import annotations

import pytest

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.committed_offsets import CommittedOffset, GroupOffsets
from broker.client.group_descriptions import GroupLag
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.app import GroupMetrics
from pykafka_ui.seen.sampler import Sampler
from pykafka_ui.seen.snapshot import Group, Partition, Snapshot, Topic
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


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
AT = {T0: CommittedOffset(5, ""), T1: CommittedOffset(5, "")}
NOTHING_KNOWN = Group("g", "Stable", "consumer", AT, assigned=frozenset({T0, U0}))


@pytest.mark.parametrize(
    ("group", "behind", "total"),
    [
        (Group("g", "Empty", "consumer", AT, {T0: 3, T1: 0}), GroupLag(3, 0, 0), 3),
        (Group("g", "Empty", "consumer", AT, {T0: 0, T1: 0}), GroupLag(0, 0, 0), 0),
        (Group("g", "Empty", "consumer", AT, {T0: 3}), GroupLag(3, 0, 1), 3),
        (Group("g", "Empty", "consumer", AT), GroupLag(None, 0, 2), None),
        (Group("g", "Empty", "consumer"), GroupLag(None, 0, 0), None),
        (Group("g", "Stable", "", assigned=frozenset({U0}), unread={U0: 7}), GroupLag(None, 7, 0), 7),
        (NOTHING_KNOWN, GroupLag(None, None, 3), None),
    ],
)
def test_an_unknown_lag_is_no_zero(group: Group, behind: GroupLag, total: int | None) -> None:
    assert (group.behind, group.behind.total) == (behind, total)


def test_a_topic_without_a_known_lag_has_no_sum_of_lags() -> None:
    """Nor has it one in the exporter whose names these are."""
    group = Group("g", "Stable", "consumer", AT, {T0: 3}, assigned=frozenset({U0}), unread={U0: 7})
    families = {one.name: one.samples for one in GroupMetrics(Snapshot(1, groups={"g": group})).collect()}
    assert [(one.labels["topic"], one.value) for one in families["kafka_consumergroup_lag_sum"]] == [("t", 3)]
    assert [(one.labels["topic"], one.value) for one in families["kafka_consumergroup_lag"]] == [("t", 3), ("u", -1)]


def test_the_history_of_an_unknown_lag_is_a_gap() -> None:
    sampler = Sampler(ClientSettings(bootstrap_servers=("127.0.0.1:1",)))
    known = Group("known", "Empty", "consumer", AT, {T0: 3, T1: 1})
    for groups in ({"g": NOTHING_KNOWN, "known": known}, {"g": NOTHING_KNOWN}):
        sampler._record_groups(groups)
    history = sampler.history("lag")
    assert [value for _, value in history.values("lag", "known")] == [4, None]
    assert [value for _, value in history.values("lag")] == [4, None]
    assert history.values("lag", "g") == []


def test_records_and_archived_bytes_of_a_topic_are_known_only_with_those_of_each_partition() -> None:
    one = Partition(0, 0, (0,), (0,), start=2, end=5, archived=7)
    silent = Partition(1, 0, (0,), (0,), start=2, archived=None)
    assert (silent.records, Topic("t", False, (one,)).records, Topic("t", False, (one, silent)).records) == (
        None,
        3,
        None,
    )
    assert (Topic("t", False, (one,)).archived, Topic("t", False, (one, silent)).archived) == (7, None)
