"""Asking the share coordinator on another broker: one that is silent."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_names import SHARE_STATE_TOPIC
from broker.share import share_coordinator_client
from broker.share.persister import SharePartitionKey
from broker.share.share_coordinator_client import ClusterPersister

KEY = SharePartitionKey("g", uuid.UUID(int=1), 0)


class SilentBroker:
    address = "silent:1"

    async def request(self, *asked: object) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        pass


async def test_a_silent_coordinator_is_not_waited_for_as_long_as_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, or cut off. A member would give up its own request meanwhile, and learn nothing."""
    monkeypatch.setattr(share_coordinator_client, "ANSWER_S", 0.01, raising=False)
    monkeypatch.setattr(share_coordinator_client, "TRY_S", 0.01)
    metadata = SimpleNamespace(topics={SHARE_STATE_TOPIC: None}, partition=lambda tp: SimpleNamespace(leader=2))
    topics: Any = SimpleNamespace(metadata=metadata, add_change_listener=lambda listener: None)
    local: Any = SimpleNamespace(partition_for=lambda key: 0)
    silent: Any = SilentBroker()
    persister = ClusterPersister(topics, SimpleNamespace(), 1, local, lambda broker_id: silent)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        with pytest.raises(BrokerError, match="broker 2 has not answered") as caught:
            await persister.delete(KEY)
    assert caught.value.code is ErrorCode.coordinator_not_available
    await persister.close()
