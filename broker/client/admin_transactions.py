"""List and describe transactions and producers, end a transaction that hangs: a part of `Admin` (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from broker.client.admin_requests import AdminRequests, by_topic, check
from broker.client.coordinator import Coordinator
from broker.client.metadata import CoordinatorKind, Node
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import to_ms
from broker.protocol.topic_partition import TopicPartition

__all__ = ["ProducerState", "TransactionAdmin", "TransactionDescription", "TransactionListing"]


class TransactionListing(NamedTuple):
    """A transactional id and where it stands: Empty, Ongoing, PrepareCommit, CompleteAbort, …"""

    transactional_id: str
    coordinator: Node
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """One transactional id. Times in ms, `start_ms` -1 while no transaction is open."""

    transactional_id: str
    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


class ProducerState(NamedTuple):
    """What a partition knows of one producer. `coordinator_epoch` and `transaction_start_offset` are -1 for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class TransactionAdmin(AdminRequests):
    """Transactions, from the coordinators' side and from the partitions'."""

    def list_transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), running_longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """Those of all coordinators that pass every filter. Raises ConfigError for a state that does not exist."""
        body = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": running_longer_than_ms,
        }
        found = []
        for node, answer in self._ask_all(ApiKey.LIST_TRANSACTIONS, body, "listing the transactions").items():
            if answer.unknown_state_filters:
                raise ConfigError(f"there is no transaction state {', '.join(answer.unknown_state_filters)}")
            found += [
                TransactionListing(str(row.transactional_id), node, int(row.producer_id), row.transaction_state)
                for row in answer.transaction_states
            ]
        return sorted(found)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Raises BrokerError `transactional_id_not_found`."""

        def ask(coordinator: Coordinator) -> TransactionDescription:
            body = {"transactional_ids": [transactional_id]}
            (row,) = coordinator.request(ApiKey.DESCRIBE_TRANSACTIONS, body).transaction_states
            coordinator.check(row.error_code, "describing the transaction")
            return TransactionDescription(
                transactional_id,
                self.cluster.coordinator(transactional_id, CoordinatorKind.TRANSACTION),
                row.transaction_state,
                int(row.producer_id),
                int(row.producer_epoch),
                to_ms(row.transaction_timeout),
                to_ms(row.transaction_start_time),
                tuple(sorted(TopicPartition(str(t.topic), int(index)) for t in row.topics for index in t.partitions)),
            )

        return self._ask_coordinator(transactional_id, CoordinatorKind.TRANSACTION, ask)

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
        """The producers that the leader of each partition has state of. Raises UnknownTopic."""

        def ask(node: Node, tps: list[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
            topics = [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic(tps).items()]
            answer = self.cluster.connection(node).request(ApiKey.DESCRIBE_PRODUCERS, {"topics": topics})
            found = {}
            for topic in answer.topics:
                for row in topic.partitions:
                    check(row, f"describing the producers of {topic.name}-{row.partition_index}")
                    tp = TopicPartition(str(topic.name), int(row.partition_index))
                    found[tp] = sorted(map(_producer, row.active_producers))
            return found

        return self._ask_leaders(partitions, ask)

    def abort_transaction(self, tp: TopicPartition, producer: ProducerState) -> None:
        """Write the abort marker into one partition, past the coordinator: only for a transaction it does not know.

        `producer` as `describe_producers` gave it. Raises BrokerError: `invalid_producer_epoch`,
        `transaction_coordinator_fenced`, UnknownTopic.
        """
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": max(0, producer.coordinator_epoch),
            "transaction_result": False,
            "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}],
        }

        def ask(node: Node, _: list[TopicPartition]) -> dict[TopicPartition, None]:
            answer = self.cluster.connection(node).request(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
            codes = [row.error_code for one in answer.markers for topic in one.topics for row in topic.partitions]
            for code in codes:
                if code is not ErrorCode.none:
                    what = f"aborting the transaction of producer {producer.producer_id} in {tp.topic}-{tp.partition}"
                    raise BrokerError(code, what)
            return {tp: None}

        self._ask_leaders([tp], ask)


def _producer(row: Any) -> ProducerState:
    return ProducerState(
        int(row.producer_id),
        int(row.producer_epoch),
        int(row.last_sequence),
        int(row.last_timestamp),
        int(row.coordinator_epoch),
        int(row.current_txn_start_offset),
    )
