"""What ShareFetch and ShareAcknowledge have in common: the member's session, and its acknowledgements (KIP-932).

An acknowledgement is answered when it is stored. Errors and their order are those of Kafka's `KafkaApis`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.api.context import LED_ELSEWHERE, ApiContext, Client, Fields, Request, outcome
from broker.api.named_topics import NO_ID, check_named, name_of
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import CurrentLeader
from broker.protocol.permissions import SHARE_ACKNOWLEDGE_GROUP, SHARE_ACKNOWLEDGE_TOPIC, Permission
from broker.protocol.topic_partition import TopicPartition
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import AcknowledgeType, acknowledgements
from broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, Asked, SessionKey

_LONGEST_MEMBER_ID: Final = 36
_FIRST_WITH_RENEW: Final = 2


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
) -> dict[Asked, BrokerError]:
    """Store the acknowledgements of a request, all partitions at once. An error with the code NONE is none."""
    renews = request.version >= _FIRST_WITH_RENEW and request.body.is_renew_ack
    may_renew = context.group_configs.of(key.group_id).share_renew_acknowledge_enable

    async def store(asked: Asked, batches: Iterable[Any]) -> BrokerError:
        try:
            said = acknowledgements(batches, AcknowledgeType.RENEW if renews else AcknowledgeType.REJECT)
            if not may_renew and any(AcknowledgeType.RENEW in one.kinds for one in said):
                text = "Renewing acquisition locks is not enabled for the group (share.renew.acknowledge.enable)."
                raise BrokerError(ErrorCode.invalid_record_state, text)
            check(context, client, need, asked)
            share = await context.share.partitions.get(SharePartitionKey(key.group_id, *asked))
            code = await share.acknowledge(key.member_id, said)
        except BrokerError as error:
            return error
        for first, last, kinds in said if code is ErrorCode.none else ():
            counts = Counter(kinds) if len(kinds) > 1 else {kinds[0]: last - first + 1}
            context.metrics.share_acknowledgements.update(counts)
        return BrokerError(code)

    batches = {asked: one.acknowledgement_batches for asked, one in named.items() if one.acknowledgement_batches}
    results = await asyncio.gather(*(store(asked, said) for asked, said in batches.items()))
    return dict(zip(batches, results, strict=True))


def response_fields(
    context: ApiContext,
    client: Client,
    group_id: str,
    partitions: Mapping[Asked, Fields],
    errors: Mapping[Asked, BrokerError],
) -> Fields:
    """The fields of both responses. `partitions` has what is said of each. Those that another broker leads come with
    their leader (KIP-951)."""
    topics: dict[uuid.UUID, list[Fields]] = {}
    endpoints = {}
    for (topic_id, number), one in partitions.items():
        leader, error = None, errors.get((topic_id, number))
        if error is not None and error.code in LED_ELSEWHERE:
            leader = context.current_leader(client, TopicPartition(name_of(context, topic_id), number))
        leader = leader or CurrentLeader(0, 0)
        if leader.host:
            address = {"host": leader.host, "port": leader.port, "rack": leader.rack}
            endpoints[leader.broker_id] = {"node_id": leader.broker_id, **address}
        led_by = {"leader_id": leader.broker_id, "leader_epoch": leader.epoch}
        topics.setdefault(topic_id, []).append({"partition_index": number, "current_leader": led_by, **one})
    return {
        "acquisition_lock_timeout": context.group_configs.of(group_id).share_record_lock_duration_ms,
        "responses": [{"topic_id": topic_id, "partitions": found} for topic_id, found in topics.items()],
        "node_endpoints": list(endpoints.values()),
    }


@serves(ApiKey.SHARE_ACKNOWLEDGE, 1, 2)
async def share_acknowledge(context: ApiContext, request: Request, client: Client) -> Fields:
    """ShareAcknowledge: a member says what became of the records that it has (KIP-932).

    Answers when the acknowledgements are stored. The final epoch releases what is left.
    Version notes: 2 — renews locks (KIP-1222).
    """
    body = request.body
    try:
        key = session_key(context, request, client, SHARE_ACKNOWLEDGE_GROUP)
        if body.share_session_epoch == INITIAL_EPOCH:
            raise BrokerError(ErrorCode.invalid_share_session_epoch, "ShareFetch opens a session")
        session = context.share.sessions.find(key, body.share_session_epoch)
    except BrokerError as error:
        return outcome(error)
    named = asked_of(body.topics)
    results = await acknowledge(context, request, client, key, SHARE_ACKNOWLEDGE_TOPIC, named)
    if body.share_session_epoch == FINAL_EPOCH:
        context.share.sessions.end(session)
    partitions = {one: outcome(result) for one, result in results.items()}
    return response_fields(context, client, key.group_id, partitions, results)
