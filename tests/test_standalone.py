"""A broker without ZooKeeper: what it keeps over restarts, what it refuses, and its move into a ZooKeeper."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.config.broker_config import BrokerConfig
from broker.embedded import EmbeddedBroker
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.security.scram import ScramMechanism
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of
from tests.support.raw_requests import Requests
from tests.support.source_tree import ROOT
from tests.support.waiting import eventually

STANDALONE = {"standalone": "true", "offsets.topic.num.partitions": "1", "broker.id": "-1"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, STANDALONE) as broker:
        yield broker


def fill(broker: EmbeddedBroker) -> Any:
    """A topic with a setting, a record, a group's offset, a user, a setting of the broker; and what it shows."""
    with Cluster(broker.bootstrap) as cluster, Requests(broker.bootstrap) as ask:
        admin = Admin(cluster)
        ask.create("t", 2, retention_ms="5000000")
        assert ask.put("t", b"a") == 0
        admin.alter_group_offsets("g", {TopicPartition("t", 0): 1})
        admin.set_password("alice", "secret", list(ScramMechanism))
        admin.alter_configs(ResourceType.BROKER, "", {"log.cleaner.backoff.ms": "14000"})
    return shown(broker)


def shown(broker: EmbeddedBroker) -> Any:
    with Cluster(broker.bootstrap) as cluster, Requests(broker.bootstrap) as ask:
        admin, metadata = Admin(cluster), ask.metadata("t")
        return (
            metadata.cluster_id,
            metadata.brokers[0].node_id,
            metadata.topics[0].topic_id,
            admin.describe_configs(ResourceType.TOPIC, "t")["retention.ms"].value,
            len(metadata.topics[0].partitions),
            ask.values("t"),
            admin.group_offsets("g"),
            admin.describe_users(),
            admin.describe_configs(ResourceType.BROKER, "")["log.cleaner.backoff.ms"].value,
        )


def leader_epoch(broker: EmbeddedBroker) -> int:
    with Requests(broker.bootstrap) as ask:
        epoch: int = ask.metadata("t").topics[0].partitions[0].leader_epoch
        return epoch


def test_everything_outlives_a_restart_and_a_kill(broker: BrokerProcess) -> None:
    before, epoch = fill(broker), leader_epoch(broker)
    assert broker.zookeeper == ""
    assert shown(broker.restart()) == before
    broker.kill()
    broker.start()
    assert shown(broker) == before
    assert leader_epoch(broker) == epoch + 2
    assert "Traceback" not in broker.output
    logs = str(broker.data_dir / "broker")
    assert "in use by another broker" in error_of("users", "list", "--log-dir", logs, status=2)
    broker.stop()
    assert answer_of("users", "list", "--log-dir", logs).startswith("alice\t")


def test_it_takes_little_memory(broker: BrokerProcess) -> None:
    """Its own: of libraries, another 16 MB, so much is mapped as the machine has read of their files."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    own_kb = int(status.partition("RssAnon:")[2].split()[0])
    assert own_kb * 1024 < 30e6
    assert "may act as a broker" not in broker.output


def test_it_needs_no_java_and_loads_no_library_that_it_has_no_use_for(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from broker.config.broker_config import BrokerConfig\n"
        "from broker.server import BrokerServer\n"
        "async def main():\n"
        f"    config = BrokerConfig(log_dirs=({str(tmp_path)!r},), listeners=('PLAINTEXT://127.0.0.1:0',),\n"
        "        standalone=True)\n"
        "    server = BrokerServer(config)\n"
        "    await server.start()\n"
        "    await server.stop()\n"
        "sys.modules['hypothesis'] = None\n"
        "asyncio.run(main())\n"
        "print(*sorted({'kazoo', 'typer', 'pydantic', 'rich', 'starlette', 'uvicorn', 'prometheus_client', 'numpy',\n"
        "    'pyarrow', 'pyspark', 'cryptography'} & set(sys.modules)))"
    )
    bare = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "PATH"}}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_its_cluster_moves_into_a_zookeeper_and_grows_there(
    broker: BrokerProcess, tmp_path: Path, zookeeper: str
) -> None:
    before = fill(broker)
    broker.stop()
    chroot = {"zookeeper.connect": f"{zookeeper}/{tmp_path.name}", "standalone": "false"}
    with (
        BrokerProcess(tmp_path, STANDALONE | chroot) as moved,
        BrokerProcess(tmp_path / "second", STANDALONE | chroot) as second,
    ):
        assert shown(moved) == before
        assert moved.zookeeper == chroot["zookeeper.connect"]
        with Requests(second.bootstrap) as ask:
            eventually(lambda: [b.node_id for b in ask.metadata("t").brokers] == [1001, 1002])
        assert shown(moved.restart()) == before
    assert not (tmp_path / "broker" / "standalone.metadata").exists()
    with pytest.raises(PykafkaError, match=r"whose metadata is not in \S+/standalone.metadata"):
        broker.start()


def test_it_moves_into_the_zookeeper_that_the_broker_starts(broker: BrokerProcess, tmp_path: Path) -> None:
    before = fill(broker)
    assert "\nController: 1001, epoch: -\n" in answer_of("cluster", "describe", "-b", broker.bootstrap)
    broker.kill()
    with BrokerProcess(tmp_path, STANDALONE | {"standalone": "false"}) as moved:
        assert shown(moved) == before
        assert "\nController: 1001, epoch: 2\n" in answer_of("cluster", "describe", "-b", moved.bootstrap)


def test_a_zookeeper_with_another_cluster_is_left_alone(broker: BrokerProcess, tmp_path: Path, zookeeper: str) -> None:
    before = fill(broker)
    broker.stop()
    chroot = f"{zookeeper}/{tmp_path.name}"
    with ZooKeeper(chroot) as zk:
        other = Registry(zk).cluster_id()
    with (
        pytest.raises(
            PykafkaError, match=rf"and ZooKeeper {chroot} has cluster {other} already; start the broker with"
        ),
        BrokerProcess(tmp_path, STANDALONE | {"standalone": "false", "zookeeper.connect": chroot}),
    ):
        pass
    with ZooKeeper(chroot) as zk:
        assert zk.children("/") == ["cluster"]
    broker.start()
    assert shown(broker) == before


def test_standalone_and_a_zookeeper_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="standalone=true and zookeeper.connect=localhost:2181: set one of them"):
        BrokerConfig.load(None, {"standalone": "true", "zookeeper.connect": "localhost:2181"})


def test_a_damaged_file_is_named(broker: BrokerProcess) -> None:
    broker.stop()
    file = broker.data_dir / "broker" / "standalone.metadata"
    file.write_bytes(file.read_bytes().replace(b"/cluster/id", b"/cluster/if"))
    with pytest.raises(
        PykafkaError, match=rf"pykafka: {file} is damaged .the checksum of /cluster/if is wrong.*-wal file"
    ):
        broker.start()
