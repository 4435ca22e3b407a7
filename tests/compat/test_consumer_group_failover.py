"""Groups of KIP-848 whose coordinator is killed in the midst of a rebalance: members keep their epochs and targets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import GroupDescription
from broker.client.cluster import Cluster
from broker.protocol.api_keys import ApiKey
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.consumer_process import ConsumerProcess
from tests.support.kafka import need
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.topics import Topic
from tests.support.waiting import eventually

PARTITIONS = 4
QUICK = {"group.consumer.min.heartbeat.interval.ms": "100", "group.consumer.heartbeat.interval.ms": "300"}
NEW = {"group.protocol": "consumer"}


def seen(bootstrap: str, group: str) -> GroupDescription:
    with Cluster(bootstrap) as cluster:
        return Admin(cluster).describe_group(group)


def promises(group: GroupDescription) -> Any:
    """What every member may rely on: epochs, what it has, what it will have."""
    return (
        group.epoch,
        group.assignment_epoch,
        [(one.member_id, one.epoch, one.partitions, one.target) for one in group.members],
    )


def when_quiet(bootstrap: str, group: str) -> Any:
    """What members may rely on, once that is the same for three heartbeats: then all but the paused one are done."""
    latest: Any = None
    since = 0.0

    def is_quiet() -> bool:
        nonlocal latest, since
        found = promises(seen(bootstrap, group))
        if found != latest:
            latest, since = found, time.monotonic()
        return time.monotonic() - since > 1.0

    eventually(is_quiet)
    return latest


@contextmanager
def members(bootstrap: str, group: str, topic: str) -> Iterator[list[ConsumerProcess]]:
    made = [ConsumerProcess(bootstrap, group, topic, {**NEW, "client.id": "first"})]
    try:
        yield made
    finally:
        for one in made:
            one.resume()
            one.stop()


def survive(
    bootstrap: str, group: str, records: Topic, killed: Callable[[], AbstractContextManager[None]], rounds: int
) -> None:
    """Kill the coordinator while the first member has to give up partitions and sleeps."""
    with members(bootstrap, group, records.name) as made:
        eventually(lambda: len(made[0].assigned) == PARTITIONS)
        for number in range(rounds):
            made[0].pause()
            made.append(ConsumerProcess(bootstrap, group, records.name, NEW))
            eventually(lambda size=number + 2: len(seen(bootstrap, group).members) == size)  # type: ignore[misc]
            eventually(lambda: seen(bootstrap, group).state == "Reconciling")
            before = when_quiet(bootstrap, group)
            with killed():
                eventually(lambda: seen(bootstrap, group).state == "Reconciling")
                after = promises(seen(bootstrap, group))
                assert after == before
                made[0].resume()
                eventually(lambda: seen(bootstrap, group).state == "Stable")
                for partition in range(PARTITIONS):
                    records.number(10, partition)
            written = (number + 1) * PARTITIONS * 10
            eventually(lambda n=written: len({one for each in made for one in each.records}) == n)  # type: ignore[misc]
            assert [each.lost for each in made] == [[]] * len(made), "nobody was fenced"
            assert not [error for each in made for error in each.errors if "MEMBER" in error or "FENCED" in error]


def test_a_rebalance_goes_on_after_the_broker_is_killed(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str
) -> None:
    broker = broker_factory({**SESSION_SETTINGS, **QUICK})
    need(broker.bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT)

    @contextmanager
    def killed() -> Iterator[None]:
        broker.kill()
        broker.start()
        yield

    survive(broker.bootstrap, group, Topic(broker.bootstrap, topic, PARTITIONS), killed, rounds=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_broker_goes_on_with_a_rebalance(tmp_path: Path, topic: str, group: str) -> None:
    with ReplicatedCluster(tmp_path, QUICK) as cluster:
        need(cluster.bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT)
        cluster.create(topic, PARTITIONS)
        records = Topic.__new__(Topic)
        records.bootstrap, records.name = cluster.bootstrap, topic
        survive(cluster.bootstrap, group, records, lambda: cluster.without(cluster.coordinator(group)), rounds=3)
