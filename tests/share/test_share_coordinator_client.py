"""Asking the share coordinator on another broker: one that is silent, or of an earlier release."""

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


def persister(*, features: dict[str, int]) -> ClusterPersister:
    """Of broker 1; broker 2 coordinates."""
    brokers = {2: SimpleNamespace(features=features)}
    metadata = SimpleNamespace(
        topics={SHARE_STATE_TOPIC: None}, partition=lambda tp: SimpleNamespace(leader=2), brokers=brokers
    )
    topics: Any = SimpleNamespace(metadata=metadata, add_change_listener=lambda listener: None)
    local: Any = SimpleNamespace(partition_for=lambda key: 0)
    silent: Any = SilentBroker()
    return ClusterPersister(topics, SimpleNamespace(), 1, local, lambda broker_id: silent)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("features", "told"),
    [
        # It is stopped, or cut off. A member would give up its own request meanwhile, and learn nothing.
        ({"transaction.version": 2}, "broker 2 has not answered"),
        # In the middle of a rolling upgrade. It would hang up, as if the network were at fault.
        ({}, "broker 2 .* its release has no share groups: upgrade it"),
    ],
)
async def test_a_coordinator_that_cannot_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, int], told: str
) -> None:
    monkeypatch.setattr(share_coordinator_client, "ANSWER_S", 0.01, raising=False)
    monkeypatch.setattr(share_coordinator_client, "TRY_S", 0.01)
    asking = persister(features=features)
    async with asyncio.timeout(5):
        with pytest.raises(BrokerError, match=told) as caught:
            await asking.delete(KEY)
    assert caught.value.code is ErrorCode.coordinator_not_available
    await asking.close()
