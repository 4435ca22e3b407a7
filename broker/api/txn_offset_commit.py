"""TxnOffsetCommit: store a group's offsets as part of a producer's transaction (KIP-98).

They take effect when the transaction is committed. Its producer must have added the group to the transaction before
(AddOffsetsToTxn), otherwise the offsets would wait for an end that never comes (KIP-890).
Version notes: 2 — leader epochs; 3 — the member's generation, which fences older generations (KIP-447).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.offset_requests import asked_partitions, committed_offset, results_by_topic
from broker.api.transaction_requests import code_for_version, producer_of
from broker.coordinator.group_messages import CommitRequest
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Store the offsets of the partitions that exist. Each partition has its own result."""
    body = request.body
    known, results = asked_partitions(context, body.topics)
    if known:
        refused = _refusal(context, body)
        stored = dict.fromkeys(known, refused) if refused is not ErrorCode.none else await _store(context, body, known)
        results |= {tp: _code_for_client(code, request.version) for tp, code in stored.items()}
    return {"topics": results_by_topic(body.topics, results)}


def _refusal(context: ApiContext, body: Any) -> ErrorCode:
    if not body.group_id:
        return ErrorCode.invalid_group_id
    if not context.config.transaction_partition_verification_enable:
        return ErrorCode.none
    stored_in = TopicPartition(GROUP_OFFSETS_TOPIC, context.groups.partition_for(body.group_id))
    code = context.transactions.verify(body.transactional_id, producer_of(body), stored_in)
    return ErrorCode.coordinator_not_available if code.retriable else code


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
