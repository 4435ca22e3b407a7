"""What lies in the data directories of brokers: a part of `Admin` (KIP-113, KIP-827)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.client.admin_requests import AdminRequests, check
from broker.errors import BrokerError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition

__all__ = ["LogDir", "LogDirAdmin", "ReplicaSize"]


class ReplicaSize(NamedTuple):
    """One partition in a directory, in bytes; `offset_lag`: records behind the high watermark or the moved log."""

    size: int
    offset_lag: int
    is_future: bool


class LogDir(NamedTuple):
    """One directory of a broker, in bytes, -1 where the broker does not say; `error`: why it cannot be used."""

    broker_id: int
    path: str
    error: BrokerError | None
    total_bytes: int
    usable_bytes: int
    partitions: dict[TopicPartition, ReplicaSize]


class LogDirAdmin(AdminRequests):
    """Data directories."""

    def describe_log_dirs(self, brokers: Iterable[int] = (), topics: Iterable[str] = ()) -> list[LogDir]:
        """Those of `brokers` (all, if none is named), with the partitions of `topics` (or all) that lie there.

        Raises BrokerError `broker_not_available`, UnknownTopic.
        """
        wanted = [{"topic": name, "partitions": self.cluster.partitions(name)} for name in topics] or None
        ids = list(brokers) or [node.id for node in self.cluster.brokers()]
        return [one for id_ in ids for one in self._describe(id_, {"topics": wanted})]

    def _describe(self, broker_id: int, body: dict[str, object]) -> list[LogDir]:
        answer = self._ask_broker(broker_id, ApiKey.DESCRIBE_LOG_DIRS, body)
        if field(answer, "error_code") is not None:
            check(answer, f"describing the directories of broker {broker_id}")
        found = []
        for row in answer.results:
            error: BrokerError | None = None
            try:
                check(row, f"directory {row.log_dir}")
            except BrokerError as failed:
                error = failed
            partitions = {
                TopicPartition(str(topic.name), int(one.partition_index)): ReplicaSize(
                    int(one.partition_size), int(one.offset_lag), bool(one.is_future_key)
                )
                for topic in row.topics
                for one in topic.partitions
            }
            total, usable = int(field(row, "total_bytes", -1)), int(field(row, "usable_bytes", -1))
            found.append(LogDir(broker_id, row.log_dir, error, total, usable, dict(sorted(partitions.items()))))
        return found
