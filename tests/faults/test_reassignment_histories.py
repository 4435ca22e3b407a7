"""Partitions move between four brokers, without a pause, while brokers are killed, frozen and cut off.

The promises are those of test_cluster_histories.py. At the end every partition is sent to brokers 1 to 3, and broker 4
keeps no log of it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.faults.test_cluster_histories import REPLICATED
from tests.support.cluster import ClusterFaults, LinkedCluster, StateWatch
from tests.support.history import History, anomalies
from tests.support.history_run import WRITTEN_PARTITIONS, run_clients
from tests.support.randomness import seeded
from tests.support.raw_requests import Requests
from tests.support.replica_audit import partition_directories, replica_anomalies
from tests.support.waiting import eventually

BROKERS, LAST = (1, 2, 3, 4), (1, 2, 3)


class Reassigner:
    """Begins, replaces and cancels reassignments in a thread, between `__enter__` and `__exit__`."""

    def __init__(self, cluster: LinkedCluster, states: StateWatch, dice: random.Random) -> None:
        self._cluster = cluster
        self._states = states
        self._dice = dice
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> Reassigner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._dice.uniform(0.1, 1.5)):
            target = self._dice.choice((None, *(self._dice.sample(BROKERS, self._dice.randint(2, 3)),) * 4))
            self.alter(self._dice.choice(WRITTEN_PARTITIONS), target)

    def alter(self, tp: TopicPartition, target: list[int] | None) -> bool:
        asked = [{"name": tp.topic, "partitions": [{"partition_index": tp.partition, "replicas": target}]}]
        body = {"timeout": 10_000, "allow_replication_factor_change": True, "topics": asked}
        kind = "cancel" if target is None else "move"
        try:
            with Requests(f"127.0.0.1:{self._cluster._ports[self._states.controller()]}", 5) as requests:
                answer = requests.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
        except OSError:
            self.answers[f"{kind}: no answer"] += 1
            return False
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        self.answers[f"{kind}: {ErrorCode(code).name}"] += 1
        return ErrorCode(code) is ErrorCode.none

    def are_on(self, brokers: tuple[int, ...]) -> bool:
        """Whether all partitions are on these brokers and stay there."""
        record = self._states._registry.topics()[WRITTEN_PARTITIONS[0].topic]
        return all(record.replicas_of(tp.partition) == (brokers, (), ()) for tp in WRITTEN_PARTITIONS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_reassignments_among_faults_break_no_promise(tmp_path: Path, seed: int) -> None:
    history, dice = History(), seeded(seed)
    kinds = ClusterFaults.PROCESSES + ClusterFaults.LINKS
    with (
        LinkedCluster(4, tmp_path, REPLICATED) as cluster,
        StateWatch(cluster.zookeeper, history) as states,
    ):
        states.follow(WRITTEN_PARTITIONS)
        reassigner = Reassigner(cluster, states, seeded(seed))

        def disturb() -> None:
            with reassigner:
                ClusterFaults(cluster, kinds, dice).run(90)
            for tp in WRITTEN_PARTITIONS:
                eventually(partial(reassigner.alter, tp, list(LAST)), timeout=60, interval=0.2)
            eventually(lambda: reassigner.are_on(LAST), timeout=60, interval=0.2)

        run_clients(cluster.bootstrap, disturb, history, replicas=3, transactions=False)
        print(f"reassignments: {dict(reassigner.answers)}")
        assert reassigner.answers["move: none"] > 20
        states.wait_for_isr(WRITTEN_PARTITIONS, 3)
        eventually(lambda: _directories(cluster) == {tp: set(LAST) for tp in WRITTEN_PARTITIONS})
        eventually(lambda: _audit(cluster) == [], interval=0.5)
        assert anomalies(history) == []


def _directories(cluster: LinkedCluster) -> dict[TopicPartition, set[int]]:
    return {tp: set(partition_directories(cluster.brokers, tp)) for tp in WRITTEN_PARTITIONS}


def _audit(cluster: LinkedCluster) -> list[object]:
    return [
        found
        for tp in WRITTEN_PARTITIONS
        for found in replica_anomalies(tp, partition_directories(cluster.brokers, tp))
    ]
