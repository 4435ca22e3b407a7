"""Real ZooKeeper servers that form an ensemble, to be killed and started again; with one server, no ensemble."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from tests.support.free_ports import free_ports
from tests.support.waiting import eventually

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
