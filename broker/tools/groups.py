"""List, describe and delete consumer groups, reset and delete their offsets (kafka-consumer-groups.sh).

Reached as `pykafka groups …`; the options mean what they mean there. Offsets are changed while the group has no
members only, and `reset-offsets` shows what it would do until `--execute` is given. Raises BrokerError for what the
broker refuses, UsageError for options that do not go together.
"""

from __future__ import annotations

from typing import Annotated

import typer

from broker.client.admin import Admin
from broker.client.admin_types import GroupDescription
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import BootstrapServer, ConfigFile, JsonOutput, OneGroup, administration
from broker.tools.completion import complete_groups, complete_topics
from broker.tools.group_report import (
    group_document,
    group_partitions,
    partition_document,
    print_members,
    print_partitions,
    print_states,
    zookeeper_partitions,
)
from broker.tools.offset_reset import reset_targets
from broker.tools.output import note, print_json, print_lines, print_table
from broker.tools.partitions import named_partitions
from broker.tools.usage import UsageError, one_of_options
from broker.tools.zookeeper_groups import ZooKeeperOption, zookeeper_groups

__all__ = ["app"]

app = typer.Typer(help="List, describe and delete groups; reset and delete their offsets.", no_args_is_help=True)

Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", help="May be repeated.", metavar="NAME", autocompletion=complete_groups),
]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="Every group there is.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="A topic, or some of its partitions; may be repeated.",
        metavar="NAME[:PARTITION,…]",
        autocompletion=complete_topics,
    ),
]


@app.command("list")
def list_groups(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state, such as Stable; may be repeated.")
    ] = None,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """List the groups."""
    if zookeeper is not None:
        with zookeeper_groups(zookeeper) as registry:
            names = registry.groups()
        print_json(names) if as_json else print_lines(names)
        return
    with administration(bootstrap_server, config_file) as admin:
        found = admin.list_groups(states=state or ())
    if as_json:
        print_json(
            [
                {"group": one.group_id, "protocolType": one.protocol_type, "state": one.state, "type": one.group_type}
                for one in found
            ]
        )
    else:
        rows = [(one.group_id, one.state, one.group_type, one.protocol_type) for one in found]
        print_table(["group", "state", "type", "protocol"], rows, nothing="There are no groups.")


@app.command()
def describe(
    group: Groups = None,
    all_groups: AllGroups = False,
    members: Annotated[bool, typer.Option("--members", help="Show members and what they were given.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show state, coordinator and lag of the group.")] = False,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Show offsets and lag by partition, the members, or the state; of all groups if none is named."""
    if members and state:
        raise UsageError("give one of --members and --state")
    if group and all_groups:
        raise UsageError("give one of --group and --all-groups")
    with administration(bootstrap_server, config_file) as admin:
        if zookeeper is not None:
            _describe_zookeeper(admin, zookeeper, group, as_json)
            return
        names = group or [one.group_id for one in admin.list_groups()]
        described = [_known(admin, name, named=bool(group)) for name in names]
        rows = [group_partitions(admin, one) for one in described]
    if as_json:
        print_json([group_document(one, partitions) for one, partitions in zip(described, rows, strict=True)])
        return
    if state:
        print_states(zip(described, rows, strict=True))
        return
    for number, (one, partitions) in enumerate(zip(described, rows, strict=True)):
        if number:
            typer.echo()
        if not one.active:
            note(f"Group {one.group_id} has no active members.")
        print_members(one) if members else print_partitions(one.group_id, partitions)


@app.command()
def delete(
    group: Groups = None,
    all_groups: AllGroups = False,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Delete groups without members, and their offsets."""
    one_of_options(group=group, all_groups=all_groups)
    with administration(bootstrap_server, config_file) as admin:
        failures = {}
        names = group or [one.group_id for one in admin.list_groups()]
        for name in names:
            try:
                admin.delete_group(name)
            except BrokerError as error:
                failures[name] = error
    deleted = [name for name in names if name not in failures]
    for name in () if as_json else deleted:
        typer.echo(f"Deleted group {name}.")
    if as_json:
        print_json([{"group": name, "deleted": name in deleted} for name in names])
    if failures:
        raise PykafkaError("; ".join(str(error) for error in failures.values()))


@app.command("reset-offsets")
def reset_offsets(
    group: OneGroup,
    topic: Topics = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All the group has offsets of.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To where the log begins.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To where the log ends.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To what is committed, within the log.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", help="To the first record since then.", metavar="TIME")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", help="To that long ago, such as PT1H or P7D.", metavar="DURATION")
    ] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="So many records on, or back.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it; the default.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Move the committed offsets of a group without members; only shown until --execute."""
    if dry_run and execute:
        raise UsageError("give one of --dry-run and --execute")
    one_of_options(topic=topic, all_topics=all_topics)
    values = {
        "to_earliest": to_earliest or None,
        "to_latest": to_latest or None,
        "to_current": to_current or None,
        "to_offset": to_offset,
        "to_datetime": to_datetime,
        "by_duration": by_duration,
        "shift_by": shift_by,
    }
    target = _target(values)
    with administration(bootstrap_server, config_file) as admin:
        described = admin.describe_group(group)
        if described.active:
            raise PykafkaError(
                f"group {group!r} is {described.state} and has {len(described.members)} members: its offsets can be "
                "reset only while it has none; stop its consumers first"
            )
        committed = admin.group_offsets(group)
        partitions = sorted(committed) if all_topics else named_partitions(admin, topic or ())
        if not partitions:
            raise PykafkaError(f"group {group!r} has no offsets: name its topics with --topic")
        value = None if values[target] is True else values[target]
        moved = reset_targets(admin, committed, partitions, target, value)
        if execute:
            admin.alter_group_offsets(group, moved)
    _print_moved(group, committed, moved, as_json)
    if not execute:
        note("Nothing was changed: give --execute to do it.")


@app.command("delete-offsets")
def delete_offsets(
    group: OneGroup,
    topic: Topics,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Forget a group's offsets of topics that none of its members reads."""
    with administration(bootstrap_server, config_file) as admin:
        results = admin.delete_group_offsets(group, named_partitions(admin, topic or ()))
    failed = [str(error) for error in results.values() if error is not None]
    if as_json:
        print_json([{**tp._asdict(), "deleted": error is None} for tp, error in sorted(results.items())])
    else:
        for tp, error in sorted(results.items()):
            if error is None:
                typer.echo(f"Deleted the offset of {tp.topic}-{tp.partition}.")
    if failed:
        raise PykafkaError("; ".join(failed))


def _target(values: dict[str, bool | int | str | None]) -> str:
    """Zero is a value, so this is not for `one_of_options` alone."""
    return one_of_options(**{name: None if value is None else [value] for name, value in values.items()})


def _known(admin: Admin, name: str, *, named: bool) -> GroupDescription:
    described = admin.describe_group(name)
    if named and described.state == "Dead" and not admin.group_offsets(name):
        raise BrokerError(ErrorCode.group_id_not_found, f"there is no group {name!r}; `pykafka groups list` names them")
    return described


def _describe_zookeeper(admin: Admin, connect: str, groups: list[str] | None, as_json: bool) -> None:
    documents = []
    with zookeeper_groups(connect) as registry:
        for name in groups or registry.groups():
            rows = zookeeper_partitions(admin, registry.offsets(name), registry.owners(name))
            if not rows and name not in registry.groups():
                raise PykafkaError(f"there is no group {name!r} in {connect}")
            documents.append((name, list(registry.members(name)), rows))
    if as_json:
        print_json(
            [
                {"group": name, "members": members, "partitions": [partition_document(row) for row in rows]}
                for name, members, rows in documents
            ]
        )
    for name, _, rows in () if as_json else documents:
        print_partitions(name, rows)


def _print_moved(
    group: str, before: dict[TopicPartition, int], after: dict[TopicPartition, int], as_json: bool
) -> None:
    rows = [(group, tp.topic, tp.partition, before.get(tp), offset) for tp, offset in sorted(after.items())]
    if as_json:
        names = ("group", "topic", "partition", "currentOffset", "newOffset")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(["group", "topic", "partition", "current-offset", "new-offset"], rows)
