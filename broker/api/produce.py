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
open transaction, its marker has not come.
Version notes: 3 is the first with record batches, 7 with zstd; topic ids (13) are not served.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.current_leader import current_leader
from broker.api.transaction_requests import code_for_version
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

# Older clients do not retry these errors of KIP-890, but all retry NOT_ENOUGH_REPLICAS.
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
class _Part:
    """What the request has for one partition: the check of its batch, or `failed`, its error answer."""

    tp: TopicPartition
    partition: Partition | None = None
    check: BatchCheck | None = None
    failed: dict[str, Any] | None = None
    asked: Awaitable[ErrorCode] | None = None
    """What the coordinator of the transaction, which is another broker, will say about it."""
    guard: object = None
    verdict: ErrorCode = ErrorCode.none


@dataclasses.dataclass(slots=True)
class _Unsafe:
    """A partition that cannot be acknowledged yet, with its answer."""

    partition: Partition
    response: dict[str, Any]
    safe_here: Awaitable[AppendResult | None] | None
    """Gives None once the records are on this broker's disk, or the result of an append that was still queued."""
    last_offset: int = -1


class _Appended(NamedTuple):
    responses: list[Fields]
    unsafe: list[_Unsafe]


def handle(context: ApiContext, request: Request, client: Client) -> Answer | DelayedAnswer[Answer] | Awaitable[Answer]:
    allowance = Allowance(max(DECOMPRESSION_LIMIT, _GROWTH * context.config.socket_request_max_bytes))
    cost = INLINE_COST
    parts: list[_Part] = []
    unfinished: list[_Part] = []
    of_transaction, asked = _of_transaction(request), False
    for topic in request.body.topic_data:
        for data in topic.partition_data:
            part = _Part(TopicPartition(topic.name, data.index))
            parts.append(part)
            try:
                partition = _partition(context, request, client, part.tp, of_transaction=of_transaction)
                batch = _batch_of(data.records, request.version)
            except BrokerError as error:
                part.failed = _failed(context, part.tp, error)
                continue
            try:
                part.partition = partition
                part.check = BatchCheck(batch, partition.log.config, context.clock.now_ms(), allowance)
                if request.body.acks == _ALL:
                    _check_min_isr(partition, part.check.header)
                if not part.check.run(cost):
                    unfinished.append(part)
                cost -= part.check.cost
                if of_transaction and part.check.header.is_transactional:
                    _ask_coordinator(context, request, part)
                    asked = asked or part.asked is not None
            except BrokerError as error:
                part.failed = _failed(context, part.tp, error, partition)
    if unfinished or asked:
        appending = context.check_threads.keep(_append_checked(context, request, parts, unfinished))
        return _checked(context, request, client, appending)
    appended = _append_all(context, request, parts)
    if not appended.unsafe:
        return _answer(context, request, client, appended.responses)
    if any(one.safe_here is not None for one in appended.unsafe):
        return _checked(context, request, client, context.check_threads.keep(_made_safe(context, appended)))
    return _acknowledged(context, request, client, appended)


async def _checked(context: ApiContext, request: Request, client: Client, appending: Awaitable[_Appended]) -> Answer:
    answer = _acknowledged(context, request, client, await appending)
    return await answer if isinstance(answer, DelayedAnswer) else answer


async def _append_checked(
    context: ApiContext, request: Request, parts: Sequence[_Part], unfinished: Sequence[_Part]
) -> _Appended:
    """Finish the checks in a thread, then append, and wait until the records are safe here."""
    try:
        if unfinished:
            errors = await context.check_threads.finish([part.check for part in unfinished if part.check is not None])
            for part, error in zip(unfinished, errors, strict=True):
                if error is not None:
                    part.failed = _failed(context, part.tp, error, part.partition)
        for part in parts:
            if part.asked is not None:
                part.verdict = await part.asked
        for part in parts:
            if part.failed is None:
                try:
                    if context.topics.partition(part.tp) is not part.partition:
                        raise BrokerError(ErrorCode.not_leader_or_follower, f"{part.tp} was reopened: send again")
                except BrokerError as error:
                    part.failed = _failed(context, part.tp, error)
        appended = _append_all(context, request, parts)
    finally:
        for part in parts:
            if part.guard is not None and part.partition is not None and part.check is not None:
                part.partition.end_verification(part.check.header.producer_id, part.guard)  # if no append has ended it
    return await _made_safe(context, appended)


def _append_all(context: ApiContext, request: Request, parts: Sequence[_Part]) -> _Appended:
    unsafe: list[_Unsafe] = []
    by_topic: dict[str, list[Fields]] = {}
    for part in parts:
        answer = part.failed or _append(context, request, part, unsafe)
        by_topic.setdefault(part.tp.topic, []).append(answer)
    return _Appended([{"name": name, "partition_responses": answers} for name, answers in by_topic.items()], unsafe)


def _acknowledged(
    context: ApiContext, request: Request, client: Client, appended: _Appended
) -> Answer | DelayedAnswer[Answer]:
    """Answer when the records, which are safe here, are as safe as the producer asks."""
    if request.body.acks == _ALL:
        waiting = _DelayedProduce(
            context, appended.unsafe, functools.partial(_answer, context, request, client, appended.responses)
        )
        if waiting.begin(to_ms(request.body.timeout) / 1000):
            return waiting.answer
    return _answer(context, request, client, appended.responses)


async def _made_safe(context: ApiContext, appended: _Appended) -> _Appended:
    """Wait until the records are appended and on this broker's disk."""
    waiting = [(one, one.safe_here) for one in appended.unsafe if one.safe_here is not None]
    outcomes = await asyncio.gather(*(safe for _, safe in waiting), return_exceptions=True)
    for (one, _), outcome in zip(waiting, outcomes, strict=True):
        if isinstance(outcome, BrokerError):
            one.response.update(_failed(context, one.partition.tp, outcome, one.partition))
            one.last_offset = -1
        elif isinstance(outcome, BaseException):
            raise outcome
        elif outcome is not None:
            one.response.update(_stored(one.partition, outcome))
            one.last_offset = outcome.last_offset
    return appended


class _DelayedProduce:
    """Waits until all in-sync replicas have the records, or its time is up (Kafka's DelayedProduce).

    With an error the answer keeps the offsets, as in Kafka: the records are in the log, and may be committed later.
    """

    def __init__(self, context: ApiContext, unsafe: Sequence[_Unsafe], respond: Callable[[], Answer]) -> None:
        self._context = context
        self._respond: Callable[[], Answer] | None = respond
        self._waiting = {number: (one, functools.partial(self._committed, number)) for number, one in enumerate(unsafe)}
        self._timer: asyncio.TimerHandle | None = None
        self.answer: DelayedAnswer[Answer] = DelayedAnswer(self._end)

    def begin(self, timeout_s: float) -> bool:
        """False if there is nothing to wait for."""
        for number, (one, on_commit) in tuple(self._waiting.items()):
            try:
                is_waiting = one.partition.watch_commit(one.last_offset, on_commit)
            except BrokerError as error:
                _not_committed(self._context, one, error)
                is_waiting = False
            if not is_waiting:
                del self._waiting[number]
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(max(timeout_s, 0), self._expire)
        return bool(self._waiting)

    def _committed(self, number: int, error: BrokerError | None) -> None:
        if number not in self._waiting:
            return
        one, _ = self._waiting.pop(number)
        if error is not None:
            _not_committed(self._context, one, error)
        if self._waiting:
            return
        if error is None:
            self._complete()
        else:  # in the next turn of the event loop, when the metadata name the new leader (KIP-951)
            asyncio.get_running_loop().call_soon(self._complete)

    def _expire(self) -> None:
        for one, _ in self._waiting.values():
            _not_committed(self._context, one, BrokerError(ErrorCode.request_timed_out, _TOO_SLOW))
        self._complete()

    def _complete(self) -> None:
        respond = self._respond
        if respond is None:
            return  # the client is gone, or the time was up
        self._end()
        try:
            answer = respond()
        except Exception as error:
            self.answer.fail(error)
        else:
            self.answer.complete(answer)

    def _end(self) -> None:
        self._respond = None
        for one, on_commit in self._waiting.values():
            one.partition.unwatch_commit(one.last_offset, on_commit)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()


def _not_committed(context: ApiContext, one: _Unsafe, error: BrokerError) -> None:
    context.metrics.failed(ApiKey.PRODUCE, error.code)
    one.response.update(error_code=error.code, error_message=error.message)


def _answer(context: ApiContext, request: Request, client: Client, responses: Sequence[Fields]) -> Answer:
    if request.body.acks != 0:
        leaders = _add_leaders(context, client, responses) if request.version >= _FIRST_WITH_LEADERS else ()
        return {"responses": responses, "node_endpoints": leaders}
    for topic in responses:
        for partition in topic["partition_responses"]:
            if partition["error_code"] is not ErrorCode.none:
                raise ProtocolError(
                    f"produce with acks=0 to {topic['name']}-{partition['index']} failed: {partition['error_message']}"
                )
    return None


def _add_leaders(context: ApiContext, client: Client, responses: Sequence[Fields]) -> Sequence[Fields]:
    """Add to the partitions that are led elsewhere who leads them; returns the addresses of these leaders (KIP-951)."""
    leaders: dict[int, Fields] = {}
    for topic in responses:
        for partition in topic["partition_responses"]:
            if partition["error_code"] is not ErrorCode.not_leader_or_follower:
                continue
            tp = TopicPartition(topic["name"], partition["index"])
            leader = current_leader(context.topics.metadata, tp, client.listener)
            if leader is not None:
                partition["current_leader"] = {"leader_id": leader.broker_id, "leader_epoch": leader.epoch}
                if leader.host:
                    at = {"host": leader.host, "port": leader.port, "rack": leader.rack}
                    leaders[leader.broker_id] = {"node_id": leader.broker_id, **at}
    return tuple(leaders.values())


def _append(context: ApiContext, request: Request, part: _Part, unsafe: list[_Unsafe]) -> Fields:
    partition, check = part.partition, part.check
    assert partition is not None
    assert check is not None
    try:
        if check.header.is_transactional:
            _check_transaction(context, request, part, partition, check.header)
    except BrokerError as error:
        return _failed(context, part.tp, error)
    try:
        result = partition.append_checked(check)
    except BrokerError as error:
        return _failed(context, part.tp, error, partition)
    if not isinstance(result, AppendResult):
        response: dict[str, Any] = {}
        unsafe.append(_Unsafe(partition, response, result))
        return response
    response = _stored(partition, result)
    flushed = partition.flushed()
    if flushed is not None or (partition.in_sync is not None and request.body.acks == _ALL):
        unsafe.append(_Unsafe(partition, response, flushed, result.last_offset))
    return response


def _stored(partition: Partition, result: AppendResult) -> dict[str, Any]:
    return {
        "index": partition.tp.partition,
        "error_code": ErrorCode.none,
        "base_offset": result.base_offset,
        "log_append_time": result.log_append_time,
        "log_start_offset": result.log_start_offset,
    }


def _failed(
    context: ApiContext, tp: TopicPartition, error: BrokerError, partition: Partition | None = None
) -> dict[str, Any]:
    """The error answer for a partition. `partition` is given if its log refused the batch."""
    context.metrics.failed(ApiKey.PRODUCE, error.code)
    refused = error.record_errors if isinstance(error, RecordsRefused) else ()
    log_start = -1 if partition is None or error.code in _WITHOUT_LOG_START else partition.log.log_start_offset
    return {
        "index": tp.partition,
        "error_code": error.code,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": log_start,
        "record_errors": [{"batch_index": place, "batch_index_error_message": text} for place, text in refused],
        "error_message": error.message or None,
    }


def _of_transaction(request: Request) -> bool:
    """Whether records of the request belong to a transaction of its transactional id."""
    if request.body.transactional_id is None:
        return False
    return any(
        is_transactional(data.records or b"") for topic in request.body.topic_data for data in topic.partition_data
    )


def _partition(
    context: ApiContext, request: Request, client: Client, tp: TopicPartition, *, of_transaction: bool
) -> Partition:
    """The partition, if the request may write to it."""
    acks = request.body.acks
    if of_transaction:
        context.check(client, PRODUCE_TRANSACTION, request.body.transactional_id)
    context.check(client, PRODUCE_TOPIC, tp.topic)
    if acks not in (_ALL, 0, 1) and context.topics.metadata.partition(tp) is not None:
        raise BrokerError(ErrorCode.invalid_required_acks, f"acks={acks} is not 0, 1 or all")
    if tp.topic in INTERNAL_TOPICS:
        raise BrokerError(ErrorCode.invalid_topic_exception, f"{tp.topic} is written by brokers only")
    return context.topics.partition(tp)


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


def _ask_coordinator(context: ApiContext, request: Request, part: _Part) -> None:
    """Ask another broker about the first records of a transaction in a partition."""
    transactional_id, partition, check = request.body.transactional_id, part.partition, part.check
    assert partition is not None
    assert check is not None
    if not context.config.transaction_partition_verification_enable:
        return
    producer = ProducerIdAndEpoch(check.header.producer_id, check.header.producer_epoch)
    if context.verifier.is_local(transactional_id) or partition.has_open_transaction(*producer):
        return
    part.guard = partition.begin_verification(producer.producer_id)
    part.asked = context.verifier.ask(transactional_id, producer, part.tp)


def _check_transaction(
    context: ApiContext, request: Request, part: _Part, partition: Partition, header: BatchHeader
) -> None:
    """Raise BrokerError unless the producer of the batch has an open transaction that contains the partition."""
    transactional_id = request.body.transactional_id
    if transactional_id is None:
        raise BrokerError(
            ErrorCode.transactional_id_authorization_failed, "records of a transaction need a transactional id"
        )
    if not context.config.transaction_partition_verification_enable:
        return
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    code = part.verdict
    if part.asked is not None:
        is_valid = partition.end_verification(producer.producer_id, part.guard)
        if code is ErrorCode.none and not is_valid and not partition.has_open_transaction(*producer):
            code = ErrorCode.concurrent_transactions
    elif context.verifier.is_local(transactional_id):
        code = context.transactions.verify(transactional_id, producer, part.tp)
    elif not partition.has_open_transaction(*producer):
        code = ErrorCode.not_coordinator  # the coordinator has moved since the request came
    if code is ErrorCode.none:
        return
    shown = ErrorCode.not_enough_replicas if code in _RETRY else code_for_version(ApiKey.PRODUCE, request.version, code)
    raise BrokerError(shown, _REASONS.get(code, f"transaction {transactional_id}: {code.name}"))
