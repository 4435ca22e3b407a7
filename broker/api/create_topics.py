"""CreateTopics: create topics with a partition count or a manual assignment, and their settings.

Behaviour: each topic succeeds or fails alone. A count of -1 takes the broker's default (KIP-464). With validate_only
nothing is created. Partitions count for the quota of controller mutations (KIP-599). Version notes: 5 answers with the
settings in force, 6 refuses topics above the quota, 7 answers with the topic id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.api.config_entries import topic_entries
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.cluster.topic_changes import NewTopic
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import CREATE_TOPICS_ANY, CREATE_TOPICS_CONFIGS, CREATE_TOPICS_TOPIC
from broker.quotas.client_quotas import UNLIMITED_MUTATIONS, ControllerMutations

_FIRST_STRICT = 6


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Create each topic. A name that is twice in the request is refused."""
    names = Counter(topic.name for topic in request.body.topics)
    once = [topic for topic in request.body.topics if names[topic.name] == 1]
    mutations = context.mutations(request, client, strict_from=_FIRST_STRICT)
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
