"""A leader's host is cut off, and nobody is told: how long does each kind of client stand still?

It takes some minutes: three brokers and a ZooKeeper on hosts of their own, and one cut for all clients at once. The
seconds are printed; docs/how-to/when-a-host-vanishes.md has those of a quiet machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import pytest

from tests.support.hosts import Network, Server, start_broker, start_zookeeper
from tests.support.pauses import pause
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENTS = ("producer", "transactions", "consumer", "offsets", "new-clients")
STREAM, LOADS = ("producer", "stream"), ("producer", "loads")
SOON_S = 30.0
"""No test of a machine's speed: without what this tests, each of these takes a minute or longer."""
REPLICATED = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "6",
}


def times(server: Server) -> list[float]:
    assert server.process.poll() is None, server.output[-4000:]
    return [float(line.split()[1]) for line in server.output.splitlines() if line.startswith("done ")]


@pytest.mark.parametrize("kinds", [CLIENTS, STREAM, LOADS], ids=["clients", "stream", "loads"])
def test_clients_go_on_soon_after_a_leader_was_cut_off(network: Network, kinds: Sequence[str]) -> None:
    zookeeper = start_zookeeper(network.host("zk"))
    for number in (1, 2, 3):
        start_broker(network.host(f"b{number}"), number, zookeeper, REPLICATED)
    bootstrap = "b1:9092,b2:9092,b3:9092"
    client = network.host("client")
    for topic, partitions in (("t", "1"), ("t-out", "3")):
        given = ("--topic", topic, "--partitions", partitions, "--replication-factor", "3")
        client.pykafka("topics", "create", "--bootstrap-server", bootstrap, *given)
    leader = client.call("tests.hosts.test_silent_cut:leader_of", bootstrap, "t")
    servers = {
        kind: client.serve(kind, sys.executable, "-m", "tests.support.pauses", kind, bootstrap, "t") for kind in kinds
    }
    eventually(lambda: all(len(times(server)) > 3 for server in servers.values()), timeout=600)
    with network.cut(network.host(f"b{leader}")):
        cut_at = time.monotonic()
        eventually(lambda: all(_goes_on(server, cut_at) for server in servers.values()), timeout=150)
    found = {kind: pause(times(server), cut_at) or 0.0 for kind, server in servers.items()}
    print("\nseconds from the cut to the next success:", {kind: round(found[kind], 1) for kind in kinds})
    assert all(0 < seconds < SOON_S for seconds in found.values()), found


def _goes_on(server: Server, cut_at: float) -> bool:
    """Whether it has done several steps after it was stopped."""
    done = times(server)
    stopped = pause(done, cut_at)
    return stopped is not None and sum(at >= cut_at + stopped for at in done) > 3


def leader_of(bootstrap: str, topic: str) -> int:
    from broker.client.cluster import Cluster
    from broker.protocol.topic_partition import TopicPartition

    with Cluster(bootstrap) as cluster:
        return cluster.leader(TopicPartition(topic, 0)).id
