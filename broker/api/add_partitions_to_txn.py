"""AddPartitionsToTxn: add the partitions that a transaction will write to (KIP-98).

Behaviour: all partitions are added or none. If one does not exist, the others get OPERATION_NOT_ATTEMPTED. A client
cannot add internal topics (TOPIC_AUTHORIZATION_FAILED, as in Kafka).
Version notes: up to 3 a client adds to its own transaction. From 4 brokers send several transactions at once for their
producers, which use version 2 of transactions (KIP-890), or only ask whether the partitions were added (`verify_only`).
Others than brokers get CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.transaction_requests import Answer, code_for_version, encoded_once, producer_of, when_known
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import ADD_PARTITIONS_AS_BROKER, ADD_PARTITIONS_TOPIC, ADD_PARTITIONS_TRANSACTION
from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.records.control import BUMPS_EPOCH

MAX_CACHED_PARTITIONS = 16
"""An answer is cached if it has this many partitions or fewer."""

Codes = Mapping[TopicPartition, ErrorCode]


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    body = request.body
    if field(body, "transactions") is not None:
        if not context.allows(client, ADD_PARTITIONS_AS_BROKER):
            return {"error_code": ErrorCode.cluster_authorization_failed, "results_by_transaction": []}
        return _add_batch(context, request)
    partitions = _partitions(body.v3_and_below_topics)
    if not context.allows(client, ADD_PARTITIONS_TRANSACTION, body.v3_and_below_transactional_id):
        refused = dict.fromkeys(partitions, ADD_PARTITIONS_TRANSACTION.code)
    else:
        refused = _refused(context, partitions, client)
    if refused:
        return {"results_by_topic_v3_and_below": _results(refused)}

    def answer(code: ErrorCode) -> Answer:
        shown = code_for_version(request.api, request.version, code)

        def body() -> Fields:
            return {"results_by_topic_v3_and_below": _results(dict.fromkeys(partitions, shown))}

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
        results.append({"transactional_id": asked.transactional_id, "topic_results": _results(shown)})
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add_or_verify(context: ApiContext, asked: Any, partitions: Sequence[TopicPartition]) -> Codes:
    transactional_id, producer = asked.transactional_id, producer_of(asked)
    refused = _refused(context, partitions, None)
    if refused:
        return refused
    if asked.verify_only:
        return {tp: context.transactions.verify(transactional_id, producer, tp) for tp in partitions}
    code = context.transactions.add_partitions(transactional_id, producer, frozenset(partitions), BUMPS_EPOCH)
    return dict.fromkeys(partitions, code if isinstance(code, ErrorCode) else await code)


def _partitions(topics: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _refused(
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


def _results(codes: Codes) -> Sequence[Fields]:
    rows = ((tp, {"partition_index": tp.partition, "partition_error_code": code}) for tp, code in codes.items())
    return topic_rows(rows, partitions="results_by_partition")
