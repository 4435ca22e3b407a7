"""Asks the coordinator of a transaction whether it is open and has a partition, or to add that (KIP-890).

The leader of a partition asks before it appends the first records of a transaction, and the group coordinator before it
stores offsets in one. In version 2 of transactions it asks for the partition to be added, which may begin the
transaction. The coordinator may be another broker (Kafka's AddPartitionsToTxnManager).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_names import TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.records.control import BUMPS_EPOCH

_ADD_PARTITIONS_TO_TXN_VERSION = 5
_NO_CAUSE = (ErrorCode.none, ErrorCode.operation_not_attempted)


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]
    adds: bool


class TransactionVerifier:
    """Verifies transactions with their coordinators. Lives on the event loop."""

    def __init__(
        self, topics: MetadataCache, broker_id: int, transactions: TransactionCoordinator, connect: Connect
    ) -> None:
        self._topics = topics
        self._broker_id = broker_id
        self._transactions = transactions
        self._peers = PeerRequests(connect, _send)
        self._peers.follow(topics, lambda one: self._coordinator(one.transactional_id), ErrorCode.not_coordinator)

    def is_local(self, transactional_id: str) -> bool:
        """Whether this broker coordinates the transactions of the id. Then ask the coordinator itself."""
        return self._coordinator(transactional_id) == self._broker_id

    def ask(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
        *,
        adds: bool = False,
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """NONE if the producer's transaction is open and has all of `partitions`, for which another broker is asked.

        With `adds` they are added to it, on whichever broker: NONE when that is stored, CONCURRENT_TRANSACTIONS while
        the last transaction has not ended. TRANSACTION_ABORTABLE, PRODUCER_FENCED or INVALID_PRODUCER_ID_MAPPING if
        not. Anything else if that cannot be said now.
        """
        if adds and self.is_local(transactional_id):
            return self._transactions.add_partitions(transactional_id, producer, partitions, BUMPS_EPOCH)
        question = _Question(transactional_id, producer, frozenset(partitions), adds)
        return self._peers.ask(self._coordinator(transactional_id), question)

    def _coordinator(self, transactional_id: str) -> int:
        """The id of the broker, -1 if there is none. Without the internal topic no id has a transaction."""
        stored_in = TopicPartition(TRANSACTION_STATE_TOPIC, self._transactions.partition_for(transactional_id))
        info = self._topics.metadata.partition(stored_in)
        return self._broker_id if info is None else info.leader

    async def close(self) -> None:
        """End all requests."""
        await self._peers.close()


async def _send(peer: PeerConnection, questions: Sequence[_Question]) -> Mapping[_Question, ErrorCode]:
    body = {
        "transactions": [
            {
                "transactional_id": asked.transactional_id,
                "producer_id": asked.producer.producer_id,
                "producer_epoch": asked.producer.epoch,
                "verify_only": not asked.adds,
                "topics": topic_rows((tp, tp.partition) for tp in asked.partitions),
            }
            for asked in questions
        ]
    }
    answer = await peer.request(ApiKey.ADD_PARTITIONS_TO_TXN, _ADD_PARTITIONS_TO_TXN_VERSION, body)
    if answer.error_code is not ErrorCode.none:
        raise BrokerError(
            answer.error_code, f"{peer.address} refused to verify transactions; is this broker's user in super.users?"
        )
    codes = {
        asked: [row.partition_error_code for topic in result.topic_results for row in topic.results_by_partition]
        for asked, result in zip(questions, answer.results_by_transaction, strict=False)
    }
    return {asked: _cause(of) for asked, of in codes.items() if len(of) == len(asked.partitions)}


def _cause(codes: Sequence[ErrorCode]) -> ErrorCode:
    """Why nothing was added: of one partition. The others have OPERATION_NOT_ATTEMPTED then."""
    return next((code for code in codes if code not in _NO_CAUSE), ErrorCode.none)
