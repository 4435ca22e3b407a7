"""CreateTopics, DeleteTopics and CreatePartitions. Each topic succeeds or fails alone.

Partitions count for the quota of controller mutations (KIP-599), from the version on that knows its error.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.api.config_entries import topic_entries
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.named_topics import NO_ID
from broker.api.serving import serves
from broker.cluster.topic_changes import NewTopic
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import (
    CREATE_PARTITIONS_TOPIC,
    CREATE_TOPICS_ANY,
    CREATE_TOPICS_CONFIGS,
    CREATE_TOPICS_TOPIC,
    DELETE_TOPICS_DESCRIBE,
    DELETE_TOPICS_TOPIC,
)
from broker.quotas.client_quotas import UNLIMITED_MUTATIONS, ControllerMutations

_FIRST_STRICT = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
_FIRST_WITH_DISABLED = 3

Named = tuple[str | None, uuid.UUID]


@serves(ApiKey.CREATE_TOPICS, 0, 7, changes_metadata=True)
async def create_topics(context: ApiContext, request: Request, client: Client) -> Fields:
    """CreateTopics: create topics with a partition count or a manual assignment, and their settings.

    A name that is twice in the request is refused. A count of -1 takes the broker's default (KIP-464). With
    validate_only nothing is created.
    Version notes: 5 answers with the settings in force, 6 refuses topics above the quota, 7 answers with the topic id.
    """
    names = Counter(topic.name for topic in request.body.topics)
    once = [topic for topic in request.body.topics if names[topic.name] == 1]
    mutations = context.mutations(request, client, strict_from=_FIRST_STRICT[request.api])
    results = [await _create(context, request, client, topic, mutations) for topic in once]
    for name in (name for name, times in names.items() if times > 1):
        error = BrokerError(ErrorCode.invalid_request, f"topic {name} is in the request more than once")
        results.append(_failed(name, error))
    return {"topics": results, "throttle_time": mutations.throttle_ms(context.clock.monotonic())}


async def _create(
    context: ApiContext, request: Request, client: Client, asked: Any, mutations: ControllerMutations
) -> Fields:
    validate_only = field(request.body, "validate_only", False)
    try:
        if not context.allows(client, CREATE_TOPICS_ANY, asked=False):
            context.check(client, CREATE_TOPICS_TOPIC, asked.name)
        new = NewTopic(
            asked.name,
            asked.num_partitions,
            asked.replication_factor,
            _assignment(asked),
            {c.name: c.value for c in asked.configs},
        )
        if not validate_only and mutations is not UNLIMITED_MUTATIONS:
            checked = await context.topic_changes.create(new, validate_only=True)
            mutations.record(len(checked.assignment))
        record = await context.topic_changes.create(new, validate_only=validate_only)
    except BrokerError as error:
        return _failed(asked.name, error)
    except ConfigError as error:
        return _failed(asked.name, BrokerError(ErrorCode.invalid_config, str(error)))
    if not context.allows(client, CREATE_TOPICS_CONFIGS, asked.name, asked=False):
        created = _failed(asked.name, BrokerError(ErrorCode.none))
        return {**created, "topic_id": record.topic_id, "topic_config_error_code": CREATE_TOPICS_CONFIGS.code}
    entries = topic_entries(context.configs.dynamic, record.config)
    return {
        "name": asked.name,
        **outcome(),
        "topic_id": record.topic_id,
        "num_partitions": len(record.assignment),
        "replication_factor": len(record.assignment[0]),
        "configs": [
            {
                "name": e.name,
                "value": e.value,
                "read_only": False,
                "config_source": int(e.source),
                "is_sensitive": False,
            }
            for e in entries
        ],
    }


def _assignment(asked: Any) -> Mapping[int, tuple[int, ...]]:
    assignment = {a.partition_index: tuple(a.broker_ids) for a in asked.assignments}
    if len(assignment) < len(asked.assignments):
        raise BrokerError(ErrorCode.invalid_replica_assignment, "a partition is in the assignment more than once")
    return assignment


def _failed(name: str, error: BrokerError) -> Fields:
    return {"name": name, **outcome(error), "num_partitions": -1, "replication_factor": -1}


@serves(ApiKey.DELETE_TOPICS, 0, 6, changes_metadata=True)
async def delete_topics(context: ApiContext, request: Request, client: Client) -> Fields:
    """DeleteTopics: delete topics by name, from version 6 also by topic id. Their files are deleted a little later.

    A topic that is twice in the request is refused.
    Version notes: from 3 there is TOPIC_DELETION_DISABLED; older versions get INVALID_REQUEST. 5 refuses topics above
    the quota.
    """
    topics = field(request.body, "topics")
    if topics is None:
        asked: list[Named] = [(name, NO_ID) for name in request.body.topic_names]
    else:
        asked = [(topic.name, topic.topic_id or NO_ID) for topic in topics]
    times = Counter(asked)
    mutations = context.mutations(request, client, strict_from=_FIRST_STRICT[request.api])
    responses = []
    for named in times:
        name, topic_id = named
        told = outcome()
        try:
            if not context.config.delete_topic_enable:
                disabled = request.version >= _FIRST_WITH_DISABLED
                raise BrokerError(
                    ErrorCode.topic_deletion_disabled if disabled else ErrorCode.invalid_request,
                    "delete.topic.enable is false on this broker",
                )
            if times[named] > 1:
                raise BrokerError(ErrorCode.invalid_request, "the topic is in the request more than once")
            name = _name_of(context, client, named)
            context.check(client, DELETE_TOPICS_TOPIC, name)
            known = context.topics.metadata.topics.get(name)
            if known is not None:
                mutations.record(len(known.partitions))
            topic_id = await context.topic_changes.delete(name)
        except BrokerError as error:
            told = outcome(error)
        responses.append({"name": name, "topic_id": topic_id, **told})
    return {"responses": responses, "throttle_time": mutations.throttle_ms(context.clock.monotonic())}


def _name_of(context: ApiContext, client: Client, named: Named) -> str:
    name, topic_id = named
    if name is not None:
        if topic_id != NO_ID:
            raise BrokerError(ErrorCode.invalid_request, "name a topic by its name or by its id, not by both")
        return name
    if topic_id == NO_ID:
        raise BrokerError(ErrorCode.invalid_request, "name a topic by its name or by its id")
    topic = context.topics.metadata.topic_by_id(topic_id)
    if topic is None:
        raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
    if not context.allows(client, DELETE_TOPICS_DESCRIBE, topic.name):
        raise BrokerError(DELETE_TOPICS_DESCRIBE.code, "Topic authorization failed.")  # without its name
    return topic.name


@serves(ApiKey.CREATE_PARTITIONS, 0, 3, changes_metadata=True)
async def create_partitions(context: ApiContext, request: Request, client: Client) -> Fields:
    """CreatePartitions: raise the partition count of topics (KIP-195).

    A topic that is twice in the request is refused. Version note: 3 refuses topics above the quota.
    """
    times = Counter(topic.name for topic in request.body.topics)
    mutations = context.mutations(request, client, strict_from=_FIRST_STRICT[request.api])
    results = []
    for topic in {topic.name: topic for topic in request.body.topics}.values():
        assignments = None if topic.assignments is None else [tuple(a.broker_ids) for a in topic.assignments]
        told = outcome()
        try:
            context.check(client, CREATE_PARTITIONS_TOPIC, topic.name)
            if times[topic.name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "the topic is in the request more than once")
            if not request.body.validate_only and mutations is not UNLIMITED_MUTATIONS:
                await context.topic_changes.add_partitions(topic.name, topic.count, assignments, validate_only=True)
                mutations.record(topic.count - len(context.topics.metadata.topics[topic.name].partitions))
            await context.topic_changes.add_partitions(
                topic.name, topic.count, assignments, validate_only=request.body.validate_only
            )
        except BrokerError as error:
            told = outcome(error)
        results.append({"name": topic.name, **told})
    return {"results": results, "throttle_time": mutations.throttle_ms(context.clock.monotonic())}
