"""Who is asked what: the ways an admin request finds its broker, shared by the parts of `Admin`.

Called by the admin_*.py files only. Each way tries again while the error is retriable, as everything in this package;
an error in a row of an answer is raised by `check`, with what the broker said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from broker.client.cluster import Cluster
from broker.client.coordinator import Coordinator
from broker.client.metadata import CoordinatorKind, Node
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

__all__ = ["AdminRequests", "by_topic", "check"]

T = TypeVar("T")


class AdminRequests:
    """Administration of one cluster, as far as all its parts need it. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def _ask_any(self, api: ApiKey, body: Mapping[str, Any]) -> Any:
        """What every broker can answer."""
        return self.cluster.retrying(lambda: self.cluster.any_connection().request(api, body))

    def _ask_broker(self, broker_id: int, api: ApiKey, body: Mapping[str, Any]) -> Any:
        """What only this broker knows. Raises BrokerError `broker_not_available` when there is none of that id."""

        def ask() -> Any:
            for node in self.cluster.brokers():
                if node.id == broker_id:
                    return self.cluster.connection(node).request(api, body)
            raise BrokerError(ErrorCode.broker_not_available, f"there is no broker '{broker_id}'")

        return self.cluster.retrying(ask)

    def _ask_all(self, api: ApiKey, body: Mapping[str, Any], what: str) -> dict[Node, Any]:
        """What each broker knows a part of; `what` is said when one answers with an error."""
        answers = {}
        for node in self.cluster.brokers():

            def ask(node: Node = node) -> Any:
                answer = self.cluster.connection(node).request(api, body)
                code = field(answer, "error_code", ErrorCode.none)
                if code is not ErrorCode.none:
                    raise BrokerError(code, f"{what} at {node}")
                return answer

            answers[node] = self.cluster.retrying(ask)
        return answers

    def _ask_coordinator(self, name: str, kind: CoordinatorKind, ask: Callable[[Coordinator], T]) -> T:
        """`ask(coordinator)` of the group or transactional id, which checks the codes with `coordinator.check`."""
        coordinator = Coordinator(self.cluster, name, kind)
        return self.cluster.retrying(lambda: ask(coordinator))

    def _ask_leaders(
        self, partitions: Iterable[TopicPartition], ask: Callable[[Node, list[TopicPartition]], dict[TopicPartition, T]]
    ) -> dict[TopicPartition, T]:
        """`ask(leader, its partitions)` of every leader; what it raises with a retriable code is asked again."""
        wanted = list(partitions)
        done: dict[TopicPartition, T] = {}

        def ask_the_missing() -> None:
            for node, epochs in self.cluster.by_leader([tp for tp in wanted if tp not in done]).items():
                done.update(ask(node, list(epochs)))

        self.cluster.retrying(ask_the_missing)
        return {tp: done[tp] for tp in wanted}


def check(row: Any, what: str) -> None:
    """Raise BrokerError unless the row of an answer says there was none."""
    if row.error_code is not ErrorCode.none:
        said = field(row, "error_message")
        raise BrokerError(row.error_code, f"{what}: {said}" if said else what)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition indexes under their topic, as requests name them."""
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    return topics
