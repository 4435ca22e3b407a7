"""Create, grow, describe, empty and delete topics: a part of `Admin`.

A list of topics goes in one request; the first that failed is raised as BrokerError with what the broker said, the
others are done nevertheless, as Kafka does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.client.admin_requests import AdminRequests, by_topic, check
from broker.client.metadata import Node, TopicMetadata
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

__all__ = ["HIGH_WATERMARK", "NewTopic", "TopicAdmin"]

HIGH_WATERMARK: Final = -1
"""For `delete_records`: all there is."""


class NewTopic(NamedTuple):
    """A topic to create; -1 leaves a number to the broker's defaults. `assignment`: broker ids per partition."""

    name: str
    partitions: int = -1
    replication: int = -1
    configs: Mapping[str, str] = {}
    assignment: Sequence[Sequence[int]] = ()


class TopicAdmin(AdminRequests):
    """Topics and their records."""

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Raises BrokerError: `topic_already_exists`, `invalid_topic_exception`, `invalid_partitions`, …"""
        body = {"topics": [_creatable(topic) for topic in topics], "validate_only": validate_only}
        self._change_topics(ApiKey.CREATE_TOPICS, body, "topics", "creating")

    def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """`create_topics` for one."""
        self.create_topics([NewTopic(name, partitions, replication, configs or {})])

    def delete_topics(self, names: Iterable[str]) -> None:
        """Raises BrokerError `unknown_topic_or_partition` for one that does not exist."""
        names = list(names)
        rows = [{"name": name, "topic_id": None} for name in names]
        self._change_topics(ApiKey.DELETE_TOPICS, {"topics": rows, "topic_names": names}, "responses", "deleting")

    def create_partitions(self, topic: str, count: int, assignment: Sequence[Sequence[int]] | None = None) -> None:
        """Grow `topic` to `count` partitions in all. Raises BrokerError `invalid_partitions` when that is no growth."""
        placed = None if assignment is None else [{"broker_ids": list(ids)} for ids in assignment]
        body = {"topics": [{"name": topic, "count": count, "assignments": placed}], "validate_only": False}
        self._change_topics(ApiKey.CREATE_PARTITIONS, body, "results", "adding partitions to")

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Names in order, internal topics only on demand."""
        return sorted(topic.name for topic in self.cluster.topics().values() if internal or not topic.internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of `names` (UnknownTopic if one is missing), or of all topics."""
        if names is None:
            return self.cluster.topics()
        wanted = list(names)
        self.cluster.include(wanted)
        self.cluster.expire()
        return {name: self.cluster.topic(name) for name in wanted}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Have each partition begin at an offset, `HIGH_WATERMARK` for its end; what it begins at now (KIP-107).

        Raises BrokerError: `offset_out_of_range`, `policy_violation` for a topic that is not to be deleted from,
        UnknownTopic. Partitions asked of other brokers, or before, may have been done.
        """

        def ask(node: Node, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
            topics = [
                {
                    "name": name,
                    "partitions": [{"partition_index": i, "offset": before[TopicPartition(name, i)]} for i in indexes],
                }
                for name, indexes in by_topic(tps).items()
            ]
            body = {"topics": topics, "timeout": self.cluster.settings.request_timeout_ms}
            answer = self.cluster.connection(node).request(ApiKey.DELETE_RECORDS, body)
            starts = {}
            for topic in answer.topics:
                for row in topic.partitions:
                    tp = TopicPartition(str(topic.name), int(row.partition_index))
                    offset = "the end" if before[tp] == HIGH_WATERMARK else f"offset {before[tp]}"
                    check(row, f"deleting the records of {tp.topic}-{tp.partition} before {offset}")
                    starts[tp] = int(row.low_watermark)
            return starts

        return self._ask_leaders(before, ask)

    def _change_topics(self, api: ApiKey, body: Mapping[str, Any], results: str, doing: str) -> None:
        """Ask the controller; one that no longer is says so in the rows of `results`, and the new one is asked."""
        cluster = self.cluster
        timed = {"timeout": cluster.settings.request_timeout_ms, **body}

        def ask() -> Any:
            rows = getattr(cluster.connection(cluster.controller()).request(api, timed), results)
            for row in rows:
                if row.error_code is ErrorCode.not_controller:
                    raise BrokerError(row.error_code, f"{api.name} went to a broker that is not the controller")
            return rows

        rows = cluster.retrying(ask)
        cluster.expire()
        for row in rows:
            check(row, f"{doing} topic {str(row.name)!r}")


def _creatable(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignment else topic.partitions,
        "replication_factor": -1 if topic.assignment else topic.replication,
        "assignments": [{"partition_index": i, "broker_ids": list(ids)} for i, ids in enumerate(topic.assignment)],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }
