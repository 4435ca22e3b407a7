"""Write ready-made record batches to one partition, in order; for those who build batches from columns.

Called by the Spark connector's writers and the benchmarks. With acks=all every batch is stamped with a producer
identity, so that up to five can be under way and a retry writes none twice (KIP-98); with acks=1 one is
under way at a time, and a retry after a lost reply may write it again; with acks=0 nothing is known.

Within a transaction (transactions.py) the batches must be transactional ones, and are stamped with its producer id
and epoch; their partition must have been added to it before.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from broker.client.cluster import Cluster
from broker.client.connection import Connection
from broker.client.produce_request import MAX_SEQUENCE, ProducerIdentity, init_producer_id, produce_request, produced
from broker.client.transaction_errors import transaction_error
from broker.client.transaction_requests import TransactionHandle
from broker.errors import BrokerError, ConfigError, ErrorCode, ProtocolError, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header, patch_producer

__all__ = ["PartitionWriter", "produce_batches"]

_WINDOW: Final = 5
"""Batches under way that a broker remembers the sequence numbers of."""


class PartitionWriter:
    """Appends to `tp`. Not thread-safe. After an error it is not known what of that `write` arrived."""

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        *,
        acks: int | None = None,
        transaction: TransactionHandle | None = None,
        first_sequence: int = 0,
    ) -> None:
        """`acks`: -1 all, 1, 0; by default the setting of that name.

        `first_sequence`: how many records this epoch of `transaction` has written to `tp` before. Raises ConfigError.
        """
        settings = cluster.settings
        self.cluster = cluster
        self.tp = tp
        self._acks = settings.required_acks if acks is None else acks
        self._idempotent = self._acks == -1 and settings.enable_idempotence
        self._window = min(_WINDOW, settings.max_in_flight_requests_per_connection) if self._idempotent else 1
        if transaction is not None and not self._idempotent:
            raise ConfigError("a transaction needs acks=all and enable.idempotence=true")
        self._transaction = transaction
        self._identity: ProducerIdentity | None = transaction.identity if transaction else None
        self._sequence = first_sequence
        self._known_to_log = first_sequence > 0
        self._connection: Connection | None = None
        self._under_way: deque[bytes] = deque()
        self._sent = 0
        """How many of those under way went out on the connection there is now."""

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batches: Iterable[bytes]) -> list[int]:
        """Append `batches` and wait for the acknowledgements; the base offset of each (-1 with acks=0).

        What is retriable is retried for `delivery.timeout.ms`; else raises BrokerError naming the partition, in a
        transaction TransactionError: it can only be aborted then.
        """
        offsets: list[int] = []
        try:
            for batch in batches:
                self._under_way.append(self._stamped(batch))
                with contextlib.suppress(PykafkaError):  # waiting for the acknowledgement tries again
                    self._send_unsent()
                # A log that has not met the producer takes any number first: see Sender._may_send.
                if len(self._under_way) >= (self._window if self._known_to_log else 1):
                    offsets.append(self._await_oldest())
            while self._under_way:
                offsets.append(self._await_oldest())
        except BaseException as error:
            self._under_way.clear()
            self._identity, self._known_to_log = None, False  # its sequence has a gap now
            self.close()
            if self._transaction is not None and isinstance(error, BrokerError) and not error.retriable:
                raise transaction_error(error, producing=True) from error
            raise
        return offsets

    @property
    def next_sequence(self) -> int:
        """`first_sequence` for whoever goes on writing to the partition in the same epoch."""
        return self._sequence

    def close(self) -> None:
        """Hang up. May be called again; a later write connects anew."""
        connection, self._connection, self._sent = self._connection, None, 0
        if connection is not None:
            connection.close()

    def _await_oldest(self) -> int:
        """The base offset of the oldest batch under way, once it is acknowledged."""
        offset = self.cluster.retrying(
            self._acknowledge_once, timeout_s=self.cluster.settings.delivery_timeout_ms / 1000
        )
        self._under_way.popleft()
        self._sent -= 1
        self._known_to_log = True
        return offset

    def _acknowledge_once(self) -> int:
        connection = self._send_unsent()
        if self._acks == 0:
            return -1
        try:
            _, answer = connection.receive()
            result = produced(answer).get(self.tp)
            if result is None:
                raise ProtocolError(f"{connection.address} said nothing about {self.tp}")
            failure = result.failure(self.tp)
            if failure is not None and failure.code is not ErrorCode.duplicate_sequence_number:
                raise failure
        except PykafkaError:
            self.close()  # the batches behind it are sent again after it
            raise
        return result.base_offset

    def _send_unsent(self) -> Connection:
        connection = self._connection
        try:
            if connection is None or not connection.usable:
                self.close()
                connection = self._connection = self.cluster.open_connection(self.cluster.leader(self.tp))
            for batch in itertools.islice(self._under_way, self._sent, None):
                timeout_ms = self.cluster.settings.request_timeout_ms
                id_ = self._transaction.transactional_id if self._transaction else None
                body = produce_request({self.tp: batch}, acks=self._acks, timeout_ms=timeout_ms, transactional_id=id_)
                connection.send(ApiKey.PRODUCE, body, expect_reply=self._acks != 0)
                self._sent += 1
        except PykafkaError:
            self.close()
            raise
        return connection

    def _stamped(self, batch: bytes) -> bytes:
        if not self._idempotent:
            return batch
        if self._identity is None:
            if self._transaction is not None:
                raise PykafkaError(f"writing to {self.tp} failed before: the transaction can only be aborted")
            self._identity = self.cluster.retrying(lambda: init_producer_id(self.cluster))
            self._sequence = 0
        stamped = bytearray(batch)
        header = parse_header(stamped)
        if header.is_transactional is not (self._transaction is not None):
            raise ConfigError("in a transaction, and nowhere else, batches must be built with transactional=True")
        patch_producer(stamped, 0, header, self._identity.producer_id, self._identity.epoch, self._sequence)
        self._sequence = (self._sequence + header.record_count) & MAX_SEQUENCE
        return bytes(stamped)


def produce_batches(
    cluster: Cluster,
    tp: TopicPartition,
    batches: Iterable[bytes],
    *,
    acks: int | None = None,
    transaction: TransactionHandle | None = None,
    first_sequence: int = 0,
) -> list[int]:
    """Write `batches` to `tp` with a `PartitionWriter` of their own; the base offset of each."""
    with PartitionWriter(cluster, tp, acks=acks, transaction=transaction, first_sequence=first_sequence) as writer:
        return writer.write(batches)
