"""A cluster for tests: every connection of its brokers goes through a `LinkProxy`; and what disturbs such a cluster."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

from broker.embedded import EmbeddedBroker, EmbeddedCluster
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from broker.zookeeper.operations import NodeStat
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import PartitionState
from tests.support.broker_process import BrokerProcess
from tests.support.free_ports import free_ports
from tests.support.history import History
from tests.support.link_proxy import LinkProxy, Node
from tests.support.waiting import eventually
from tests.support.wall_clocks import WallClocks

# --- Real ZooKeeper servers that form an ensemble, to be killed and started again; with one server, no ensemble.

QUORUM = {"initLimit": "20", "syncLimit": "10"}  # ticks


class ZooKeeperEnsemble:
    """`servers` by their numbers 1, 2, …, each on a directory of its own below `data_dir`."""

    def __init__(self, data_dir: Path, count: int) -> None:
        ports = free_ports(3 * count)
        members = {
            f"server.{n}": f"127.0.0.1:{ports[3 * n - 2]}:{ports[3 * n - 1]}" for n in range(1, count + 1) if count > 1
        }
        self.servers: dict[int, EmbeddedZooKeeper] = {}
        for number in range(1, count + 1):
            directory = data_dir / f"zookeeper-{number}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "myid").write_text(f"{number}\n")
            properties = {**members, **QUORUM} if members else {}
            self.servers[number] = EmbeddedZooKeeper(directory, ports[3 * number - 3], properties)

    @property
    def address(self) -> str:
        """For `zookeeper.connect`."""
        return ",".join(server.address for server in self.servers.values())

    @property
    def leader(self) -> EmbeddedZooKeeper:
        """The server that leads the others, or the only one."""
        found: list[EmbeddedZooKeeper] = []

        def is_elected() -> bool:
            found[:] = [one for one in self.servers.values() if _mode(one) in ("leader", "standalone")]
            return len(found) == 1

        eventually(is_elected)
        return found[0]

    def start(self) -> None:
        """Start all at the same time: none answers before there is a majority."""
        with ThreadPoolExecutor(len(self.servers)) as threads:
            for started in [threads.submit(server.start) for server in self.servers.values()]:
                started.result()

    def stop(self) -> None:
        """Stop all."""
        with ThreadPoolExecutor(len(self.servers)) as threads:
            for stopped in [threads.submit(server.stop) for server in self.servers.values()]:
                stopped.result()


def _mode(server: EmbeddedZooKeeper) -> str:
    """leader, follower or standalone; empty while the server does not answer."""
    host, _, port = server.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    except OSError:
        return ""
    found = [line.partition(": ")[2] for line in answer.splitlines() if line.startswith("Mode: ")]
    return found[0] if found else ""


ZOOKEEPER = "zookeeper"


class LinkedCluster(EmbeddedCluster):
    """Brokers, clients and ZooKeeper reach each other through `links`, where the brokers have their ids as names."""

    broker_class = BrokerProcess

    def __init__(
        self, count: int, data_dir: Path, settings: Mapping[str, str] | None = None, *, zookeepers: int = 1
    ) -> None:
        self.links = LinkProxy(self._pids)
        self.ensemble = ZooKeeperEnsemble(data_dir, zookeepers)
        ports = free_ports(count)
        self._ports = {id: self.links.listen(id, port) for id, port in enumerate(ports, 1)}
        single = {
            id: {
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._ports[id]}",
                "zookeeper.connect": self._linked_zookeeper(id),
            }
            for id, port in enumerate(ports, 1)
        }
        super().__init__(count, data_dir, {**(settings or {}), "zookeeper.connect": self.ensemble.address}, single)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self, timeout_s: float = 60.0) -> Self:
        self.ensemble.start()
        return super().start(timeout_s)

    def stop(self) -> None:
        self.links.heal()
        super().stop()
        self.ensemble.stop()
        self.links.close()

    def heal(self) -> None:
        """End every fault: all links pass, all servers run."""
        self.links.heal()
        for broker in self.brokers.values():
            broker.resume()
        for server in self.ensemble.servers.values():
            server.start()
        super().start()

    def _linked_zookeeper(self, broker: int) -> str:
        """What the broker connects to."""
        ports = [self.links.listen(ZOOKEEPER, one.port, opener=broker) for one in self.ensemble.servers.values()]
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    def _pids(self) -> dict[Node, int]:
        processes = {id: broker._process for id, broker in self.brokers.items()}  # on the proxy's thread
        return {id: process.pid for id, process in processes.items() if process is not None}


class ClusterFaults:
    """Disturbs a cluster, one fault after the other; each is over before the next.

    `kinds` are names of the methods that make a fault. Some faults last longer than a ZooKeeper session.
    """

    PROCESSES = ("kill", "pause", "restart")
    LINKS = ("cut", "cut_one_way", "delay", "half_open", "cut_from_zookeeper")
    MACHINES = ("kill_zookeeper", "lose_disk")
    MAJORITIES = ("kill_all", "leave_one")
    CLOCKS = ("move_clock",)

    def __init__(
        self,
        cluster: LinkedCluster,
        kinds: Sequence[str],
        dice: random.Random,
        wait_for_replicas: Callable[[], None] = lambda: None,
        clocks: WallClocks | None = None,
    ) -> None:
        """`wait_for_replicas` returns when all replicas are in sync: a disk may be lost only then."""
        self._clocks = clocks
        self._cluster = cluster
        self._kinds = kinds
        self._dice = dice
        self._wait_for_replicas = wait_for_replicas
        self._calm = threading.Event()  # never set: to wait is all it is for
        self.made: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Random ones of `kinds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.make(self._dice.choice(self._kinds))
        assert self.made.total() >= seconds / 15, self.made

    def run_all(self) -> None:
        """Each of `kinds` in its turn."""
        for kind in self._kinds:
            self.make(kind)

    def make(self, kind: str) -> None:
        """One fault, after a moment of calm."""
        self._calm.wait(self._dice.uniform(0.5, 2.0))
        fault: Callable[[], None] = getattr(self, kind)
        print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)
        fault()
        self.made[kind] += 1

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
        """The only server, or the one that leads the ensemble."""
        server = self._cluster.ensemble.leader
        server.kill()
        self._last(4.0)
        server.start()

    def lose_disk(self) -> None:
        """A machine burns down. Another one with the same broker id takes its place, without data."""
        self._wait_for_replicas()
        broker = self._any_broker()
        broker.kill()
        shutil.rmtree(broker.data_dir / "broker")
        self._last(8.0)
        broker.start()

    def kill_all(self) -> None:
        """All brokers at once. They come back one after the other."""
        brokers = list(self._cluster.brokers.values())
        for broker in self._dice.sample(brokers, len(brokers)):
            broker.kill()
        for broker in self._dice.sample(brokers, len(brokers)):
            self._last(4.0)
            broker.start()

    def leave_one(self) -> None:
        """A broker comes back over slow links. As soon as all ISRs have it, the others die, and often it leads alone:
        whoever is in the ISR has all that was acknowledged."""
        back, *others = self._dice.sample(list(self._cluster.brokers), len(self._cluster.brokers))
        brokers = self._cluster.brokers
        brokers[back].kill()
        self._last(4.0)
        for other in others:
            self._cluster.links.delay(back, other, self._dice.uniform(0.2, 1.0))
        brokers[back].start()
        self._wait_for_replicas()
        for other in others:
            brokers[other]._signal(signal.SIGKILL)  # both before either has ended
        for other in others:
            brokers[other].kill()
        self._last_and_heal()
        for other in others:
            brokers[other].start()

    def move_clock(self) -> None:
        """The wall clock of a broker jumps, and stays wrong by up to 50 minutes until it jumps again."""
        assert self._clocks is not None
        self._clocks.set(self._dice.choice(list(self._cluster.brokers)), self._dice.uniform(-3000, 3000))

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
        self._registry = Registry(self._zookeeper)
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
        """Return when each partition has at least so many in-sync replicas and a leader."""

        def are_in_sync() -> bool:
            states = self._registry.partition_states(tps)
            return all(tp in states and states[tp].leader >= 0 and len(states[tp].isr) >= size for tp in tps)

        eventually(are_in_sync, timeout=60, interval=0.05)

    def state(self, tp: TopicPartition) -> PartitionState:
        return self._registry.partition_states([tp])[tp]

    def controller(self) -> int:
        """The id of the controller; waits until there is one."""
        eventually(lambda: self._registry.controller.id() >= 0, timeout=60, interval=0.1)
        return self._registry.controller.id()

    def _note(self, tp: TopicPartition, data: bytes | None, stat: NodeStat | None) -> None:
        if data is not None and stat is not None:
            self._history.states.append((tp, PartitionState.decode(tp, data, stat.version)))


class KillRounds:
    """Kills a broker again and again: the controller, the leader of a partition, a coordinator, or any.

    Each round waits until all partitions have a leader and two in-sync replicas, so that the killed broker has a part
    in something. It starts again at once or when its session is over.
    """

    def __init__(
        self,
        cluster: LinkedCluster,
        states: StateWatch,
        written: Sequence[TopicPartition],
        coordinated: Sequence[TopicPartition],
        dice: random.Random,
    ) -> None:
        """`coordinated`: the partitions of the internal topics, whose leaders are the coordinators."""
        self._cluster = cluster
        self._states = states
        self._dice = dice
        self._victims: dict[str, Callable[[], int]] = {
            "controller": states.controller,
            "leader": lambda: states.state(dice.choice(written)).leader,
            "coordinator": lambda: states.state(dice.choice(coordinated)).leader,
            "any": lambda: dice.choice(list(cluster.brokers)),
        }
        self._partitions = [*written, *coordinated]
        self._calm = threading.Event()  # never set: to wait is all it is for
        self.made: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        roles = list(self._victims)
        for number in range(rounds):
            self._states.wait_for_isr(self._partitions, 2)
            self._calm.wait(self._dice.uniform(0.5, 1.5))
            role = roles[number % len(roles)]
            victim = self._cluster.brokers.get(self._victims[role]())
            if victim is None:
                continue  # the partition has lost its leader just now
            print(f"{time.strftime('%H:%M:%S')} kill {role}", flush=True)
            victim.kill()
            self._calm.wait(self._dice.choice((0.0, 0.5, 4.0)))
            victim.start()
            self.made[role] += 1
        assert self.made.total() >= rounds - rounds // 10, self.made
