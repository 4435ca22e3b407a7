"""The requests of a transactional producer, one by one, for tests that look at what a broker answers on the wire."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.records.record import decode_records
from tests.support.raw_requests import Requests, ask_for, batch
from tests.support.waiting import eventually

TRANSACTION_KEY = 1

V1 = {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
V2 = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}
"""The versions of the APIs by which a client uses version 1 or 2 of transactions."""


class RawProducer:
    """A producer that does nothing by itself: whoever knows its three names may speak for it."""

    def __init__(
        self,
        ask: Requests,
        transactional_id: str,
        producer_id: int = -1,
        epoch: int = -1,
        speaks: Mapping[ApiKey, int] = V1,
    ) -> None:
        self.ask = ask
        self.speaks = speaks
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self._sequences: dict[tuple[str, int], int] = {}

    @property
    def _names(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def find(self, version: int | None = None) -> Any:
        """Have the topic of the transactions made, and the coordinator named."""
        body = {"key_type": TRANSACTION_KEY, "key": self.transactional_id, "coordinator_keys": [self.transactional_id]}
        answer = self.ask.ask(ApiKey.FIND_COORDINATOR, body, version)
        return answer.coordinators[0] if hasattr(answer, "coordinators") else answer

    def init(self, *, timeout_ms: int = 60_000, version: int | None = None, claim: bool = False) -> Any:
        """InitProducerId; takes over what it is answered. `claim`: it says who it was so far."""
        names = self._names if claim else {**self._names, "producer_id": -1, "producer_epoch": -1}
        answer = self.ask.ask(ApiKey.INIT_PRODUCER_ID, {**names, "transaction_timeout": timeout_ms}, version)
        if answer.error_code is ErrorCode.none:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return answer

    def begin(self, *, timeout_ms: int = 60_000) -> RawProducer:
        """Find the coordinator and initialise, as soon as it is there and loaded."""
        eventually(lambda: self.find().error_code is ErrorCode.none)
        answers: list[Any] = []

        def is_loaded() -> bool:
            answers.append(self.init(timeout_ms=timeout_ms))
            return answers[-1].error_code not in (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)

        eventually(is_loaded)
        assert answers[-1].error_code is ErrorCode.none, answers[-1]
        return self

    def add(self, *partitions: tuple[str, int], version: int = 3, verify_only: bool = False) -> list[ErrorCode]:
        """AddPartitionsToTxn; a code for each partition."""
        topics = [{"name": topic, "partitions": [index]} for topic, index in partitions]
        if version <= 3:
            body = {f"v3_and_below_{name}": value for name, value in {**self._names, "topics": topics}.items()}
            results = self.ask.ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, version).results_by_topic_v3_and_below
        else:
            asked = {**self._names, "verify_only": verify_only, "topics": topics}
            answer = self.ask.ask(ApiKey.ADD_PARTITIONS_TO_TXN, {"transactions": [asked]}, version)
            assert answer.error_code is ErrorCode.none
            results = answer.results_by_transaction[0].topic_results
        codes = {(t.name, p.partition_index): p.partition_error_code for t in results for p in t.results_by_partition}
        return [codes[partition] for partition in partitions]

    def add_offsets(self, group: str, version: int | None = None) -> ErrorCode:
        answer = self.ask.ask(ApiKey.ADD_OFFSETS_TO_TXN, {**self._names, "group_id": group}, version)
        return ErrorCode(answer.error_code)

    def commit_offset(self, group: str, topic: str, offset: int, version: int | None = None) -> ErrorCode:
        """TxnOffsetCommit of partition 0, by nobody in particular of the group."""
        asked = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        body = {
            **self._names,
            "group_id": group,
            "generation_id": -1,
            "topics": [{"name": topic, "partitions": [asked]}],
        }
        answer = self.ask.ask(ApiKey.TXN_OFFSET_COMMIT, body, version or self.speaks[ApiKey.TXN_OFFSET_COMMIT])
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def send(self, topic: str, *values: bytes, partition: int = 0, version: int | None = None) -> ErrorCode:
        """Produce the values as one batch of the transaction."""
        (code,) = self.send_to_all([(topic, partition)], *values, version=version)
        return code

    def send_to_all(
        self, partitions: Sequence[tuple[str, int]], *values: bytes, version: int | None = None
    ) -> list[ErrorCode]:
        """Produce the values to each partition, in one request; a code for each."""
        records = {partition: self._batch(partition, values) for partition in partitions}
        version = version or self.speaks[ApiKey.PRODUCE]
        answers = self.ask.produce(records, transactional_id=self.transactional_id, version=version)
        for partition in partitions:
            if answers[partition].error_code is ErrorCode.none:
                self._sequences[partition] = self._sequences.get(partition, 0) + len(values)
        return [ErrorCode(answers[partition].error_code) for partition in partitions]

    def _batch(self, partition: tuple[str, int], values: Sequence[bytes]) -> bytes:
        return batch(
            *values,
            timestamp=time.time_ns() // 1_000_000,  # as the marker's: else the segment is rolled between them
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0),
            transactional=True,
        )

    def end(self, *, commit: bool = True, version: int | None = None, settled: bool = True) -> ErrorCode:
        """End the transaction; takes over the identity in the answer. Waits until the markers are written (`settled`).

        A broker answers before they are when its disk is slow; Kafka always does.
        """
        version = version or self.speaks[ApiKey.END_TXN]
        answer = self.ask.ask(ApiKey.END_TXN, {**self._names, "committed": commit}, version)
        if version >= V2[ApiKey.END_TXN] and answer.error_code is ErrorCode.none:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        if settled and answer.error_code is ErrorCode.none:
            eventually(lambda: not str(self.describe().transaction_state).startswith("Prepare"))
        return ErrorCode(answer.error_code)

    def describe(self) -> Any:
        body = {"transactional_ids": [self.transactional_id]}
        return self.ask.ask(ApiKey.DESCRIBE_TRANSACTIONS, body).transaction_states[0]


def stable_end(ask: Requests, topic: str, partition: int = 0) -> int:
    """The offset up to which a reader of committed data may read."""
    (found,) = ask.fetch([ask_for(topic, partition=partition)], version=12, isolation_level=1)
    assert found.error_code is ErrorCode.none, found
    return int(found.last_stable_offset)


def committed_values(ask: Requests, topic: str, partition: int = 0) -> list[bytes | None]:
    """What a reader of committed data gets to see."""
    (found,) = ask.fetch([ask_for(topic, partition=partition)], version=12, isolation_level=1)
    assert found.error_code is ErrorCode.none, found
    aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
    return [record.value for record in decode_records(found.records or b"", aborted=aborted)]


def committed_offset(ask: Requests, group: str, topic: str) -> int:
    """Of partition 0; -1 when there is none."""
    body = {"groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]}
    (answer,) = ask.ask(ApiKey.OFFSET_FETCH, {**body, "require_stable": False}).groups
    return int(answer.topics[0].partitions[0].committed_offset)
