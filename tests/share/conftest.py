"""Three brokers whose topic `t` members of share groups read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.protocol.topic_names import SHARE_STATE_TOPIC
from tests.support.replicating import Brokers, brokers, until

_SETTINGS = {"share.coordinator.state.topic.num.partitions": "6", "replica.lag.time.max.ms": "2000"}


@pytest.fixture
async def three(tmp_path: Path, zookeeper: str) -> AsyncIterator[Brokers]:
    async with brokers(tmp_path, f"{zookeeper}/{tmp_path.name}", _SETTINGS) as running:
        await asyncio.to_thread(running.create, "t")
        await running.running[1]._topic_changes.create_default(SHARE_STATE_TOPIC)
        await until(lambda: all(SHARE_STATE_TOPIC in one._topics.metadata.topics for one in running.running.values()))
        await asyncio.to_thread(running.produce, "t", 90)
        yield running
