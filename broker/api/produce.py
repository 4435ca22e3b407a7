"""Produce: append record batches as leader.

Behaviour: with acks=0 there is no answer, and an error closes the connection. With acks=1 the answer comes when the
records are in the log (and on disk, if the topic's flush settings ask for it), with acks=all when all in-sync replicas
have them, too. With too few in-sync replicas acks=all is refused. If their number falls after the append, the answer
waits until it has risen. After the request's timeout the answer is REQUEST_TIMED_OUT, and the records may still be
committed. With one replica acks=all equals acks=1. Each partition has its own error. Clients cannot write to internal
topics.

Every record is checked before anything is appended (log/append_checks.py). Checks of large compressed batches finish in
a thread. Requests of a connection stay in order, because it handles one at a time. The memory that the batches of a
request may grow to is limited. While a disk is slow, appends and their answers wait in a queue (replica/partition.py).

Records of a transaction are refused unless their partition was added to it (KIP-890). Otherwise records that arrive
after the end of their transaction would open one that nobody ends, and readers would wait for its end forever. When
another broker coordinates the transaction, it is asked about the first records only: while the log has records of the
open transaction, its marker has not come. A client that uses version 2 of transactions has added nothing: the leader
adds the partition with the first records.
Version notes: 3 is the first with record batches, 7 with zstd, 12 with transactions of version 2 (KIP-890). 13 names
topics by id (KIP-516): what was meant for a topic that was deleted is refused with UNKNOWN_TOPIC_ID, and not written
into a new topic of its name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import struct
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.named_topics import NO_ID, check_named, name_of
from broker.api.refused_versions import refuse_produce
from broker.api.serving import serves
from broker.api.transactions import code_for_version
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, CorruptBatch, ErrorCode, ProtocolError, RecordsRefused
from broker.log.append_checks import Allowance, BatchCheck, writable
from broker.log.pending_append import AppendResult
from broker.net.delayed_answer import DelayedAnswer
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import to_ms
from broker.protocol.permissions import PRODUCE_TOPIC, PRODUCE_TRANSACTION
from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import CODEC_MASK, HEADER_SIZE, LENGTH_END, BatchHeader, is_transactional
from broker.records.compression import DECOMPRESSION_LIMIT, Codec
from broker.replica.partition import Partition

Answer = Fields | None
_ALL: Final = -1
_TOO_SLOW: Final = "the in-sync replicas did not get the records in time; they may get them yet"

INLINE_COST: Final = 1 << 20
"""Bytes of a request that are checked on the event loop. The rest is checked in a thread."""

_GROWTH: Final = 4
"""The decompressed batches of a request may have this many times socket.request.max.bytes (`DECOMPRESSION_LIMIT` or
more)."""

# Kafka sends the log start offset with every error of an append except these.
_WITHOUT_LOG_START: Final = {
    ErrorCode.corrupt_message,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.kafka_storage_error,
}

# Byte positions in a batch (records/batch.py), and what `_batch_of` checks.
_MAGIC: Final = 16
_ATTRIBUTES: Final = 22  # the low byte
_LENGTH: Final = struct.Struct(">i")
_SHORTEST: Final = 14
"""The length of a record in the oldest format. A smaller length means damaged data."""
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_LEADERS: Final = 10
_FIRST_THAT_ADDS: Final = 12
_FIRST_WITH_TOPIC_IDS: Final = 13

# Older clients do not retry these errors of KIP-890, but all retry NOT_ENOUGH_REPLICAS. Clients that leave it to the
# leader to add partitions often get CONCURRENT_TRANSACTIONS, and know it.
_RETRY: Final = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.network_exception,
    ErrorCode.not_coordinator,
}
_REASONS: Final = {
    ErrorCode.transaction_abortable: "the partition was not added to the transaction, or the transaction has ended",
    ErrorCode.producer_fenced: "another producer with the same transactional id has taken over",
    ErrorCode.invalid_producer_id_mapping: "the transactional id is not known, or has another producer id",
}


@dataclasses.dataclass(slots=True)
class _Verification:
    """The question to the coordinator of the transaction whether the partition is part of it, or to add it."""

    partition: Partition
    producer: ProducerIdAndEpoch
    guard: object
    asked: Awaitable[ErrorCode]
    verdict: ErrorCode = ErrorCode.none

    def end(self) -> bool:
        """Whether no marker came meanwhile. Idempotent."""
        return self.partition.end_verification(self.producer.producer_id, self.guard)


@dataclasses.dataclass(slots=True, eq=False)
class _Part:
    """What the request has for one partition, and what becomes of it."""

    tp: TopicPartition
    """Of a topic without a name if its id is not known."""
    partition: Partition | None = None
    check: BatchCheck | None = None
    verification: _Verification | None = None
    answer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Empty until it is appended or refused."""
    on_disk: Awaitable[AppendResult | None] | None = None
    """Gives None once the records are on this broker's disk, or the result of an append that was still queued."""
    last_offset: int = -1
    topic_id: uuid.UUID | None = None
    """If the request calls the topic by its id."""

    def appended(self, result: AppendResult) -> None:
        self.last_offset = result.last_offset
        self.answer = {
            "index": self.tp.partition,
            "error_code": ErrorCode.none,
            "base_offset": result.base_offset,
            "log_append_time": result.log_append_time,
            "log_start_offset": result.log_start_offset,
        }


@serves(ApiKey.PRODUCE, 3, 13, advertised_low=0, refuse=refuse_produce)
def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    return _Produce(context, request, client).begin()


class _Produce:
    """One request: checks its batches, appends them, and answers when they are as safe as the producer asks."""

    __slots__ = ("_body", "_client", "_context", "_parts", "_request", "_unfinished", "_verifications", "unsafe")

    def __init__(self, context: ApiContext, request: Request, client: Client) -> None:
        self._context = context
        self._request = request
        self._body = request.body
        self._client = client
        self._parts: list[_Part] = []
        self._unfinished: list[_Part] = []
        """Those whose checks a thread finishes."""
        self._verifications: list[_Verification] = []
        self.unsafe: list[_Part] = []
        """Those that cannot be acknowledged yet."""

    def begin(self) -> Answer | Awaitable[Answer]:
        self._check()
        if self._unfinished or self._verifications:
            return self._acknowledge_later(self._context.check_threads.keep(self._append_checked()))
        self._append_all()
        if not self.unsafe:
            return self.answer()
        if any(part.on_disk is not None for part in self.unsafe):
            return self._acknowledge_later(self._context.check_threads.keep(self._wait_for_disk()))
        return self._acknowledge()

    def _check(self) -> None:
        """Find the partitions and check their batches, as far as that takes no time."""
        context, body = self._context, self._body
        allowance = Allowance(max(DECOMPRESSION_LIMIT, _GROWTH * context.config.socket_request_max_bytes))
        cost = INLINE_COST
        of_transaction = _of_transaction(body)
        added: dict[ProducerIdAndEpoch, list[_Part]] = {}
        by_id = self._request.version >= _FIRST_WITH_TOPIC_IDS
        for topic in body.topic_data:
            topic_id = topic.topic_id or NO_ID if by_id else None
            name = name_of(context, topic.topic_id) if by_id else topic.name
            for data in topic.partition_data:
                part = _Part(TopicPartition(name, data.index), topic_id=topic_id)
                self._parts.append(part)
                try:
                    partition = self._partition(part.tp, topic_id, of_transaction=of_transaction)
                    batch = _batch_of(data.records, self._request.version)
                    part.partition = partition
                    part.check = check = BatchCheck(batch, partition.log.config, context.clock.now_ms(), allowance)
                    if body.acks == _ALL:
                        _check_min_isr(partition, check.header)
                    if not check.run(cost):
                        self._unfinished.append(part)
                    cost -= check.cost
                    if of_transaction and (header := check.header).is_transactional:
                        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
                        if not self._must_ask(producer, partition, header):
                            continue
                        if self._request.version >= _FIRST_THAT_ADDS:
                            added.setdefault(producer, []).append(part)
                        else:
                            self._ask([part], producer, adds=False)
                except BrokerError as error:
                    self._refuse(part, error, part.partition)
        for producer, parts in added.items():
            self._ask(parts, producer, adds=True)

    def _partition(self, tp: TopicPartition, topic_id: uuid.UUID | None, *, of_transaction: bool) -> Partition:
        """The partition, if the request may write to it."""
        context, acks = self._context, self._body.acks
        if of_transaction:
            context.check(self._client, PRODUCE_TRANSACTION, self._body.transactional_id)
        if topic_id is None:
            context.check(self._client, PRODUCE_TOPIC, tp.topic)
        else:
            check_named(context, self._client, PRODUCE_TOPIC, tp.topic, topic_id)
        if acks not in (_ALL, 0, 1) and context.topics.metadata.partition(tp) is not None:
            raise BrokerError(ErrorCode.invalid_required_acks, f"acks={acks} is not 0, 1 or all")
        if tp.topic in INTERNAL_TOPICS:
            raise BrokerError(ErrorCode.invalid_topic_exception, f"{tp.topic} is written by brokers only")
        return context.topics.partition(tp)

    async def _append_checked(self) -> None:
        """Finish the checks in a thread, then append, and wait until the records are on this broker's disk."""
        try:
            if checks := [part.check for part in self._unfinished if part.check is not None]:
                errors = await self._context.check_threads.finish(checks)
                for part, error in zip(self._unfinished, errors, strict=True):
                    if error is not None:
                        self._refuse(part, error, part.partition)
            for verification in self._verifications:
                verification.verdict = await verification.asked
            for part in self._parts:
                if not part.answer:
                    try:
                        if self._context.topics.partition(part.tp) is not part.partition:
                            text = f"{part.tp} was reopened: send again"
                            raise BrokerError(ErrorCode.not_leader_or_follower, text)
                    except BrokerError as error:
                        self._refuse(part, error)
            self._append_all()
        finally:
            for verification in self._verifications:
                verification.end()  # if no append has ended it
        await self._wait_for_disk()

    def _append_all(self) -> None:
        for part in self._parts:
            if not part.answer:
                self._append(part)

    def _append(self, part: _Part) -> None:
        partition, check = part.partition, part.check
        assert partition is not None
        assert check is not None
        try:
            if check.header.is_transactional:
                self._check_transaction(part, partition, check.header)
        except BrokerError as error:
            self._refuse(part, error)
            return
        try:
            result = partition.append_checked(check)
        except BrokerError as error:
            self._refuse(part, error, partition)
            return
        if not isinstance(result, AppendResult):
            part.on_disk = result
            self.unsafe.append(part)
            return
        part.appended(result)
        part.on_disk = partition.flushed()
        if part.on_disk is not None or (partition.in_sync is not None and self._body.acks == _ALL):
            self.unsafe.append(part)

    async def _wait_for_disk(self) -> None:
        """Wait until the records are appended and on this broker's disk."""
        waiting = [(part, part.on_disk) for part in self.unsafe if part.on_disk is not None]
        outcomes = await asyncio.gather(*(on_disk for _, on_disk in waiting), return_exceptions=True)
        for (part, _), outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, BrokerError):
                self._refuse(part, outcome, part.partition)
                part.last_offset = -1
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None:
                part.appended(outcome)

    async def _acknowledge_later(self, appending: Awaitable[None]) -> Answer:
        await appending
        answer = self._acknowledge()
        return await answer if isinstance(answer, DelayedAnswer) else answer

    def _acknowledge(self) -> Answer | DelayedAnswer[Answer]:
        """Answer when the records, which are safe here, are as safe as the producer asks."""
        if self._body.acks == _ALL:
            waiting = _DelayedProduce(self)
            if waiting.begin(to_ms(self._body.timeout) / 1000):
                return waiting.answer
        return self.answer()

    def answer(self) -> Answer:
        if self._body.acks == 0:
            for part in self._parts:
                if part.answer["error_code"] is not ErrorCode.none:
                    raise ProtocolError(f"produce with acks=0 to {part.tp} failed: {part.answer['error_message']}")
            return None
        leaders = self._add_leaders() if self._request.version >= _FIRST_WITH_LEADERS else ()
        by_topic: dict[str | uuid.UUID, list[Fields]] = {}
        for part in self._parts:
            by_topic.setdefault(part.topic_id or part.tp.topic, []).append(part.answer)
        called = "topic_id" if self._request.version >= _FIRST_WITH_TOPIC_IDS else "name"
        responses = [{called: topic, "partition_responses": answers} for topic, answers in by_topic.items()]
        return {"responses": responses, "node_endpoints": leaders}

    def _add_leaders(self) -> Sequence[Fields]:
        """Add to the partitions that are led elsewhere who leads them; returns the addresses of these leaders
        (KIP-951)."""
        leaders: dict[int, Fields] = {}
        for part in self._parts:
            if part.answer["error_code"] is not ErrorCode.not_leader_or_follower:
                continue
            leader = self._context.current_leader(self._client, part.tp)
            if leader is not None:
                part.answer["current_leader"] = {"leader_id": leader.broker_id, "leader_epoch": leader.epoch}
                if leader.host:
                    at = {"host": leader.host, "port": leader.port, "rack": leader.rack}
                    leaders[leader.broker_id] = {"node_id": leader.broker_id, **at}
        return tuple(leaders.values())

    def _refuse(self, part: _Part, error: BrokerError, partition: Partition | None = None) -> None:
        """Answer with the error. `partition` is given if its log refused the batch."""
        self._context.metrics.failed(ApiKey.PRODUCE, error.code)
        refused = error.record_errors if isinstance(error, RecordsRefused) else ()
        log_start = -1 if partition is None or error.code in _WITHOUT_LOG_START else partition.log.log_start_offset
        part.answer = {
            "index": part.tp.partition,
            "error_code": error.code,
            "base_offset": -1,
            "log_append_time": -1,
            "log_start_offset": log_start,
            "record_errors": [{"batch_index": place, "batch_index_error_message": text} for place, text in refused],
            "error_message": error.message or None,
        }

    def not_committed(self, part: _Part, error: BrokerError) -> None:
        """The answer keeps its offsets, as in Kafka: the records are in the log, and may be committed later."""
        self._context.metrics.failed(ApiKey.PRODUCE, error.code)
        part.answer.update(error_code=error.code, error_message=error.message)

    def _must_ask(self, producer: ProducerIdAndEpoch, partition: Partition, header: BatchHeader) -> bool:
        """Whether the coordinator must verify the partition, or add it, before records of a transaction go into it. It
        need not while the log has records of the transaction. Raises BrokerError.

        In version 2 each transaction has a new epoch, which begins at sequence 0 in each partition. So what begins at
        another one has overtaken the first batch, even if the log knows nothing of the producer.
        """
        context, producers = self._context, partition.log.producers
        if self._request.version < _FIRST_THAT_ADDS:
            if not context.config.transaction_partition_verification_enable:
                return False
            is_local = context.verifier.is_local(self._body.transactional_id)
            return not (is_local or partition.has_open_transaction(*producer))
        producers.check_epoch(header)
        if partition.has_open_transaction(*producer):
            return False
        if header.base_sequence and producers.get(producer.producer_id) is None:
            text = f"the first batch of a transaction has sequence 0, not {header.base_sequence}"
            raise BrokerError(ErrorCode.out_of_order_sequence_number, text)
        return True

    def _ask(self, parts: Sequence[_Part], producer: ProducerIdAndEpoch, *, adds: bool) -> None:
        """Ask for the partitions of these parts in one request: to verify them, or to add them to the transaction."""
        tps = {part.tp for part in parts}
        asked = self._context.verifier.ask(self._body.transactional_id, producer, tps, adds=adds)
        if isinstance(asked, ErrorCode):  # this broker has stored it, or refuses it
            for part in parts if asked is not ErrorCode.none else ():
                self._refuse(part, self._not_open(asked))
            return
        asked = asyncio.ensure_future(asked)
        for part in parts:
            assert part.partition is not None
            guard = part.partition.begin_verification(producer.producer_id)
            part.verification = _Verification(part.partition, producer, guard, asked)
            self._verifications.append(part.verification)

    def _check_transaction(self, part: _Part, partition: Partition, header: BatchHeader) -> None:
        """Raise BrokerError unless the producer of the batch has an open transaction that contains the partition."""
        context, transactional_id = self._context, self._body.transactional_id
        if transactional_id is None:
            raise BrokerError(
                ErrorCode.transactional_id_authorization_failed, "records of a transaction need a transactional id"
            )
        verification = part.verification
        if verification is None and not context.config.transaction_partition_verification_enable:
            return
        producer, code = ProducerIdAndEpoch(header.producer_id, header.producer_epoch), ErrorCode.none
        if verification is not None:
            code, is_valid = verification.verdict, verification.end()
            if code is ErrorCode.none and not is_valid and not partition.has_open_transaction(*producer):
                code = ErrorCode.concurrent_transactions
        elif context.verifier.is_local(transactional_id):
            code = context.transactions.verify(transactional_id, producer, part.tp)
        elif not partition.has_open_transaction(*producer):
            code = ErrorCode.not_coordinator  # the coordinator has moved since the request came
        if code is not ErrorCode.none:
            raise self._not_open(code)

    def _not_open(self, code: ErrorCode) -> BrokerError:
        """What the client is answered when the coordinator says `code` about its transaction."""
        version, shown = self._request.version, code
        if code not in _RETRY:
            shown = code_for_version(ApiKey.PRODUCE, version, code)
        elif version < _FIRST_THAT_ADDS or code is not ErrorCode.concurrent_transactions:
            shown = ErrorCode.not_enough_replicas
        return BrokerError(shown, _REASONS.get(code, f"transaction {self._body.transactional_id}: {code.name}"))


class _DelayedProduce:
    """Waits until all in-sync replicas have the records of a request, or its time is up (Kafka's DelayedProduce)."""

    def __init__(self, produce: _Produce) -> None:
        self._produce = produce
        self._waiting = {part: functools.partial(self._committed, part) for part in produce.unsafe}
        self._timer: asyncio.TimerHandle | None = None
        self.answer: DelayedAnswer[Answer] = DelayedAnswer(self._end)

    def begin(self, timeout_s: float) -> bool:
        """False if there is nothing to wait for."""
        for part, on_commit in tuple(self._waiting.items()):
            try:
                assert part.partition is not None
                is_waiting = part.partition.watch_commit(part.last_offset, on_commit)
            except BrokerError as error:
                self._produce.not_committed(part, error)
                is_waiting = False
            if not is_waiting:
                del self._waiting[part]
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(max(timeout_s, 0), self._expire)
        return bool(self._waiting)

    def _committed(self, part: _Part, error: BrokerError | None) -> None:
        if part not in self._waiting:
            return
        del self._waiting[part]
        if error is not None:
            self._produce.not_committed(part, error)
        if self._waiting:
            return
        if error is None:
            self._complete()
        else:  # in the next turn of the event loop, when the metadata name the new leader (KIP-951)
            asyncio.get_running_loop().call_soon(self._complete)

    def _expire(self) -> None:
        for part in self._waiting:
            self._produce.not_committed(part, BrokerError(ErrorCode.request_timed_out, _TOO_SLOW))
        self._complete()

    def _complete(self) -> None:
        if self.answer.is_over:
            return  # the client is gone, or the time was up
        self._end()
        try:
            answer = self._produce.answer()
        except Exception as error:
            self.answer.fail(error)
        else:
            self.answer.complete(answer)

    def _end(self) -> None:
        for part, on_commit in self._waiting.items():
            if part.partition is not None:
                part.partition.unwatch_commit(part.last_offset, on_commit)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()


def _of_transaction(body: Any) -> bool:
    """Whether records of the request belong to a transaction of its transactional id."""
    if body.transactional_id is None:
        return False
    return any(is_transactional(data.records or b"") for topic in body.topic_data for data in topic.partition_data)


def _check_min_isr(partition: Partition, header: BatchHeader) -> None:
    """Raise BrokerError `not_enough_replicas`, but not for a duplicate: it appends nothing and waits for the first."""
    try:
        partition.check_min_isr()
    except BrokerError:
        if not partition.is_duplicate(header):
            raise


def _batch_of(records: bytes | bytearray | memoryview | None, version: int) -> bytearray | memoryview:
    """The one batch in `records`, to be patched in place if possible. An incomplete batch after it is ignored.

    Rules and codes are those of Kafka's `ProduceRequest.validateRecords` and `ByteBufferLogInputStream`. Raises
    BrokerError `invalid_record`, `corrupt_message` or `unsupported_compression_type`.
    """
    data = memoryview(writable(records or b""))
    size = _batch_size(data)
    if size is None:
        raise BrokerError(ErrorCode.invalid_record, f"no whole record batch in {len(data)} bytes for this partition")
    if data[_MAGIC] != 2:
        raise BrokerError(ErrorCode.invalid_record, f"magic {data[_MAGIC]} is not 2: Produce v3 takes nothing older")
    if size < HEADER_SIZE:
        raise CorruptBatch(f"a batch of {size} bytes is shorter than its header")
    if data[_ATTRIBUTES] & CODEC_MASK == Codec.ZSTD and version < _FIRST_WITH_ZSTD:
        raise BrokerError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce v{_FIRST_WITH_ZSTD}, this is v{version}"
        )
    if len(data) > size and _batch_size(data[size:]) is not None:
        raise BrokerError(ErrorCode.invalid_record, "Produce takes one record batch for each partition")
    return data[:size]


def _batch_size(data: memoryview) -> int | None:
    """Size of the first batch in bytes, None if it is incomplete. Raises CorruptBatch if it cannot be a batch."""
    if len(data) < LENGTH_END:
        return None
    (length,) = _LENGTH.unpack_from(data, LENGTH_END - _LENGTH.size)
    if length < _SHORTEST:
        raise CorruptBatch(f"a record batch cannot have a length of {length}")
    if len(data) <= _MAGIC:
        return None
    if data[_MAGIC] > 2:
        raise CorruptBatch(f"magic {data[_MAGIC]} is not known")
    return LENGTH_END + int(length) if LENGTH_END + length <= len(data) else None
