"""A cluster for tests: every connection of its brokers goes through a `LinkProxy`; and what disturbs such a cluster."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from broker.embedded import EmbeddedBroker, EmbeddedCluster
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.operations import NodeStat
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import PartitionState
from tests.support.broker_process import BrokerProcess
from tests.support.free_ports import free_ports
from tests.support.history import History
from tests.support.link_proxy import LinkProxy, Node
from tests.support.waiting import eventually

__all__ = ["ZOOKEEPER", "ClusterFaults", "LinkedCluster", "StateWatch"]

ZOOKEEPER = "zookeeper"


class LinkedCluster(EmbeddedCluster):
    """Brokers, clients and ZooKeeper reach each other through `links`, where the brokers have their ids as names."""

    broker_class = BrokerProcess

    def __init__(self, count: int, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self.links = LinkProxy(self._pids)
        *ports, zookeeper_port = free_ports(count + 1)
        self._ports = {id: self.links.listen(id, port) for id, port in enumerate(ports, 1)}
        single = {
            id: {
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._ports[id]}",
                "zookeeper.connect": f"127.0.0.1:{self.links.listen(ZOOKEEPER, zookeeper_port, opener=id)}",
            }
            for id, port in enumerate(ports, 1)
        }
        super().__init__(count, data_dir, settings, single)
        assert self.zookeeper_server is not None
        self.zookeeper_server.port = zookeeper_port

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def stop(self) -> None:
        self.links.heal()
        super().stop()
        self.links.close()

    def _pids(self) -> dict[Node, int]:
        processes = {id: broker._process for id, broker in self.brokers.items()}  # on the proxy's thread
        return {id: process.pid for id, process in processes.items() if process is not None}


class ClusterFaults:
    """Disturbs a cluster, one fault after the other; each is over before the next.

    `kinds` are names of the methods that make a fault. Some faults last longer than a ZooKeeper session.
    """

    PROCESSES = ("kill", "pause", "restart")
    LINKS = ("cut", "cut_one_way", "delay", "half_open", "cut_from_zookeeper")

    def __init__(self, cluster: LinkedCluster, kinds: Sequence[str], dice: random.Random) -> None:
        self._cluster = cluster
        self._kinds = kinds
        self._dice = dice
        self._calm = threading.Event()  # never set: to wait is all it is for
        self.made: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._calm.wait(self._dice.uniform(0.5, 2.0))
            kind = self._dice.choice(self._kinds)
            fault: Callable[[], None] = getattr(self, kind)
            fault()
            self.made[kind] += 1
        assert self.made.total() >= seconds / 15, self.made

    def kill(self) -> None:
        broker = self._any_broker()
        broker.kill()
        self._last(8.0)
        broker.start()

    def pause(self) -> None:
        broker = self._any_broker()
        broker.pause()
        self._last(8.0)
        broker.resume()

    def restart(self) -> None:
        self._any_broker().restart()

    def cut(self) -> None:
        self._cluster.links.cut(*self._any_link())
        self._last_and_heal()

    def cut_one_way(self) -> None:
        self._cluster.links.cut(*self._any_link(), one_way=True)
        self._last_and_heal()

    def delay(self) -> None:
        self._cluster.links.delay(*self._any_link(), self._dice.uniform(0.01, 0.5))
        self._last_and_heal()

    def half_open(self) -> None:
        self._cluster.links.half_open(*self._any_link())

    def cut_from_zookeeper(self) -> None:
        self._cluster.links.cut(self._dice.choice(list(self._cluster.brokers)), ZOOKEEPER)
        self._last_and_heal()

    def kill_zookeeper(self) -> None:
        server = self._cluster.zookeeper_server
        assert server is not None
        server.kill()
        self._last(4.0)
        server.start()

    def _any_broker(self) -> EmbeddedBroker:
        return self._dice.choice(list(self._cluster.brokers.values()))

    def _any_link(self) -> tuple[int, int]:
        one, other = self._dice.sample(list(self._cluster.brokers), 2)
        return one, other

    def _last(self, at_most_s: float) -> None:
        self._calm.wait(self._dice.uniform(0.0, at_most_s))

    def _last_and_heal(self) -> None:
        self._last(8.0)
        self._cluster.links.heal()


class StateWatch:
    """Adds to a history what ZooKeeper says of leaders and ISRs, from `follow` until the block ends."""

    def __init__(self, zookeeper: str, history: History) -> None:
        self._zookeeper = ZooKeeper(zookeeper)
        self._history = history

    def __enter__(self) -> StateWatch:
        self._zookeeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._zookeeper.close()

    def follow(self, tps: Sequence[TopicPartition]) -> None:
        """The partitions need not exist yet."""
        for tp in tps:
            self._zookeeper.watch_data(znodes.state_path(tp), partial(self._note, tp))

    def wait_for_isr(self, tps: Sequence[TopicPartition], size: int) -> None:
        """Return when each partition has so many in-sync replicas and a leader."""
        registry = Registry(self._zookeeper)

        def are_in_sync() -> bool:
            states = registry.partition_states(tps)
            return all(tp in states and states[tp].leader >= 0 and len(states[tp].isr) == size for tp in tps)

        eventually(are_in_sync, timeout=60, interval=0.1)

    def _note(self, tp: TopicPartition, data: bytes | None, stat: NodeStat | None) -> None:
        if data is not None and stat is not None:
            self._history.states.append((tp, PartitionState.decode(tp, data, stat.version)))
