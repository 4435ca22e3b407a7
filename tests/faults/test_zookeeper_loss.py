"""ZooKeeper is killed and comes back: records flow on, changes fail in bounded time, the broker registers again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, batch
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer

BOUND_S = 25.0


@pytest.fixture
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def test_the_broker_lives_through_the_loss_of_its_zookeeper(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, topic: str, group: str
) -> None:
    chroot = zookeeper_server.chroot()
    settings = {"zookeeper.session.timeout.ms": "2000", "offsets.topic.num.partitions": "1"}
    with BrokerProcess(tmp_path, settings, zookeeper=chroot) as broker, Requests(broker.bootstrap) as ask:
        ask.create(topic, flush_messages="1")
        ask.put(topic, b"before")
        zookeeper_server.kill()

        # What needs no ZooKeeper goes on, and is not slowed by what does.
        other, third, fourth = (Requests(broker.bootstrap, timeout_s=60) for _ in range(3))
        with other, third, fourth:
            started = time.monotonic()
            wanted = {"name": f"{topic}-2", "num_partitions": 1, "replication_factor": 1}
            configs = {"assignments": (), "configs": ()}
            other.send(ApiKey.CREATE_TOPICS, {"topics": [{**wanted, **configs}], "timeout": 30_000})
            third.send(ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 60_000})
            created = {"topics": [{"name": f"{topic}-3"}], "allow_auto_topic_creation": True}
            fourth.send(ApiKey.METADATA, created)  # before the deletions, behind which it would wait for each
            waiting = [Requests(broker.bootstrap) for _ in range(8)]
            for one in waiting:
                one.send(ApiKey.DELETE_TOPICS, {"topics": [{"name": topic, "topic_id": None}], "timeout": 1000})
            for number in range(100):
                asked = time.monotonic()
                assert ask.put(topic, b"%d" % number) == number + 1
                assert time.monotonic() - asked < 20
            assert len(ask.values(topic)) == 101
            assert ask.metadata(topic).topics[0].error_code is ErrorCode.none

            (refused,) = other.receive(ApiKey.CREATE_TOPICS).topics
            assert refused.error_code is ErrorCode.request_timed_out
            assert "ZooKeeper" in refused.error_message
            assert third.receive(ApiKey.INIT_PRODUCER_ID).error_code is ErrorCode.coordinator_load_in_progress
            assert time.monotonic() - started < BOUND_S
            for one in waiting:
                one.close()
            assert fourth.receive(ApiKey.METADATA).topics[0].error_code is ErrorCode.request_timed_out

        zookeeper_server.start()
        with ZooKeeper(chroot) as zk:
            registry = Registry(zk)
            eventually(lambda: list(registry.brokers()) == [0] and registry.controller.id() == 0)
        with Requests(broker.bootstrap) as again:
            eventually(lambda: len(again.metadata().brokers) == 1)

            def is_made() -> bool:
                """Its session may have expired a moment ago."""
                (made,) = again.create_topics({"name": f"{topic}-4"})
                return made.error_code in (ErrorCode.none, ErrorCode.topic_already_exists)

            eventually(is_made)
            assert again.produce({(f"{topic}-4", 0): batch(b"x")})[f"{topic}-4", 0].error_code is ErrorCode.none
            (found,) = again.fetch([ask_for(f"{topic}-4")], version=12)
            assert found.high_watermark == 1
        assert "Traceback" not in broker.output, broker.output


def test_it_stops_quickly_and_cleanly_while_zookeeper_is_away(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, topic: str
) -> None:
    with BrokerProcess(tmp_path, zookeeper=zookeeper_server.chroot()) as broker:
        with Requests(broker.bootstrap) as ask:
            ask.create(topic)
            ask.put(topic, b"x")
        zookeeper_server.kill()
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < 20
    assert (tmp_path / "broker" / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in broker.output, broker.output
