"""TxnOffsetCommit: store a group's offsets as part of a producer's transaction (KIP-98).

They take effect when the transaction is committed. Its producer must have added the group to the transaction before
(AddOffsetsToTxn), otherwise the offsets would wait for an end that never comes (KIP-890).
Version notes: 2 — leader epochs; 3 — the member's generation, which fences older generations (KIP-447); 5 — the group's
coordinator adds the group to the transaction, which may begin it (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.offset_requests import asked_partitions, committed_offset, refused_partitions, results_by_topic
from broker.api.transaction_requests import code_for_version, producer_of
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import COMMIT_TRANSACTION, COMMIT_TRANSACTION_GROUP, COMMIT_TRANSACTION_TOPIC
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition

_FIRST_THAT_ADDS = 5


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Store the offsets of the partitions that exist. Each partition has its own result."""
    body = request.body
    for need, name in ((COMMIT_TRANSACTION, body.transactional_id), (COMMIT_TRANSACTION_GROUP, body.group_id)):
        if not context.allows(client, need, name):
            return {"topics": results_by_topic(body.topics, refused_partitions(body.topics, need.code))}
    known, results = asked_partitions(context, client, COMMIT_TRANSACTION_TOPIC, body.topics)
    if known:
        refused = await _refusal(context, body, adds=request.version >= _FIRST_THAT_ADDS)
        stored = dict.fromkeys(known, refused) if refused is not ErrorCode.none else await _store(context, body, known)
        results |= {tp: _code_for_client(code, request.version) for tp, code in stored.items()}
    return {"topics": results_by_topic(body.topics, results)}


async def _refusal(context: ApiContext, body: Any, *, adds: bool) -> ErrorCode:
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
        code = await _asked(context, body.transactional_id, producer, stored_in, adds=adds)
    if code is ErrorCode.network_exception:
        return ErrorCode.coordinator_load_in_progress  # the client tries again here: the group has not moved
    if adds and code is ErrorCode.concurrent_transactions:
        return code
    return ErrorCode.coordinator_not_available if code.retriable else code


async def _asked(
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


async def _store(
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
