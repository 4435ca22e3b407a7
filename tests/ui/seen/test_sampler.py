"""What the sampler sees of a real cluster, how it goes on without one, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.committed_offsets import CommittedOffset, GroupOffsets, offsets_of_groups
from broker.client.consumer import Consumer
from broker.client.group_descriptions import GroupLag
from broker.client.partition_offsets import LATEST, known_offsets
from broker.client.producer import Producer
from broker.embedded import EmbeddedCluster
from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen import sampler as module
from pykafka_ui.seen.sampler import Sampler
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.ui_process import SOON
from tests.support.waiting import eventually


def hasty(bootstrap: str) -> ClientSettings:
    """For tests of a broker that goes away."""
    return replace(ClientSettings.of(bootstrap), default_api_timeout_ms=3000, request_timeout_ms=3000)


@pytest.fixture(autouse=True)
def _looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SOON.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def sampler(broker: Kafka) -> Iterator[Sampler]:
    made = Sampler(ClientSettings.of(broker.bootstrap))
    made.start()
    yield made
    made.stop()


def test_topics_offsets_and_lags_are_seen(sampler: Sampler, broker: Kafka, topic: str, group: str) -> None:
    def offsets() -> list[tuple[int, int]]:
        return [(one.start, one.end) for one in sampler.watch().topics[topic].partitions]

    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, b"x", partition=number % 2)
            producer.flush(30)
        GroupOffsets(cluster, group).commit(
            {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 5}, "pykafka load 7"
        )
        Admin(cluster).delete_records({TopicPartition(topic, 0): 1})
    eventually(lambda: topic in sampler.watch().topics and offsets() == [(1, 5), (0, 5)])
    eventually(lambda: group in sampler.watch().groups and sampler.watch().groups[group].behind.lag == 3)
    seen = sampler.watch()
    assert {one.state for one in seen.topics[topic].partitions} == {"in sync"}
    assert seen.groups[group].kind == "load"
    assert [(one.id, behind) for one, behind in seen.readers_of(topic)] == [(group, GroupLag(3, 0, 0))]
    eventually(lambda: sampler.watch().topics[topic].size > 0)
    assert seen.error == ""


def test_partitions_of_members_without_a_commit_are_unread(
    sampler: Sampler, broker: Kafka, topic: str, group: str
) -> None:
    """One that has committed in one of three partitions has not read all."""

    def behind() -> int | None:
        found = sampler.watch(groups=True).groups.get(group)
        return found.behind.total if found else None

    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 3)
        for number in range(30):
            producer.send(topic, b"x", partition=number % 3)
        producer.flush(30)
        Admin(cluster).delete_records({TopicPartition(topic, 1): 4})
    with Consumer(broker.bootstrap, {"group.id": group, "enable.auto.commit": "false"}) as member:
        member.subscribe([topic])
        eventually(lambda: bool(member.poll(0.1) or len(member.assignment()) == 3))
        member.commit({TopicPartition(topic, 0): 9})
        eventually(lambda: behind() == 17)
        found = sampler.watch(groups=True).groups[group]
        assert (found.behind.lag, dict(found.unread)) == (
            1,
            {TopicPartition(topic, 1): 6, TopicPartition(topic, 2): 10},
        )
        assert sampler.watch().readers_of(topic) == [(found, GroupLag(1, 16, 0))]
        member.commit({TopicPartition(topic, 1): 10, TopicPartition(topic, 2): 10})
        eventually(lambda: behind() == 1)
    eventually(lambda: sampler.watch(groups=True).groups[group].assigned == frozenset())


def test_a_cluster_that_goes_away_and_comes_back(broker_factory: Callable[..., BrokerProcess]) -> None:
    process = broker_factory()
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("kept")
    made = Sampler(hasty(process.bootstrap))
    made.start()
    try:
        eventually(lambda: "kept" in made.watch().topics)
        process.kill()
        eventually(lambda: made.watch().error != "")
        assert "kept" in made.watch().topics, "what was seen last"
        process.start()
        eventually(lambda: made.watch().error == "")
    finally:
        made.stop()


def test_a_dead_broker_hides_no_partition_of_another(tmp_path: Path) -> None:
    """Whose topics have one replica, as on many small clusters: they stay without a leader until it is back."""
    with (
        EmbeddedCluster(2, tmp_path, {"offsets.topic.num.partitions": "1"}) as brokers,
        Cluster(brokers.bootstrap) as cluster,
    ):
        Admin(cluster).create_topics([NewTopic(f"on-{broker}", assignment=[[broker]]) for broker in (1, 2)])
        made = Sampler(hasty(brokers.bootstrap))
        made.start()
        try:
            eventually(lambda: {"on-1", "on-2"} <= made.watch().topics.keys())
            eventually(lambda: all(made.watch().topics[name].records == 0 for name in ("on-1", "on-2")))
            brokers.brokers[2].kill()
            eventually(lambda: made.watch().leaderless > 0)
            with Producer(brokers.bootstrap) as producer:
                producer.send("on-1", b"x")
                producer.flush(30)
            began = time.monotonic()
            eventually(lambda: made.watch().topics["on-1"].records == 1)
            assert time.monotonic() - began < 30, "it is not asked for partition by partition"
            eventually(lambda: made.watch().error == "")  # the look before may have met the broker that died
            assert made.watch().topics["on-2"].partitions[0].state == "no leader"
        finally:
            made.stop()


def test_offsets_of_those_that_answer(broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap, create_topics=False) as cluster:
        Admin(cluster).create_topic(topic)
        cluster.topics()
        asked = [TopicPartition("no-such-topic", 0), TopicPartition(topic, 0), TopicPartition(topic, 7)]
        eventually(lambda: known_offsets(cluster, asked, LATEST) == {TopicPartition(topic, 0): 0})


def test_the_first_snapshot_is_waited_for_by_all_who_ask(broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the second: it must not be told that the cluster does not answer."""
    monkeypatch.setattr(module, "FIRST_S", 60)
    made = Sampler(ClientSettings.of(broker.bootstrap))
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(made.watch, groups=number % 2 == 0) for number in range(6)]
        made.start()
        try:
            assert [one.result().error for one in asked] == [""] * 6
            assert all(one.result().at_ms for one in asked)
        finally:
            made.stop()


def test_nobody_looks_so_it_looks_seldom(broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT_S", 0.5)
    monkeypatch.setattr(module, "ENDS_S", 0.05)
    monkeypatch.setattr(module, "CPU_SHARE", 3.0)  # else a look of 10 ms is due again after four seconds
    looks: list[float] = []
    made = Sampler(ClientSettings.of(broker.bootstrap))
    take = made._take

    def counted(look: module._Look) -> None:
        looks.append(time.monotonic())
        take(look)

    monkeypatch.setattr(made, "_take", counted)
    made.start()
    try:
        made.watch()
        eventually(lambda: bool(looks) and time.monotonic() - looks[-1] > 2)
        scraped, seen = len(looks), made.snapshot
        assert made.at_most_old(30) is seen, "it is not that old"
        assert made.at_most_old(0.1).at_ms > seen.at_ms, "the look is waited for"
        assert len(looks) >= scraped + 2
        eventually(lambda: time.monotonic() - looks[-1] > 2)
        before = len(looks)
        assert made.watch().at_ms > 0
        eventually(lambda: len(looks) > before, timeout=20)  # else it would look in a minute
    finally:
        made.stop()


def test_a_look_that_takes_long_is_taken_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that fails."""
    now = {"wall": 100.0, "cpu": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(time, "thread_time", lambda: now["cpu"])

    def work() -> None:
        now["cpu"] += 0.5
        if now["wall"] > 100:
            raise ConnectionFailed("gone")

    look = module._Look("topics", work, 2.0)
    look.run(0.01)
    assert look.due_at(watched=True) == 150
    now["wall"] = 150.0
    with pytest.raises(ConnectionFailed):
        look.run(0.01)
    assert look.due_at(watched=True) == 200


@pytest.mark.parametrize("version", [7, 8])
def test_offsets_of_many_groups_at_once(
    broker: Kafka, topic: str, group: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers before Kafka 3.0 are asked, one by one, and later ones."""
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic)
        tp, names = TopicPartition(topic, 0), [f"{group}-{number}" for number in range(3)]
        for number, name in enumerate(names):
            GroupOffsets(cluster, name).commit({tp: number}, "text")
        connection = cluster.connection(cluster.coordinator(names[0]))
        monkeypatch.setattr(connection, "version", lambda api, at_most=None: version)
        found = offsets_of_groups(connection, [*names, "nobody"])
        assert {name: dict(found[name]) for name in names} == {
            name: {tp: CommittedOffset(number, "text")} for number, name in enumerate(names)
        }
        assert found["nobody"] == {}


@pytest.mark.parametrize(
    ("code", "is_error"),
    [(ErrorCode.cluster_authorization_failed, False), (ErrorCode.coordinator_load_in_progress, True)],
)
def test_groups_that_may_not_be_seen_are_none_and_groups_that_cannot_be_had_stay(
    broker: Kafka, topic: str, group: str, code: ErrorCode, is_error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic)
        GroupOffsets(cluster, group).commit({TopicPartition(topic, 0): 0})
    made = Sampler(ClientSettings.of(broker.bootstrap))
    made.start()
    try:
        eventually(lambda: group in made.watch().groups)

        def refused(*_: object, **__: object) -> None:
            raise BrokerError(code, "listing the groups")

        monkeypatch.setattr(made._admin, "groups_by_coordinator", refused)
        if is_error:
            eventually(lambda: any("groups:" in text for text in made.watch().others))
            assert group in made.watch().groups
        else:
            eventually(lambda: group not in made.watch().groups)
            assert made.watch().others == ()
    finally:
        made.stop()
