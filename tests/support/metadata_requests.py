"""What clients of this process ask about topics, seen as it goes out: for tests of how often they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.protocol.api_keys import ApiKey


def record_metadata_requests(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The topics that each Metadata request from now on names."""
    asked: list[set[str]] = []
    request = BrokerConnection.request

    def spy(connection: BrokerConnection, api: ApiKey, body: Mapping[str, Any], **options: Any) -> Any:
        if api is ApiKey.METADATA:
            asked.append({topic["name"] for topic in body["topics"] or ()})
        return request(connection, api, body, **options)

    monkeypatch.setattr(BrokerConnection, "request", spy)
    return asked
