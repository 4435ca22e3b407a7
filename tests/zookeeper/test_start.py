"""A broker whose ZooKeeper stands still while it starts waits for it, as Kafka's brokers do."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.server import BrokerServer
from broker.zookeeper.registry import Registry
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer


async def test_a_broker_that_starts_waits_for_a_zookeeper_that_stands_still(
    server: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = Registry.ensure_paths
    assert server.pid is not None
    pid = server.pid

    def ensure_paths(registry: Registry) -> None:
        os.kill(pid, signal.SIGSTOP)
        original(registry)

    monkeypatch.setattr(Registry, "ensure_paths", ensure_paths)
    monkeypatch.setattr("broker.zookeeper.opened_store.OPERATION_TIMEOUT_S", 0.2)
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "zookeeper.connect": server.address}
    broker = BrokerServer(BrokerConfig.load(None, settings))
    starting = asyncio.create_task(broker.start())
    try:
        await asyncio.to_thread(eventually, lambda: "waiting for it" in caplog.text or starting.done())
    finally:
        os.kill(pid, signal.SIGCONT)
    try:
        assert await starting
        assert broker._store is not None
        assert not broker._store.patient, "a broker that serves says so instead"
    finally:
        await broker.stop()
