"""Brokers that have yet to hear of what others know: their Metadata answers are changed on their way to the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.client.cluster_metadata import Node
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey

Change = Callable[[Any], Any]


class LaggingBrokers:
    """Nobody lags until `lag` says so. `asked`: the ports of those that were asked for metadata, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self._changes: dict[int, Change] = {}
        request = BrokerConnection.request

        def changed(connection: BrokerConnection, api: ApiKey, body: Mapping[str, Any], **options: Any) -> Any:
            answer = request(connection, api, body, **options)
            if api is not ApiKey.METADATA:
                return answer
            self.asked.append(connection.port)
            change = self._changes.get(connection.port, lambda topic: topic)
            return answer._replace(topics=tuple(map(change, answer.topics)))

        monkeypatch.setattr(BrokerConnection, "request", changed)

    def lag(self, *nodes: Node, topic: str, change: Change) -> None:
        """These brokers say `change(what they know)` about the topic."""
        for node in nodes:
            self._changes[node.port] = lambda found: change(found) if found.name == topic else found

    def catch_up(self, *nodes: Node) -> None:
        """These say what they know again."""
        for node in nodes:
            del self._changes[node.port]


def without_it(topic: Any) -> Any:
    """A broker that has not heard of the topic."""
    return topic._replace(error_code=ErrorCode.unknown_topic_or_partition, partitions=())


def without_leaders(topic: Any) -> Any:
    """One that knows of no live leader for it."""
    lost = tuple(partition._replace(leader_id=-1) for partition in topic.partitions)
    return topic._replace(partitions=lost)


def smaller(partitions: int) -> Change:
    """One that has not heard that the topic has grown beyond so many partitions."""

    def change(topic: Any) -> Any:
        kept = tuple(one for one in topic.partitions if one.partition_index < partitions)
        return topic._replace(partitions=kept)

    return change
