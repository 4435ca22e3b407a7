"""Write ready-made record batches to many partitions at once: for those who build batches from columns.

Called by the Spark connector's sink. Batches are joined into requests up to `max.request.size`, and up to
`max.in.flight.requests.per.connection` requests are under way at each broker; `send` waits only for room, so memory
holds no more than that. With acks=all batches are numbered, and one that is sent twice is written once (KIP-98).

When anything fails, whatever is under way is awaited, and what did not arrive goes out again one by one, in order, for
`delivery.timeout.ms`; a batch the broker calls too large goes in halves. What cannot be mended raises BrokerError,
in a transaction TransactionError, ConnectionFailed or RequestTimedOut: nothing more can be sent then.

partition_writer.py is the simpler one, for one partition.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Iterable, MutableMapping
from types import TracebackType
from typing import Final, NamedTuple

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.connection import Connection
from broker.client.produce_request import MAX_SEQUENCE, init_producer_id, produce_request, produced
from broker.client.transaction_errors import transaction_error
from broker.client.transaction_requests import TransactionHandle
from broker.errors import BrokerError, ConfigError, ErrorCode, ProtocolError, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header
from broker.records.columns import decode_columns, encode_columns

__all__ = ["BatchSender", "Stamp", "split_batch"]

_ANY_SIZE: Final = 1 << 30


class Stamp(NamedTuple):
    """What the next batch of a partition must be built with; all -1 where batches are not numbered."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class _Unsettled(NamedTuple):
    """A batch whose acknowledgement is not there; `number` tells the order in which they were handed over."""

    number: int
    tp: TopicPartition
    batch: bytes


class _Lane:
    """One broker: its connection, what is gathered for the next request, and what is under way, oldest first."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.gathered: dict[TopicPartition, _Unsettled] = {}
        self.gathered_bytes = 0
        self.under_way: deque[dict[TopicPartition, _Unsettled]] = deque()

    def unsettled(self) -> list[_Unsettled]:
        return [one for request in (*self.under_way, self.gathered) for one in request.values()]


class BatchSender:
    """Sends to any partitions of one cluster. Not thread-safe, and of no more use after an error."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int | None = None,
        transaction: TransactionHandle | None = None,
        idle: MutableMapping[Node, Connection] | None = None,
    ) -> None:
        """`acks`: -1 all, 1, 0; by default the setting of that name. A transaction needs all. Raises ConfigError.

        Partitions must be added to `transaction` before a batch is sent to them. `idle`: connections of the caller's
        that are taken out when one is needed, and put there by `close` when all that was sent is acknowledged.
        """
        settings = cluster.settings
        self.cluster = cluster
        self._acks = settings.required_acks if acks is None else acks
        self._numbered = self._acks == -1 and settings.enable_idempotence
        if transaction is not None and not self._numbered:
            raise ConfigError("a transaction needs acks=all and enable.idempotence=true")
        self._transaction = transaction
        self._identity = transaction.identity if transaction else None
        self._idle = idle
        self._window = settings.max_in_flight_requests_per_connection
        self._lanes: dict[Node, _Lane] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._unsettled: Counter[TopicPartition] = Counter()
        self._met: set[TopicPartition] = set()
        self._home: dict[TopicPartition, Node] = {}
        self._largest: dict[str, int] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> BatchSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stamp(self, tp: TopicPartition) -> Stamp:
        """What the next batch for `tp` is to be built with. `send` counts on."""
        if not self._numbered:
            return Stamp(-1, -1, -1)
        if self._identity is None:
            self._identity = self.cluster.retrying(lambda: init_producer_id(self.cluster))
        return Stamp(*self._identity, self._sequences.get(tp, 0))

    def send(self, tp: TopicPartition, batch: bytes, records: int) -> None:
        """Send a batch of so many records, built with `stamp(tp)`; waits while too much is under way."""
        self._sequences[tp] = (self._sequences.get(tp, 0) + records) & MAX_SEQUENCE
        one = _Unsettled(next(self._numbers), tp, batch)
        try:
            self._gather(one)
        except BrokerError as error:
            raise self._final(error) from error

    def largest_batch(self, topic: str) -> int:
        """Bytes a batch of the topic should not exceed: `max.request.size`, or less once a larger one was refused."""
        return self._largest.get(topic, self.cluster.settings.max_request_size)

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        try:
            for lane in list(self._lanes.values()):
                self._push(lane)
            for lane in list(self._lanes.values()):
                while lane.under_way:
                    self._settle_oldest(lane)
        except BrokerError as error:
            raise self._final(error) from error

    def close(self) -> None:
        """Let the connections go. What is under way may or may not arrive. May be called again."""
        for node, lane in self._lanes.items():
            if self._idle is None or node in self._idle or lane.unsettled() or self._acks == 0:
                lane.connection.close()
            else:
                self._idle[node] = lane.connection
        self._lanes.clear()

    def _final(self, error: BrokerError) -> BrokerError:
        if self._transaction is None or error.retriable:
            return error
        return transaction_error(error, producing=True)

    def _gather(self, one: _Unsettled) -> None:
        """Put the batch into the next request to its leader, which is sent when it is full."""
        tp, limit = one.tp, self.cluster.settings.max_request_size
        while lane := self._lane_of(tp):  # anew after every wait: it may have failed meanwhile
            # A log that has not met the producer takes any number first: see Sender._may_send.
            if self._unsettled[tp] and (tp not in self._met or not self._numbered):
                self._push(lane)
                self._settle_oldest(lane)
            elif tp in lane.gathered or (lane.gathered and lane.gathered_bytes + len(one.batch) > limit):
                self._push(lane)
            else:
                lane.gathered[tp] = one
                lane.gathered_bytes += len(one.batch)
                self._unsettled[tp] += 1
                return
        self._settle_one_by_one([one])

    def _lane_of(self, tp: TopicPartition) -> _Lane | None:
        """The lane to the leader of `tp`, with nothing of `tp` elsewhere; None when no connection can be had now."""
        leader = self.cluster.leader(tp)
        if self._unsettled[tp] and self._home.get(tp) != leader:
            self._recover()  # it has moved: all that is under way first
        self._home[tp] = leader
        lane = self._lanes.get(leader)
        if lane is not None and not lane.connection.usable:
            self._recover()
            lane = None
        if lane is None:
            try:
                lane = self._lanes[leader] = _Lane(self._connect(leader))
            except PykafkaError as error:
                if not error.retriable:
                    raise
        return lane

    def _connect(self, node: Node) -> Connection:
        connection = self._idle.pop(node, None) if self._idle else None
        if connection is not None and connection.usable:
            return connection
        if connection is not None:
            connection.close()
        return self.cluster.open_connection(node)

    def _push(self, lane: _Lane) -> None:
        """Send what is gathered, once fewer than the window are under way."""
        while len(lane.under_way) >= self._window:
            self._settle_oldest(lane)
        if not lane.gathered:
            return
        request, lane.gathered, lane.gathered_bytes = lane.gathered, {}, 0
        lane.under_way.append(request)
        try:
            self._transmit(lane.connection, list(request.values()))
        except PykafkaError:
            self._recover()
        else:
            if self._acks == 0:
                lane.under_way.pop()
                self._settled(request.values())

    def _transmit(self, connection: Connection, batches: list[_Unsettled]) -> None:
        body = produce_request(
            {one.tp: one.batch for one in batches},
            acks=self._acks,
            timeout_ms=self.cluster.settings.request_timeout_ms,
            transactional_id=self._transaction.transactional_id if self._transaction else None,
        )
        connection.send(ApiKey.PRODUCE, body, expect_reply=self._acks != 0)

    def _settle_oldest(self, lane: _Lane) -> None:
        if not lane.under_way:
            return
        try:
            refused = self._take_reply(lane)
        except PykafkaError:
            self._recover()
        else:
            if refused:
                self._recover(refused)

    def _take_reply(self, lane: _Lane) -> list[_Unsettled]:
        """What the reply to the oldest request says did not arrive."""
        _, answer = lane.connection.receive()
        results = produced(answer)
        request = lane.under_way.popleft()
        refused = []
        for tp, one in request.items():
            result = results.get(tp)
            failure = _failure(tp, result.failure(tp) if result else _silence(lane.connection, tp))
            if failure is None:
                self._settled([one])
            else:
                refused.append(one)
        return refused

    def _settled(self, batches: Iterable[_Unsettled]) -> None:
        for one in batches:
            self._met.add(one.tp)
            self._unsettled[one.tp] -= 1

    def _recover(self, refused: list[_Unsettled] | None = None) -> None:
        """Something failed: hear what became of the rest, then send what did not arrive in order, one by one."""
        missing = list(refused or ())
        for lane in self._lanes.values():
            with contextlib.suppress(PykafkaError):
                while lane.under_way and lane.connection.in_flight:
                    missing += self._take_reply(lane)
            missing += lane.unsettled()
            lane.under_way.clear()
            lane.gathered.clear()
            lane.connection.close()
        self._lanes.clear()
        self.cluster.invalidate()
        for one in missing:
            self._unsettled[one.tp] -= 1
        self._settle_one_by_one(sorted(missing))

    def _settle_one_by_one(self, batches: list[_Unsettled]) -> None:
        queue = deque(batches)
        while queue:
            one = queue.popleft()
            try:
                timeout_s = self.cluster.settings.delivery_timeout_ms / 1000
                self.cluster.retrying(lambda one=one: self._deliver(one), timeout_s=timeout_s)  # type: ignore[misc]
                self._met.add(one.tp)
            except BrokerError as error:
                halves = split_batch(one.batch) if error.code is ErrorCode.message_too_large else None
                if halves is None:
                    raise
                queue.extendleft(one._replace(batch=half) for half in reversed(halves))
                self._largest[one.tp.topic] = min(map(len, halves))

    def _deliver(self, one: _Unsettled) -> None:
        """One batch, on a connection that is not shared; raises what the broker says against it."""
        with self.cluster.open_connection(self.cluster.leader(one.tp)) as connection:
            self._transmit(connection, [one])
            if self._acks == 0:
                return
            _, answer = connection.receive()
            result = produced(answer).get(one.tp)
            failure = _failure(one.tp, result.failure(one.tp) if result else _silence(connection, one.tp))
            if failure is not None:
                raise failure


def split_batch(batch: bytes) -> tuple[bytes, bytes] | None:
    """The records of `batch` as two batches of the same producer, codec and numbers; None for a single record."""
    header = parse_header(batch)
    count = header.record_count
    if count < 2:
        return None
    columns = decode_columns(batch, headers=True)
    half = count // 2
    halves = []
    for start, rows in ((0, half), (half, count - half)):
        (part,) = encode_columns(
            columns.key.slice(start, rows),
            columns.value.slice(start, rows),
            columns.timestamp.slice(start, rows),
            None if columns.headers is None else columns.headers.slice(start, rows),
            codec=header.codec,
            max_bytes=_ANY_SIZE,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=-1 if header.base_sequence < 0 else (header.base_sequence + start) & MAX_SEQUENCE,
            transactional=header.is_transactional,
        )
        halves.append(part)
    return halves[0], halves[1]


def _failure(tp: TopicPartition, failure: PykafkaError | None) -> PykafkaError | None:
    """What counts as one: a batch that is there already does not."""
    there = isinstance(failure, BrokerError) and failure.code is ErrorCode.duplicate_sequence_number
    return None if there else failure


def _silence(connection: Connection, tp: TopicPartition) -> PykafkaError:
    return ProtocolError(f"{connection.address} said nothing about {tp}")
