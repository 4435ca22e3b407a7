"""Create, list, describe, alter, empty, move and delete topics (kafka-topics.sh, kafka-delete-records.sh,
kafka-reassign-partitions.sh).

The options of `pykafka topics …` mean what they mean in Kafka's tools. Raises BrokerError for what the broker refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from broker.client.admin import Admin, NewTopic, ResourceType
from broker.client.admin_types import HIGH_WATERMARK, PartitionReassignment
from broker.client.cluster_metadata import PartitionMetadata, TopicMetadata, UnknownTopic
from broker.cluster.assignment import assign_replicas, with_replication_factor
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.described_config import ConfigSource
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import (
    AnyTopic,
    CommandConfig,
    JsonOutput,
    OneTopic,
    admin_command,
    flag,
    option,
    parse_pairs,
)
from broker.tools.output import counted, print_json, print_lines, print_rows, report

WAIT_S = 0.2

app = typer.Typer(
    help="Create, list, describe, alter, empty, move and delete topics.\n\n\b\nExamples:\n"
    "  pykafka topics create --topic flights --partitions 4\n"
    "  pykafka topics list\n"
    "  pykafka topics describe --topic flights",
    no_args_is_help=True,
)

Configs = Annotated[list[str] | None, option("Topic setting; may be repeated.", "KEY=VALUE", "--config")]
ExcludeInternal = Annotated[bool, flag("Leave out internal topics.", "--exclude-internal")]
UnderReplicated = Annotated[
    bool,
    flag(
        "Only with partitions whose ISR lacks a replica, or that have no leader.",
        "--under-replicated",
        "--under-replicated-partitions",
    ),
]
IfExists = Annotated[bool, flag("Do nothing if there is no such topic.", "--if-exists")]


@admin_command(app, config=CommandConfig)
def create(
    admin: Admin,
    topic: OneTopic,
    partitions: Annotated[int | None, option("Default: num.partitions of the broker.", "N", min=1)] = None,
    replication_factor: Annotated[
        int | None, option("Default: default.replication.factor of the broker.", "N", min=1)
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, flag("Do nothing if the topic exists.", "--if-not-exists")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Create a topic.

    \b
    Examples:
      pykafka topics create --topic flights --partitions 4
      pykafka topics create --topic flights --config retention.ms=3600000 --if-not-exists
    """
    new = NewTopic(topic, partitions or -1, replication_factor or -1, parse_pairs(config, "--config"))
    created = _tried(lambda: admin.create_topics([new]), if_not_exists and ErrorCode.topic_already_exists)
    message = f"Created topic {topic}." if created else f"Topic {topic} exists already."
    report(as_json, message, {"topic": topic, "created": created})


@admin_command(app, "list")
def list_topics(
    admin: Admin,
    topic: AnyTopic = None,
    exclude_internal: ExcludeInternal = False,
    only_under_replicated: UnderReplicated = False,
    as_json: JsonOutput = False,
) -> None:
    """List the names of topics.

    \b
    Examples:
      pykafka topics list --exclude-internal
      pykafka topics list --under-replicated
    """
    found = [one for name, one in sorted(admin.describe_topics().items()) if topic in (None, name)]
    names = [
        one.name
        for one in found
        if not (exclude_internal and one.internal) and (under_replicated(one) or not only_under_replicated)
    ]
    print_json(names) if as_json else print_lines(names)


@admin_command(app)
def describe(
    admin: Admin,
    topic: AnyTopic = None,
    exclude_internal: ExcludeInternal = False,
    only_under_replicated: UnderReplicated = False,
    if_exists: IfExists = False,
    as_json: JsonOutput = False,
) -> None:
    """Show partitions, leaders, replicas and the settings of topics.

    \b
    Examples:
      pykafka topics describe --topic flights
      pykafka topics describe --under-replicated
      pykafka topics describe --json
    """
    try:
        found = admin.describe_topics([topic] if topic else None)
    except UnknownTopic:
        if not if_exists:
            raise
        found = {}
    wanted = [one for _, one in sorted(found.items()) if not (exclude_internal and one.internal)]
    shown = [(one, under_replicated(one) if only_under_replicated else one.partitions) for one in wanted]
    described = [
        _describe(one, partitions, _own_configs(admin, one.name))
        for one, partitions in shown
        if partitions or not only_under_replicated
    ]
    print_json(described) if as_json else print_lines(line for one in described for line in _as_lines(one))


@admin_command(app, config=CommandConfig)
def alter(
    admin: Admin,
    topic: OneTopic,
    partitions: Annotated[int | None, option("New number of partitions; it can only grow.", "N", min=1)] = None,
    config: Configs = None,
    delete_config: Annotated[list[str] | None, option("Reset to the default; may be repeated.", "KEY")] = None,
    if_exists: IfExists = False,
    as_json: JsonOutput = False,
) -> None:
    """Add partitions, change settings.

    \b
    Examples:
      pykafka topics alter --topic flights --partitions 8
      pykafka topics alter --topic flights --config retention.ms=60000 --delete-config segment.bytes
    """
    settings = parse_pairs(config, "--config")
    if partitions is None and not settings and not delete_config:
        raise ConfigError("nothing to alter: give --partitions, --config or --delete-config")
    exists = _tried(lambda: admin.describe_topics([topic]), if_exists and ErrorCode.unknown_topic_or_partition)
    if exists and (settings or delete_config):
        admin.alter_configs(ResourceType.TOPIC, topic, settings, delete=delete_config or ())
    if exists and partitions is not None:
        admin.create_partitions(topic, partitions)
    message = f"Altered topic {topic}." if exists else f"There is no topic {topic}."
    report(as_json, message, {"topic": topic, "altered": exists})


@admin_command(app)
def delete(admin: Admin, topic: OneTopic, if_exists: IfExists = False, as_json: JsonOutput = False) -> None:
    """Delete a topic with all its records.

    \b
    Examples:
      pykafka topics delete --topic flights --if-exists
    """
    deleted = _tried(lambda: admin.delete_topics([topic]), if_exists and ErrorCode.unknown_topic_or_partition)
    message = f"Deleted topic {topic}." if deleted else f"There is no topic {topic}."
    report(as_json, message, {"topic": topic, "deleted": deleted})


@admin_command(app, "delete-records")
def delete_records(
    admin: Admin,
    topic: OneTopic,
    before: Annotated[str, option("An offset, or `latest` for all.", "OFFSET")],
    partition: Annotated[
        list[int] | None, option("A partition; may be repeated. Default: all.", "N", "--partition", "-p", min=0)
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Delete the oldest records of partitions, those before an offset.

    \b
    Examples:
      pykafka topics delete-records --topic flights --partition 0 --before 1000
      pykafka topics delete-records --topic flights --before latest
    """
    if before != "latest" and not before.isdecimal():
        raise ConfigError(f"--before {before}: expected an offset, or latest")
    offset = HIGH_WATERMARK if before == "latest" else int(before)
    partitions = partition or list(admin.describe_topics([topic])[topic].partitions)
    starts = admin.delete_records({TopicPartition(topic, index): offset for index in partitions})
    print_rows(("topic", "partition", "logStartOffset"), [(*tp, start) for tp, start in starts.items()], as_json)


@admin_command(app)
def reassign(
    admin: Admin,
    topic: AnyTopic = None,
    brokers: Annotated[str | None, option("Spread the replicas over these brokers anew.", "ID,ID,…")] = None,
    replication_factor: Annotated[
        int | None, option("Replicas of each partition; without --brokers few move.", "N", min=1)
    ] = None,
    cancel: Annotated[bool, flag("Cancel what runs.", "--cancel")] = False,
    wait: Annotated[bool, flag("Return when all replicas are in place.", "--wait")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Move replicas to other brokers, or change their number; with neither, list the reassignments that run.

    \b
    Examples:
      pykafka topics reassign --topic flights --replication-factor 3 --wait
      pykafka topics reassign --topic flights --brokers 1,2,4
      pykafka topics reassign
    """
    if cancel:
        admin.alter_partition_reassignments(dict.fromkeys(_reassigned(admin, topic)))
    elif brokers or replication_factor:
        if topic is None:
            raise ConfigError("which topic? give --topic")
        admin.alter_partition_reassignments(_assignment(admin, topic, brokers, replication_factor))
    while (chosen := _reassigned(admin, topic)) and wait:
        time.sleep(WAIT_S)
    rows = [(*tp, *map(_ids, one)) for tp, one in sorted(chosen.items())]
    nothing = "All replicas are in place." if brokers or replication_factor else "No reassignment runs."
    print_rows(("topic", "partition", "replicas", "adding", "removing"), rows, as_json, nothing=nothing)


def _reassigned(admin: Admin, topic: str | None) -> dict[TopicPartition, PartitionReassignment]:
    running = admin.list_partition_reassignments()
    return {tp: one for tp, one in running.items() if topic in (None, tp.topic)}


def _assignment(
    admin: Admin, topic: str, brokers: str | None, factor: int | None
) -> dict[TopicPartition, tuple[int, ...]]:
    partitions = admin.describe_topics([topic])[topic].partitions
    now = {index: one.replicas for index, one in partitions.items()}
    racks = {node.id: node.rack for node in admin.cluster.brokers()}
    if brokers is None:
        wanted = with_replication_factor(now, factor or 1, racks)
    else:
        try:
            ids = [int(text) for text in brokers.split(",")]
        except ValueError:
            raise ConfigError(f"--brokers {brokers}: expected ids of brokers, such as 1,2,3") from None
        factor = factor or len(now[0])
        if len(set(ids)) < factor:
            raise ConfigError(
                f"--brokers {brokers}: {counted(factor, 'replica')} need as many brokers; name more, or give "
                f"--replication-factor {len(set(ids))}"
            )
        named = {broker_id: racks.get(broker_id) for broker_id in ids}
        wanted = assign_replicas(ids, len(now), factor, racks=named)
    return {TopicPartition(topic, index): ids for index, ids in wanted.items()}


def _tried(action: Callable[[], object], allowed: ErrorCode | bool) -> bool:
    """Whether `action` was done: False if it failed with the error that is allowed. `allowed=False` allows none."""
    try:
        action()
    except BrokerError as error:
        if error.code is not allowed:
            raise
        return False
    return True


def under_replicated(topic: TopicMetadata) -> dict[int, PartitionMetadata]:
    """The partitions that have no leader, or fewer replicas in sync than replicas."""
    return {index: one for index, one in topic.partitions.items() if one.leader < 0 or len(one.isr) < len(one.replicas)}


def _own_configs(admin: Admin, topic: str) -> dict[str, str | None]:
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    entries = admin.describe_configs(ResourceType.TOPIC, topic)
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source is own}


def _describe(
    topic: TopicMetadata, partitions: Mapping[int, PartitionMetadata], configs: dict[str, str | None]
) -> dict[str, Any]:
    """The whole topic's counts, with those of its partitions that are shown."""
    return {
        "topic": topic.name,
        "topicId": str(topic.topic_id) if topic.topic_id else None,
        "internal": topic.internal,
        "partitionCount": len(topic.partitions),
        "replicationFactor": max((len(one.replicas) for one in topic.partitions.values()), default=0),
        "configs": configs,
        "partitions": [
            {"partition": index, "leader": one.leader, "replicas": list(one.replicas), "isr": list(one.isr)}
            for index, one in sorted(partitions.items())
        ],
    }


def _as_lines(topic: dict[str, Any]) -> list[str]:
    """Kafka's layout: a line for the topic, then an indented line for each partition."""
    configs = ",".join(f"{key}={value}" for key, value in topic["configs"].items())
    head = (
        f"Topic: {topic['topic']}\tTopicId: {topic['topicId']}\tPartitionCount: {topic['partitionCount']}"
        f"\tReplicationFactor: {topic['replicationFactor']}\tConfigs: {configs}"
    )
    rows = (
        f"\tTopic: {topic['topic']}\tPartition: {one['partition']}\tLeader: {one['leader']}"
        f"\tReplicas: {_ids(one['replicas'])}\tIsr: {_ids(one['isr'])}"
        for one in topic["partitions"]
    )
    return [head, *rows]


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))
