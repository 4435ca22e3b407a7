"""What transactional and idempotent producers ask (KIP-98): an id, and to begin and end transactions.

Answers that come at once are given without a task, and those that a producer gets again and again are encoded once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.offsets import asked_partitions, committed_offset, refused_partitions, results_by_topic
from broker.api.serving import serves
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.transaction_records import NO_EPOCH, NO_PRODUCER_ID
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_response, field, to_ms, with_correlation_id
from broker.protocol.permissions import (
    ADD_OFFSETS_GROUP,
    ADD_OFFSETS_TRANSACTION,
    ADD_PARTITIONS_AS_BROKER,
    ADD_PARTITIONS_TOPIC,
    ADD_PARTITIONS_TRANSACTION,
    COMMIT_TRANSACTION,
    COMMIT_TRANSACTION_GROUP,
    COMMIT_TRANSACTION_TOPIC,
    END_TRANSACTION,
    INIT_IDEMPOTENT,
    INIT_IDEMPOTENT_TOPIC,
    INIT_TRANSACTION,
)
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.records.control import BUMPS_EPOCH

logger = logging.getLogger(__name__)

Answer: TypeAlias = Fields | Sequence[bytes]
Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]

_ENCODED: dict[Hashable, bytes] = {}
_MAX_ENCODED = 2048
MAX_CACHED_PARTITIONS = 16
"""An answer is cached if it has this many partitions or fewer."""
_FIRST_COMMIT_THAT_ADDS = 5
_FIRST_END_THAT_BUMPS = 5

# API → (first version that knows PRODUCER_FENCED, first that knows TRANSACTION_ABORTABLE)
_FIRST_VERSIONS = {
    ApiKey.PRODUCE: (1 << 15, 11),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (2, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (2, 4),
    ApiKey.END_TXN: (2, 4),
    ApiKey.TXN_OFFSET_COMMIT: (1 << 15, 4),
}


def code_for_version(api: ApiKey, version: int, code: ErrorCode) -> ErrorCode:
    """Clients that do not know PRODUCER_FENCED get INVALID_PRODUCER_EPOCH (KIP-588), those that do not know
    TRANSACTION_ABORTABLE get INVALID_TXN_STATE (KIP-890)."""
    knows_fenced, knows_abortable = _FIRST_VERSIONS[api]
    if code is ErrorCode.producer_fenced and version < knows_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and version < knows_abortable:
        return ErrorCode.invalid_txn_state
    return code


def encoded_once(request: Request, key: Hashable, answer: Callable[[], Fields]) -> Sequence[bytes]:
    """The encoded result of `answer`, cached by API, version and `key`: a producer often gets the same answer again.

    `key` must contain everything else that the answer depends on.
    """
    cache_key = (request.api, request.version, key)
    frame = _ENCODED.get(cache_key)
    if frame is None:
        if len(_ENCODED) >= _MAX_ENCODED:
            _ENCODED.clear()
        frame = _ENCODED[cache_key] = encode_response(request, answer())
    return [with_correlation_id(frame, request.correlation_id)]


def producer_of(body: Any) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(body.producer_id, body.producer_epoch)


def when_known(
    code: ErrorCode | Awaitable[ErrorCode], answer: Callable[[ErrorCode], Answer]
) -> Answer | Awaitable[Answer]:
    """Call `answer` with the code, now or when it is known."""
    return answer(code) if isinstance(code, ErrorCode) else _after(code, answer)


async def _after(code: Awaitable[ErrorCode], answer: Callable[[ErrorCode], Answer]) -> Answer:
    return answer(await code)


@serves(ApiKey.INIT_PRODUCER_ID, 0, 5)
def init_producer_id(context: ApiContext, request: Request, client: Client) -> Fields | Awaitable[Fields]:
    """InitProducerId: give an idempotent producer its id (KIP-98), or start a transactional producer.

    A new producer id with epoch 0, or that of the transactional id. New ids come from ZooKeeper in blocks. A
    transactional id has a producer id of its own. The producer gets it with the next epoch, which fences its
    predecessor. A transaction that the predecessor left open is aborted first.
    Version notes: 3 — a producer may send its present id and epoch to go on after an error (KIP-360). 6 (two-phase
    commit, KIP-939) is not served.
    """
    body = request.body
    claimed = ProducerIdAndEpoch(field(body, "producer_id", NO_PRODUCER_ID), field(body, "producer_epoch", NO_EPOCH))
    if (claimed.producer_id == NO_PRODUCER_ID) is not (claimed.epoch == NO_EPOCH):
        return _no_producer_id(ErrorCode.invalid_request)
    if body.transactional_id is not None:
        if not context.allows(client, INIT_TRANSACTION, body.transactional_id):
            return _no_producer_id(INIT_TRANSACTION.code)
        return _init_transactional(context, request, None if claimed.epoch == NO_EPOCH else claimed)
    may_write = context.allows(client, INIT_IDEMPOTENT, asked=False)
    if not may_write and not context.authorizer.allows_any(client, INIT_IDEMPOTENT_TOPIC):
        return _no_producer_id(INIT_IDEMPOTENT.code)
    ready = context.producer_ids.take()
    return _producer_id(ready, 0) if ready is not None else _take_from_new_block(context)


async def _init_transactional(context: ApiContext, request: Request, claimed: ProducerIdAndEpoch | None) -> Fields:
    body = request.body
    try:
        reply = await context.transactions.init_producer_id(
            body.transactional_id, to_ms(body.transaction_timeout), claimed
        )
    except PykafkaError as error:
        return _failed_to_assign(error)
    if reply.error is not ErrorCode.none:
        return _no_producer_id(code_for_version(request.api, request.version, reply.error))
    return _producer_id(reply.producer_id, reply.producer_epoch)


async def _take_from_new_block(context: ApiContext) -> Fields:
    try:
        return _producer_id(await context.producer_ids.take_from_new_block(), 0)
    except PykafkaError as error:
        return _failed_to_assign(error)


def _failed_to_assign(error: PykafkaError) -> Fields:
    logger.warning("cannot assign a producer id: %s", error)
    return _no_producer_id(ErrorCode.coordinator_load_in_progress)  # producers retry after this error


def _producer_id(producer_id: int, epoch: int) -> Fields:
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": epoch}


def _no_producer_id(code: ErrorCode) -> Fields:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}


@serves(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5)
def add_partitions_to_txn(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """AddPartitionsToTxn: add the partitions that a transaction will write to (KIP-98).

    All partitions are added or none. If one does not exist, the others get OPERATION_NOT_ATTEMPTED. A client
    cannot add internal topics (TOPIC_AUTHORIZATION_FAILED, as in Kafka).
    Version notes: up to 3 a client adds to its own transaction. From 4 brokers send several transactions at once for
    their producers, which use version 2 of transactions (KIP-890), or only ask whether the partitions were added
    (`verify_only`). Others than brokers get CLUSTER_AUTHORIZATION_FAILED.
    """
    body = request.body
    if field(body, "transactions") is not None:
        if not context.allows(client, ADD_PARTITIONS_AS_BROKER):
            return {"error_code": ErrorCode.cluster_authorization_failed, "results_by_transaction": []}
        return _add_batch(context, request)
    partitions = _partitions(body.v3_and_below_topics)
    if not context.allows(client, ADD_PARTITIONS_TRANSACTION, body.v3_and_below_transactional_id):
        refused = dict.fromkeys(partitions, ADD_PARTITIONS_TRANSACTION.code)
    else:
        refused = _partitions_refused(context, partitions, client)
    if refused:
        return {"results_by_topic_v3_and_below": _partition_results(refused)}

    def answer(code: ErrorCode) -> Answer:
        shown = code_for_version(request.api, request.version, code)

        def body() -> Fields:
            return {"results_by_topic_v3_and_below": _partition_results(dict.fromkeys(partitions, shown))}

        if code is not ErrorCode.none or len(partitions) > MAX_CACHED_PARTITIONS:
            return body()
        return encoded_once(request, tuple(partitions), body)

    producer = ProducerIdAndEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    added = context.transactions.add_partitions(body.v3_and_below_transactional_id, producer, frozenset(partitions))
    return when_known(added, answer)


async def _add_batch(context: ApiContext, request: Request) -> Fields:
    transactions = request.body.transactions
    waiting = [_add_or_verify(context, asked, _partitions(asked.topics)) for asked in transactions]
    codes = await asyncio.gather(*waiting) if len(waiting) > 1 else [await one for one in waiting]
    results = []
    for asked, by_partition in zip(transactions, codes, strict=True):
        shown = {tp: code_for_version(request.api, request.version, code) for tp, code in by_partition.items()}
        results.append({"transactional_id": asked.transactional_id, "topic_results": _partition_results(shown)})
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add_or_verify(context: ApiContext, asked: Any, partitions: Sequence[TopicPartition]) -> Codes:
    transactional_id, producer = asked.transactional_id, producer_of(asked)
    refused = _partitions_refused(context, partitions, None)
    if refused:
        return refused
    if asked.verify_only:
        return {tp: context.transactions.verify(transactional_id, producer, tp) for tp in partitions}
    code = context.transactions.add_partitions(transactional_id, producer, frozenset(partitions), BUMPS_EPOCH)
    return dict.fromkeys(partitions, code if isinstance(code, ErrorCode) else await code)


def _partitions(topics: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _partitions_refused(
    context: ApiContext, partitions: Sequence[TopicPartition], client: Client | None
) -> dict[TopicPartition, ErrorCode]:
    """A result for every partition if one of them cannot be added, else an empty dict.

    `client` is None for a broker, which may also add internal topics.
    """
    errors = {}
    for tp in partitions:
        if client is not None and (
            tp.topic in INTERNAL_TOPICS or not context.allows(client, ADD_PARTITIONS_TOPIC, tp.topic)
        ):
            errors[tp] = ADD_PARTITIONS_TOPIC.code
        elif context.topics.metadata.partition(tp) is None:
            errors[tp] = ErrorCode.unknown_topic_or_partition
    return {tp: errors.get(tp, ErrorCode.operation_not_attempted) for tp in partitions} if errors else {}


def _partition_results(codes: Codes) -> Sequence[Fields]:
    rows = ((tp, {"partition_index": tp.partition, "partition_error_code": code}) for tp, code in codes.items())
    return topic_rows(rows, partitions="results_by_partition")


@serves(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4)
def add_offsets_to_txn(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """AddOffsetsToTxn: a transaction will commit a group's offsets (KIP-98).

    The group's partition of __consumer_offsets is added to the transaction, as by AddPartitionsToTxn. The offsets come
    later with TxnOffsetCommit, to the group's coordinator.
    """
    body = request.body
    for need, name in ((ADD_OFFSETS_TRANSACTION, body.transactional_id), (ADD_OFFSETS_GROUP, body.group_id)):
        if not context.allows(client, need, name):
            return {"error_code": need.code}
    added = context.transactions.add_offsets(
        body.transactional_id, producer_of(body), context.groups.partition_for(body.group_id)
    )
    return when_known(added, lambda code: {"error_code": code_for_version(request.api, request.version, code)})


@serves(ApiKey.TXN_OFFSET_COMMIT, 0, 5)
async def txn_offset_commit(context: ApiContext, request: Request, client: Client) -> Fields:
    """TxnOffsetCommit: store a group's offsets as part of a producer's transaction (KIP-98).

    Each partition has its own result. The offsets take effect when the transaction is committed. Its
    producer must have added the group to the transaction before (AddOffsetsToTxn), otherwise the offsets would wait for
    an end that never comes (KIP-890).
    Version notes: 2 — leader epochs; 3 — the member's generation, which fences older generations (KIP-447); 5 — the
    group's coordinator adds the group to the transaction, which may begin it (KIP-890).
    """
    body = request.body
    for need, name in ((COMMIT_TRANSACTION, body.transactional_id), (COMMIT_TRANSACTION_GROUP, body.group_id)):
        if not context.allows(client, need, name):
            return {"topics": results_by_topic(body.topics, refused_partitions(body.topics, need.code))}
    known, results = asked_partitions(context, client, COMMIT_TRANSACTION_TOPIC, body.topics)
    if known:
        refused = await _offsets_refused(context, body, adds=request.version >= _FIRST_COMMIT_THAT_ADDS)
        stored = (
            dict.fromkeys(known, refused)
            if refused is not ErrorCode.none
            else await _store_offsets(context, body, known)
        )
        results |= {tp: _code_for_client(code, request.version) for tp, code in stored.items()}
    return {"topics": results_by_topic(body.topics, results)}


async def _offsets_refused(context: ApiContext, body: Any, *, adds: bool) -> ErrorCode:
    """Why the offsets are not stored, or NONE. Store them in the same step of the event loop then."""
    if not body.group_id:
        return ErrorCode.invalid_group_id
    if not (adds or context.config.transaction_partition_verification_enable):
        return ErrorCode.none
    stored_in = TopicPartition(GROUP_OFFSETS_TOPIC, context.groups.partition_for(body.group_id))
    producer = producer_of(body)
    if not adds and context.verifier.is_local(body.transactional_id):
        code = context.transactions.verify(body.transactional_id, producer, stored_in)
    else:
        code = await _coordinator_says(context, body.transactional_id, producer, stored_in, adds=adds)
    if code is ErrorCode.network_exception:
        return ErrorCode.coordinator_load_in_progress  # the client tries again here: the group has not moved
    if adds and code is ErrorCode.concurrent_transactions:
        return code
    return ErrorCode.coordinator_not_available if code.retriable else code


async def _coordinator_says(
    context: ApiContext, transactional_id: str, producer: ProducerIdAndEpoch, stored_in: TopicPartition, *, adds: bool
) -> ErrorCode:
    """What the transaction's coordinator says, after it has added the group if it shall. A marker may come meanwhile
    (KIP-890)."""
    try:
        partition = context.topics.partition(stored_in)
    except BrokerError:
        return ErrorCode.none  # the group coordinator has the right error
    if partition.has_open_transaction(*producer):
        return ErrorCode.none
    guard = partition.begin_verification(producer.producer_id)
    try:
        asked = context.verifier.ask(transactional_id, producer, {stored_in}, adds=adds)
        code = asked if isinstance(asked, ErrorCode) else await asked
    finally:
        is_valid = partition.end_verification(producer.producer_id, guard) or partition.has_open_transaction(*producer)
    if code is not ErrorCode.none:
        return code
    try:
        is_valid = is_valid and context.topics.partition(stored_in) is partition  # else another broker led it meanwhile
    except BrokerError as error:
        return error.code
    return ErrorCode.none if is_valid else ErrorCode.concurrent_transactions


async def _store_offsets(
    context: ApiContext, body: Any, known: Mapping[TopicPartition, Any]
) -> Mapping[TopicPartition, ErrorCode]:
    return await context.groups.commit_offsets(
        CommitRequest(
            group_id=body.group_id,
            offsets={tp: committed_offset(asked) for tp, asked in known.items()},
            generation_id=field(body, "generation_id", -1),
            member_id=field(body, "member_id", ""),
            group_instance_id=field(body, "group_instance_id"),
            producer=producer_of(body),
        )
    )


def _code_for_client(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.coordinator_load_in_progress and version < 2:
        return ErrorCode.coordinator_not_available  # older producers do not retry COORDINATOR_LOAD_IN_PROGRESS
    return code_for_version(ApiKey.TXN_OFFSET_COMMIT, version, code)


@serves(ApiKey.END_TXN, 0, 5)
def end_txn(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """EndTxn: commit or abort a transaction (KIP-98).

    The answer comes when the decision is stored. From then on it survives any crash. A client may repeat the
    request. It needs the transactional id with its producer id and epoch.
    Version notes: 5 is of transactions of version 2 (KIP-890): the answer has the producer id and epoch of the next
    one.
    """
    body = request.body
    if not context.allows(client, END_TRANSACTION, body.transactional_id):
        return {"error_code": END_TRANSACTION.code}
    if request.version >= _FIRST_END_THAT_BUMPS:
        return _end_and_bump(context, request)
    ended = context.transactions.end(body.transactional_id, producer_of(body), commit=body.committed)

    def answer(code: ErrorCode) -> Answer:
        if code is ErrorCode.none:
            return encoded_once(request, None, lambda: {"error_code": code})
        return {"error_code": code_for_version(request.api, request.version, code)}

    return when_known(ended, answer)


async def _end_and_bump(context: ApiContext, request: Request) -> Fields:
    body = request.body
    try:
        ended = await context.transactions.end_and_bump(body.transactional_id, producer_of(body), commit=body.committed)
    except PykafkaError as error:
        return _failed_to_assign(error)
    code = code_for_version(request.api, request.version, ended.error)
    return {"error_code": code, "producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
