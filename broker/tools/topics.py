"""Create, list, describe, alter and delete topics (kafka-topics.sh).

Reached as `pykafka topics …`; the options mean what they mean there. `--json` prints one JSON document for
programs. Raises BrokerError for what the broker refuses, ConfigError for a malformed option.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from broker.client.admin import Admin, NewTopic, ResourceType
from broker.client.cluster import Cluster
from broker.client.metadata import TopicMetadata, UnknownTopic
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.tools.client_options import (
    BootstrapServer,
    CommandConfig,
    JsonOutput,
    client_settings,
    parse_pairs,
)

__all__ = ["app"]

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

TopicName = Annotated[str, typer.Option("--topic", help="Name of the topic.", metavar="NAME")]
AnyTopicName = Annotated[str | None, typer.Option("--topic", help="Only this topic.", metavar="NAME")]
Configs = Annotated[
    list[str] | None, typer.Option("--config", help="Topic setting; may be repeated.", metavar="KEY=VALUE")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Do nothing when there is no such topic.")]


@app.command()
def create(
    topic: TopicName,
    partitions: Annotated[int | None, typer.Option(min=1, help="Default: num.partitions of the broker.")] = None,
    replication_factor: Annotated[int | None, typer.Option(min=1, help="Default: as the broker has it.")] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing when it is there.")] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Create a topic."""
    new = NewTopic(topic, partitions or -1, replication_factor or -1, parse_pairs(config, "--config"))
    with Cluster(client_settings(bootstrap_server, command_config)) as cluster:
        try:
            Admin(cluster).create_topics([new])
        except BrokerError as error:
            if not (if_not_exists and error.code is ErrorCode.topic_already_exists):
                raise
            typer.echo(f"Topic {topic} exists already.")
            return
    typer.echo(f"Created topic {topic}.")


@app.command("list")
def list_topics(
    topic: AnyTopicName = None,
    exclude_internal: Annotated[bool, typer.Option("--exclude-internal", help="Leave __topics out.")] = False,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """List the names of topics."""
    with Cluster(client_settings(bootstrap_server, command_config)) as cluster:
        names = [name for name in Admin(cluster).list_topics(internal=not exclude_internal) if topic in (None, name)]
    typer.echo(json.dumps(names)) if as_json else _print_lines(names)


@app.command()
def describe(
    topic: AnyTopicName = None,
    exclude_internal: Annotated[bool, typer.Option("--exclude-internal", help="Leave __topics out.")] = False,
    if_exists: IfExists = False,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Show partitions, leaders, replicas and the settings of topics."""
    with Cluster(client_settings(bootstrap_server, command_config)) as cluster:
        admin = Admin(cluster)
        try:
            found = admin.describe_topics([topic] if topic else None)
        except UnknownTopic:
            if not if_exists:
                raise
            found = {}
        wanted = [one for _, one in sorted(found.items()) if not (exclude_internal and one.internal)]
        described = [_describe(one, _own_configs(admin, one.name)) for one in wanted]
    typer.echo(json.dumps(described, indent=2)) if as_json else _print_lines(map(_as_text, described))


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[int | None, typer.Option(min=1, help="New number of partitions, a larger one.")] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="Back to the default; may be repeated.", metavar="KEY")
    ] = None,
    if_exists: IfExists = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Add partitions, change settings."""
    settings = parse_pairs(config, "--config")
    if partitions is None and not settings and not delete_config:
        raise ConfigError("nothing to alter: give --partitions, --config or --delete-config")
    with Cluster(client_settings(bootstrap_server, command_config)) as cluster:
        admin = Admin(cluster)
        try:
            admin.describe_topics([topic])
        except UnknownTopic:
            if not if_exists:
                raise
            typer.echo(f"There is no topic {topic}.")
            return
        if settings or delete_config:
            admin.alter_configs(ResourceType.TOPIC, topic, settings, delete=delete_config or ())
        if partitions is not None:
            admin.create_partitions(topic, partitions)
    typer.echo(f"Altered topic {topic}.")


@app.command()
def delete(
    topic: TopicName,
    if_exists: IfExists = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Delete a topic with all its records."""
    with Cluster(client_settings(bootstrap_server, command_config)) as cluster:
        try:
            Admin(cluster).delete_topics([topic])
        except BrokerError as error:
            if not (if_exists and error.code is ErrorCode.unknown_topic_or_partition):
                raise
            typer.echo(f"There is no topic {topic}.")
            return
    typer.echo(f"Deleted topic {topic}.")


def _own_configs(admin: Admin, topic: str) -> dict[str, str | None]:
    entries = admin.describe_configs(ResourceType.TOPIC, topic)
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.set_on_topic}


def _describe(topic: TopicMetadata, configs: dict[str, str | None]) -> dict[str, Any]:
    partitions = [
        {"partition": index, "leader": one.leader, "replicas": list(one.replicas), "isr": list(one.isr)}
        for index, one in sorted(topic.partitions.items())
    ]
    return {
        "topic": topic.name,
        "topicId": str(topic.topic_id) if topic.topic_id else None,
        "internal": topic.internal,
        "partitionCount": len(partitions),
        "replicationFactor": max((len(one.replicas) for one in topic.partitions.values()), default=0),
        "configs": configs,
        "partitions": partitions,
    }


def _as_text(topic: dict[str, Any]) -> str:
    """Kafka's layout: one line for the topic, one with a tab before it for each partition."""
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
    return "\n".join([head, *rows])


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
