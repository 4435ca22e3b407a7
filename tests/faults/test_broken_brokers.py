"""Histories find faults of replication that are planted in real brokers.

Without this nobody knows whether a history without anomalies says that the brokers are right, or that the history is
too weak. The same faults of brokers and links break no promise of the brokers as they are (test_cluster_histories.py).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.test_cluster_histories import HARDEST, OFFSETS_PARTITIONS, PARTITIONS, REPLICATED, replicas_differ
from tests.support.cluster import ClusterFaults, LinkedCluster, StateWatch
from tests.support.history import Anomaly, History, anomalies
from tests.support.history_run import WRITTEN_PARTITIONS, read_what_was_written, run_clients
from tests.support.planted import planted
from tests.support.randomness import seeded
from tests.support.waiting import eventually

SHOWN_BY = {
    "acknowledge_early": {"lost write"},
    "read_uncommitted": {"vanished read", "divergence"},
    "join_early": {"lost write"},
    "truncate_to_the_watermark": {"lost write"},
    "ignore_the_last_epoch": {"diverged replicas", "two leaders in one epoch"},
    "forget_producers": {"duplicate"},
}
OF_COORDINATORS = "believe_the_coordinator_alone"


def test_every_fault_can_still_be_planted() -> None:
    """In a process of its own, where it does not stay."""
    faults = [*SHOWN_BY, OF_COORDINATORS]
    plant = "import tests.support.broken_replication as faults; " + "; ".join(f"faults.{name}()" for name in faults)
    subprocess.run([sys.executable, "-c", plant], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "shown_by"), SHOWN_BY.items())
def test_a_history_finds_a_planted_fault(tmp_path: Path, fault: str, shown_by: set[str]) -> None:
    _find(tmp_path, fault, shown_by, transactions=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_history_of_transactions_finds_a_coordinator_that_believes_itself_alone(tmp_path: Path) -> None:
    """It forgets what it has decided: the transaction of a client that was told of the commit is lost, or open."""
    _find(tmp_path, OF_COORDINATORS, {"lost write", "endless transaction"}, transactions=True)


def _find(directory: Path, fault: str, shown_by: set[str], *, transactions: bool) -> None:
    found = Counter(one.kind for one in _found(directory, fault, transactions=transactions))
    print(f"{fault}: {dict(found)}")
    assert found.keys() & shown_by, found


def _found(directory: Path, fault: str, *, transactions: bool) -> list[Anomaly]:
    """What a history with a fault in all brokers shows. "no end" is a client that failed, or waited in vain."""
    history, found = History(), []
    with (
        planted(directory, f"tests.support.broken_replication:{fault}"),
        LinkedCluster(3, directory, REPLICATED) as cluster,
        StateWatch(cluster.zookeeper, history) as states,
    ):
        tps = PARTITIONS if transactions else [*WRITTEN_PARTITIONS, *OFFSETS_PARTITIONS]
        states.follow(tps)
        faults = ClusterFaults(cluster, HARDEST, seeded(1), lambda: states.wait_for_isr(tps, 3))
        try:
            run_clients(cluster.bootstrap, faults.run_all, history, replicas=3, transactions=transactions)
        except Exception as error:  # of a client, which also notices that something is wrong
            print(f"{dict(faults.made)}; {type(error).__name__}: {str(error)[:200]}")
            found.append(Anomaly("no end", str(error)))
            cluster.heal()
            try:
                read_what_was_written(cluster.bootstrap, history)
            except AssertionError as open_one:
                found.append(Anomaly("endless transaction", str(open_one)))
        if history.final:
            found += anomalies(history)
        with contextlib.suppress(AssertionError):
            eventually(lambda: replicas_differ(cluster.brokers) == [], timeout=10, interval=0.5)
        found += replicas_differ(cluster.brokers)
        for broker in cluster.brokers.values():
            assert "planted:" in broker.log_file.read_text(), "the fault is not in the broker"
    return found
