"""Six hosts: three brokers, ZooKeeper, S3, clients. All that runs there is real.

    with ManyHosts(tmp_path) as site:
        clients = site.clients("orders")
        with site.network.cut(site.brokers[1]):
            ...

The brokers replicate everything and archive to S3.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.host_counts import Numbers
from tests.support.hosts import BROKER_PORT, Network, start_broker, start_zookeeper
from tests.support.replicated_cluster import REPLICATED

BROKERS = {
    **REPLICATED,
    "remote.log.storage.system.enable": "true",
    "archive.url": "s3://archive/kafka",
    "log.retention.check.interval.ms": "1000",
    "remote.log.manager.task.interval.ms": "1000",
}
ARCHIVED = {"remote.storage.enable": "true", "segment.bytes": "4096", "local.retention.bytes": "8192"}
_PATIENCE_S = 30


class ManyHosts:
    """The hosts, from `with` to its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running = contextlib.ExitStack()
        self.bootstrap = ",".join(f"broker{number}:{BROKER_PORT}" for number in (1, 2, 3))

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            network = self.network = starting.enter_context(Network(self._directory))
            self.store, self.zookeeper, self.client = (network.host(name) for name in ("store", "zookeeper", "client"))
            command = (sys.executable, "-m", "tests.support.fake_s3", self.store.address)
            s3 = self.store.popen(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            starting.callback(close, s3)
            assert s3.stdout is not None
            url = json.loads(s3.stdout.readline())
            self.storage = {"endpoint_url": url, "key": "me", "secret": "hush-hush", "region": "us-east-1"}
            archive = {f"archive.options.{name}": value for name, value in self.storage.items()}
            zookeeper = start_zookeeper(self.zookeeper)
            self.brokers = {number: network.host(f"broker{number}") for number in (1, 2, 3)}
            for number, host in self.brokers.items():
                start_broker(host, number, zookeeper, {**BROKERS, **archive})
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def clients(self, topic: str, configs: Mapping[str, str] = ARCHIVED) -> Clients:
        """A producer and a group at the topic, which is made with these settings."""
        clients = Clients(self, topic, configs)
        self._running.callback(close, clients.process)
        return clients

    def found(self, topic: str) -> tuple[Numbers, Numbers, int]:
        """What another client than ours finds in the topic, and in its archive only; and how many that should be."""
        whole, archive, archived = self.client.call("tests.support.host_counts:in_topic", self.bootstrap, topic)
        return Numbers.of_json(whole), Numbers.of_json(archive), int(archived)


class Clients:
    """A host_clients.py that runs."""

    def __init__(self, site: ManyHosts, topic: str, configs: Mapping[str, str]) -> None:
        host = site.client
        command = ["tests.support.host_clients", site.bootstrap, topic, json.dumps(dict(configs))]
        self._log = host.home / f"{topic}.log"
        with self._log.open("ab") as errors:
            self.process = host.popen(
                *(sys.executable, "-m", *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        assert self._read() == "ready"

    def ask(self, what: str) -> Any:
        """See `answer` there."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        close(self.process)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the clients ended: {self._log.read_text(errors='replace')[-4000:]}"
        return json.loads(line)


def close(process: subprocess.Popen[bytes]) -> None:
    """The programs end with their standard input."""
    with process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
