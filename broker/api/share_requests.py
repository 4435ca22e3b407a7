"""What ShareFetch and ShareAcknowledge have in common: the member's session, and its acknowledgements (KIP-932).

An acknowledgement is answered when it is stored. Errors and their order are those of Kafka's `KafkaApis`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.api.context import LED_ELSEWHERE, ApiContext, Client, Fields, Request
from broker.api.named_topics import NO_ID, check_named, name_of
from broker.errors import BrokerError, ErrorCode
from broker.protocol.fetch_response import CurrentLeader
from broker.protocol.permissions import Permission
from broker.protocol.topic_partition import TopicPartition
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import AcknowledgementBatch, AcknowledgeType
from broker.share.share_sessions import Asked, SessionKey

_LONGEST_MEMBER_ID: Final = 36
_FIRST_WITH_RENEW: Final = 2


class Result(NamedTuple):
    """How one partition of a request has fared."""

    error: ErrorCode = ErrorCode.none
    error_message: str | None = None


def session_key(context: ApiContext, request: Request, client: Client, need: Permission) -> SessionKey:
    """Whose request it is. Raises BrokerError if the ids are invalid, or the client lacks the right on the group."""
    group_id, member_id = request.body.group_id, request.body.member_id
    if group_id is None:
        raise BrokerError(ErrorCode.invalid_request, "Invalid group id in the request.")
    context.check(client, need, group_id)
    if not member_id or len(member_id) > _LONGEST_MEMBER_ID:
        raise BrokerError(ErrorCode.invalid_request, "Invalid member id in the request.")
    return SessionKey(group_id, member_id)


def check(context: ApiContext, client: Client, need: Permission, asked: Asked) -> None:
    """Raises BrokerError if a partition that a request names does not exist, or its client lacks the right on it."""
    name = name_of(context, asked[0])
    check_named(context, client, need, name, asked[0])
    if context.topics.metadata.partition(TopicPartition(name, asked[1])) is None:
        raise BrokerError(ErrorCode.unknown_topic_or_partition)


def asked_of(topics: Iterable[Any]) -> dict[Asked, Any]:
    """The partitions that a request names; a later one of the same name counts."""
    return {(topic.topic_id or NO_ID, one.partition_index): one for topic in topics for one in topic.partitions}


async def acknowledge(
    context: ApiContext, request: Request, client: Client, key: SessionKey, need: Permission, named: Mapping[Asked, Any]
) -> dict[Asked, Result]:
    """Store the acknowledgements of a request, all partitions at once."""
    may_renew = context.group_configs.of(key.group_id).share_renew_acknowledge_enable
    with_batches = [(asked, one.acknowledgement_batches) for asked, one in named.items()]

    async def store(asked: Asked, batches: Sequence[Any]) -> Result:
        try:
            checked = _checked(batches, request)
            if not may_renew and any(AcknowledgeType.RENEW in one.acknowledge_types for one in checked):
                text = "Renewing acquisition locks is not enabled for the group (share.renew.acknowledge.enable)."
                raise BrokerError(ErrorCode.invalid_record_state, text)
            check(context, client, need, asked)
            partition = await context.share.partitions.get(SharePartitionKey(key.group_id, *asked))
            code = await partition.acknowledge(key.member_id, checked)
        except BrokerError as error:
            return Result(error.code, error.message or None)
        if code is ErrorCode.none:
            for one in checked:
                types = one.acknowledge_types
                counts = Counter(types) if len(types) > 1 else {types[0]: one.last_offset - one.first_offset + 1}
                context.metrics.share_acknowledgements.update(counts)
        return Result(code)

    waiting: list[Awaitable[Result]] = [store(asked, batches) for asked, batches in with_batches if batches]
    results = await asyncio.gather(*waiting)
    return dict(zip((asked for asked, batches in with_batches if batches), results, strict=True))


def _checked(batches: Sequence[Any], request: Request) -> list[AcknowledgementBatch]:
    """Raises BrokerError `invalid_request`."""
    may_renew = request.version >= _FIRST_WITH_RENEW and request.body.is_renew_ack
    largest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    end, checked = -1, []
    for one in batches:
        types, first, last = one.acknowledge_types, one.first_offset, one.last_offset
        wrong = first > last or first < end or not types or (len(types) > 1 and len(types) != last - first + 1)
        if wrong or not 0 <= min(types) <= max(types) <= largest:
            raise BrokerError(ErrorCode.invalid_request, f"the acknowledgement of [{first}, {last}] is not valid")
        checked.append(AcknowledgementBatch(first, last, types))
        end = last
    return checked


def leader_fields(context: ApiContext, client: Client, results: Mapping[Asked, Result]) -> dict[Asked, CurrentLeader]:
    """The leaders of the partitions that have another one than this broker (KIP-951)."""
    leaders = {}
    for asked, result in results.items():
        topic = context.topics.metadata.topic_by_id(asked[0]) if result.error in LED_ELSEWHERE else None
        if topic is not None:
            leader = context.current_leader(client, TopicPartition(topic.name, asked[1]))
            if leader is not None:
                leaders[asked] = leader
    return leaders


def response_fields(
    context: ApiContext,
    group_id: str,
    partitions: Mapping[Asked, Fields],
    leaders: Mapping[Asked, CurrentLeader],
) -> Fields:
    """The fields of both responses. `partitions` has what is said of each."""
    topics: dict[uuid.UUID, list[Fields]] = {}
    for (topic_id, number), one in partitions.items():
        leader = leaders.get((topic_id, number), CurrentLeader(0, 0))
        led_by = {"leader_id": leader.broker_id, "leader_epoch": leader.epoch}
        topics.setdefault(topic_id, []).append({"partition_index": number, "current_leader": led_by, **one})
    endpoints = {one.broker_id: one for one in leaders.values() if one.host}
    return {
        "acquisition_lock_timeout": context.group_configs.of(group_id).share_record_lock_duration_ms,
        "responses": [{"topic_id": topic_id, "partitions": found} for topic_id, found in topics.items()],
        "node_endpoints": [
            {"node_id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack}
            for one in endpoints.values()
        ],
    }


def refused(error: BrokerError) -> Fields:
    """The response to a request that is refused as a whole."""
    return {"error_code": error.code, "error_message": error.message or None}
