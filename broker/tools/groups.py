"""List, describe and delete consumer groups; reset and delete their offsets (kafka-consumer-groups.sh).

The options of `pykafka groups …` mean what they mean in Kafka's tool. Offsets can be changed only while the group has
no members. `reset-offsets` changes nothing until `--execute` is given. With `--zookeeper` the groups are those of
Kafka's first consumers, which keep members and offsets in ZooKeeper. Raises BrokerError for what the broker refuses.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from broker.client.admin import Admin
from broker.client.admin_types import GroupDescription
from broker.client.cluster_metadata import Node
from broker.client.group_descriptions import GroupLag
from broker.client.offset_reset import ResetTarget, new_offsets, refuse_members
from broker.client.partition_offsets import EARLIEST, LATEST, offsets_at
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import (
    JsonOutput,
    OneGroup,
    TopicsOrPartitions,
    admin_command,
    complete_groups,
    flag,
    named_partitions,
    one_of_options,
    option,
    parse_time,
    with_options,
)
from broker.tools.offsets import ZooKeeperOption, csv_of_offsets, offsets_of_csv, zookeeper_groups
from broker.tools.output import document, note, print_json, print_lines, print_rows, print_view

app = typer.Typer(
    help="List, describe and delete groups; reset and delete their offsets.\n\n\b\nExamples:\n"
    "  pykafka groups list\n"
    "  pykafka groups describe --group etl\n"
    "  pykafka groups reset-offsets --group etl --topic flights --to-earliest --execute",
    no_args_is_help=True,
)

Groups = Annotated[
    list[str] | None, option("A group; may be repeated.", "NAME", "--group", "-g", autocompletion=complete_groups)
]
AllGroups = Annotated[bool, flag("All groups.", "--all-groups")]

_STATE = "group, coordinator, type, state, epoch, assignment-epoch, assignor, members, lag, unread"
_MEMBERS = (
    "group, consumer-id=memberId, instance-id=groupInstanceId, host, client-id, epoch, partitions, "
    "assignment=partitions, target-assignment=target"
)
_PARTITIONS = "group, topic, partition, current-offset, log-end-offset, lag, consumer-id=memberId, host, client-id"

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


class GroupPartition(NamedTuple):
    """One partition as its group sees it. None is what is not known, such as the end of a deleted topic."""

    tp: TopicPartition
    current_offset: int | None
    """The committed one."""
    log_end_offset: int | None
    lag: int | None
    member_id: str | None = None
    host: str | None = None
    client_id: str | None = None
    unread: int | None = None
    """The records of the log, where there is no committed offset: only auto.offset.reset says which will be read."""


@admin_command(app, "list")
def list_groups(
    admin: Admin,
    state: Annotated[
        list[str] | None, option("Only groups in this state, such as Stable; may be repeated.", "STATE")
    ] = None,
    type: Annotated[
        list[str] | None, option("Only groups of this type: classic, consumer or share; may be repeated.", "TYPE")
    ] = None,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List the groups.

    \b
    Examples:
      pykafka groups list
      pykafka groups list --state Stable --json
      pykafka groups list --type consumer
    """
    if zookeeper is not None:
        with zookeeper_groups(zookeeper) as registry:
            names = registry.groups()
        print_json(names) if as_json else print_lines(names)
        return
    found = admin.list_groups(states=state or (), types=type or ())
    rows = [
        {"group": one.group_id, "state": one.state, "type": one.group_type, "protocolType": one.protocol_type}
        for one in found
    ]
    print_view(rows, "group, state, type, protocol=protocolType", as_json, nothing="There are no groups.")


@admin_command(app)
def describe(
    admin: Admin,
    group: Groups = None,
    all_groups: AllGroups = False,
    members: Annotated[bool, flag("Show the members and their partitions.", "--members")] = False,
    state: Annotated[bool, flag("Show state, coordinator and lag of the group.", "--state")] = False,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Show offsets and lag by partition, the members, or the state. Without --group: of all groups.

    \b
    Examples:
      pykafka groups describe --group etl
      pykafka groups describe --group etl --members
      pykafka groups describe --all-groups --state
    """
    if members and state:
        raise ConfigError("give one of --members and --state")
    if group and all_groups:
        raise ConfigError("give one of --group and --all-groups")
    if zookeeper is not None:
        _describe_zookeeper(admin, zookeeper, group, as_json)
        return
    names = group or [one.group_id for one in admin.list_groups()]
    described = [_existing(admin, name) if group else admin.describe_group(name) for name in names]
    rows = [_partitions_of(admin, one) for one in described]
    documents = [_document(one, partitions) for one, partitions in zip(described, rows, strict=True)]
    if as_json or state:
        print_view(documents, _STATE, as_json, shown={"coordinator": _address, "members": len})
        return
    for number, (one, partitions, of_group) in enumerate(zip(described, rows, documents, strict=True)):
        if number:
            typer.echo()
        if not one.active:
            note(f"Group {one.group_id} has no active members.")
        if members:
            print_view(
                ({"group": one.group_id, **row} for row in of_group["members"]),
                _MEMBERS,
                shown={"partitions": len, "assignment": _assignment, "target-assignment": _assignment},
            )
        else:
            _print_partitions(one.group_id, partitions)


@admin_command(app)
def delete(admin: Admin, group: Groups = None, all_groups: AllGroups = False, as_json: JsonOutput = False) -> None:
    """Delete groups that have no members, with their offsets.

    \b
    Examples:
      pykafka groups delete --group etl
    """
    one_of_options(group=group, all_groups=all_groups)
    failures = {}
    names = group or [one.group_id for one in admin.list_groups()]
    for name in names:
        try:
            admin.delete_group(name)
        except BrokerError as error:
            failures[name] = error
    deleted = [name for name in names if name not in failures]
    if as_json:
        print_json([{"group": name, "deleted": name in deleted} for name in names])
    else:
        print_lines(f"Deleted group {name}." for name in deleted)
    if failures:
        raise PykafkaError("; ".join(str(error) for error in failures.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResetOptions:
    """The options of `pykafka groups reset-offsets`."""

    group: OneGroup
    topic: TopicsOrPartitions = None
    all_topics: Annotated[bool, flag("All topics that the group has committed offsets of.", "--all-topics")] = False
    to_earliest: Annotated[bool, flag("To the beginning of the log.", "--to-earliest")] = False
    to_latest: Annotated[bool, flag("To the end of the log.", "--to-latest")] = False
    to_current: Annotated[bool, flag("To the committed offset, within the log.", "--to-current")] = False
    to_offset: Annotated[int | None, option("To this offset.", "OFFSET", min=0)] = None
    to_datetime: Annotated[str | None, option("To the first record since this time.", "TIME")] = None
    by_duration: Annotated[str | None, option("To the first record of the last PT1H or P7D.", "DURATION")] = None
    shift_by: Annotated[int | None, option("Forward by so many offsets; back if negative.", "N")] = None
    from_file: Annotated[Path | None, option("To the offsets of a file that --export has written.", "FILE")] = None
    export: Annotated[bool, flag("Print the new offsets as CSV: topic,partition,offset.", "--export")] = False
    dry_run: Annotated[bool, flag("Only show the new offsets; the default.", "--dry-run")] = False
    execute: Annotated[bool, flag("Change the offsets.", "--execute")] = False
    as_json: JsonOutput = False

    def target(self) -> tuple[str, int]:
        """The name of the one option that says where to, and its number. Raises ConfigError."""
        if self.dry_run and self.execute:
            raise ConfigError("give one of --dry-run and --execute")
        if self.export and self.as_json:
            raise ConfigError("give one of --export and --json")
        if self.from_file is not None and (self.topic or self.all_topics):
            raise ConfigError("--from-file names the partitions itself: leave out --topic and --all-topics")
        target = one_of_options(**{name: getattr(self, name) for name in ResetTarget})
        if self.from_file is None:
            one_of_options(topic=self.topic, all_topics=self.all_topics)
        if self.to_datetime is not None:
            return target, parse_time("--to-datetime", self.to_datetime)
        if self.by_duration is not None:
            return target, time.time_ns() // 1_000_000 - _milliseconds(self.by_duration)
        return target, self.to_offset or self.shift_by or 0


@admin_command(app, "reset-offsets")
@with_options
def reset_offsets(admin: Admin, options: ResetOptions) -> None:
    """Change the committed offsets of a group without members. Without --execute, only show the new ones.

    \b
    Examples:
      pykafka groups reset-offsets --group etl --topic flights --to-earliest --execute
      pykafka groups reset-offsets --group etl --topic flights:0,2 --shift-by -100
      pykafka groups reset-offsets --group etl --all-topics --to-current --export > offsets.csv
      pykafka groups reset-offsets --group etl --from-file offsets.csv --execute
    """
    target, number = options.target()
    group = options.group
    given = offsets_of_csv(options.from_file) if options.from_file else {}
    refuse_members(admin, group)
    committed = admin.group_offsets(group)
    names = [f"{tp.topic}:{tp.partition}" for tp in given] or options.topic or ()
    partitions = sorted(committed) if options.all_topics else named_partitions(admin, names)
    if not partitions:
        raise PykafkaError(f"group {group!r} has no offsets: name its topics with --topic")
    moved = new_offsets(admin, given or committed, partitions, ResetTarget(target), number, on_bounded=_note_bounded)
    if options.execute:
        admin.alter_group_offsets(group, moved)
    if options.export:
        print_lines(csv_of_offsets(moved))
    else:
        rows = [(group, tp.topic, tp.partition, committed.get(tp), offset) for tp, offset in sorted(moved.items())]
        print_rows(("group", "topic", "partition", "currentOffset", "newOffset"), rows, options.as_json)
    if not options.execute:
        note("Nothing was changed: give --execute to change the offsets.")


@admin_command(app, "delete-offsets")
def delete_offsets(admin: Admin, group: OneGroup, topic: TopicsOrPartitions, as_json: JsonOutput = False) -> None:
    """Delete a group's committed offsets of topics that no member reads.

    \b
    Examples:
      pykafka groups delete-offsets --group etl --topic flights
      pykafka groups delete-offsets --group etl --topic flights:0,2
    """
    results = sorted(admin.delete_group_offsets(group, named_partitions(admin, topic or ())).items())
    if as_json:
        print_json([{**tp._asdict(), "deleted": error is None} for tp, error in results])
    else:
        print_lines(f"Deleted the offset of {tp}." for tp, error in results if error is None)
    if failed := [str(error) for _, error in results if error is not None]:
        raise PykafkaError("; ".join(failed))


# --- what is known of a group ---------------------------------------------------------------------------------------


def _existing(admin: Admin, name: str) -> GroupDescription:
    described = admin.describe_group(name)
    if described.state == "Dead" and not admin.group_offsets(name):
        raise BrokerError(ErrorCode.group_id_not_found, f"there is no group {name!r}; `pykafka groups list` names them")
    return described


def _partitions_of(admin: Admin, group: GroupDescription) -> list[GroupPartition]:
    """The partitions that are assigned to a member or have a committed offset."""
    owners = {
        tp: (member.member_id, member.host, member.client_id) for member in group.members for tp in member.partitions
    }
    if group.group_type != "share":
        return _with_lag(admin, admin.group_offsets(group.group_id), owners)
    shared = admin.share_group_offsets(group.group_id)
    rows = _with_lag(admin, {tp: one.start for tp, one in shared.items()}, owners)
    # unread: share.auto.offset.reset of the group decides, at the first read
    return [row._replace(lag=None if row.lag is None else shared[row.tp].lag, unread=None) for row in rows]


def _with_lag(
    admin: Admin,
    committed: Mapping[TopicPartition, int],
    owners: Mapping[TopicPartition, Sequence[str | None]],
) -> list[GroupPartition]:
    topics = admin.cluster.topics()
    wanted = sorted(committed.keys() | owners.keys())
    existing = [tp for tp in wanted if tp.topic in topics and tp.partition in topics[tp.topic].partitions]
    ends = offsets_at(admin.cluster, existing, LATEST)
    starts = offsets_at(admin.cluster, [tp for tp in existing if tp not in committed], EARLIEST)
    rows = []
    for tp in wanted:
        offset, end = committed.get(tp), ends.get(tp)
        lag = None if offset is None or end is None else max(0, end - offset)
        unread = ends[tp] - starts[tp] if tp in starts else None
        member_id, host, client_id = (*owners.get(tp, ()), None, None, None)[:3]
        rows.append(GroupPartition(tp, offset, end, lag, member_id, host, client_id, unread))
    return rows


def _sum(rows: Iterable[GroupPartition]) -> GroupLag:
    return GroupLag.of((True, row.lag) if row.current_offset is not None else (False, row.unread) for row in rows)


def _describe_zookeeper(admin: Admin, connect: str, groups: list[str] | None, as_json: bool) -> None:
    found = []
    with zookeeper_groups(connect) as registry:
        for name in groups or registry.groups():
            owners = {tp: (thread,) for tp, thread in registry.owners(name).items()}
            rows = _with_lag(admin, registry.offsets(name), owners)
            if not rows and name not in registry.groups():
                raise PykafkaError(f"there is no group {name!r} in {connect}")
            found.append((name, list(registry.members(name)), rows))
    if as_json:
        print_json(
            [{"group": name, "members": ids, "partitions": list(map(document, rows))} for name, ids, rows in found]
        )
        return
    for name, _, rows in found:
        _print_partitions(name, rows)


def _document(group: GroupDescription, rows: list[GroupPartition]) -> dict[str, Any]:
    behind = _sum(rows)
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "epoch": _known(group.epoch),
        "assignmentEpoch": _known(group.assignment_epoch),
        "protocolType": group.protocol_type,
        "assignor": group.protocol,
        "coordinator": group.coordinator._asdict(),
        "lag": behind.lag,
        "unread": behind.unread,
        "members": [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.group_instance_id,
                "clientId": member.client_id,
                "host": member.host,
                "protocol": "classic" if member.classic else group.group_type,
                "epoch": _known(member.epoch),
                "subscribedTopics": list(member.topics),
                "subscribedPattern": member.regex,
                "partitions": [tp._asdict() for tp in member.partitions],
                "target": None if member.target is None else [tp._asdict() for tp in member.target],
            }
            for member in group.members
        ],
        "partitions": [document(row) for row in rows],
    }


def _print_partitions(group: str, rows: Sequence[GroupPartition]) -> None:
    print_view(({"group": group, **document(row)} for row in rows), _PARTITIONS)
    without = sum(row.current_offset is None for row in rows)
    if without:
        note(
            f"{without} of {len(rows)} partitions of {group} have no committed offset: their lag is not known"
            + (f", and their logs hold {unread:,} records." if (unread := _sum(rows).unread) else ".")
        )


def _address(node: Mapping[str, Any]) -> str:
    return f"{Node(**node).address} ({node['id']})"


def _known(epoch: int) -> int | None:
    """None for the epoch of a classic group."""
    return epoch if epoch >= 0 else None


def _assignment(partitions: Iterable[Mapping[str, Any]] | None) -> str:
    """`flights(0,1), weather(2)`."""
    topics: dict[str, list[str]] = {}
    for tp in partitions or ():
        topics.setdefault(tp["topic"], []).append(str(tp["partition"]))
    return ", ".join(f"{topic}({','.join(indexes)})" for topic, indexes in topics.items())


# --- where offsets are reset to -------------------------------------------------------------------------------------


def _note_bounded(tp: TopicPartition, wanted: int, bounded: int, log: tuple[int, int]) -> None:
    note(f"pykafka: {tp} has offsets {log[0]} to {log[1]}: {bounded} instead of {wanted}")


def _milliseconds(duration: str) -> int:
    match = _DURATION.fullmatch(duration)
    if match is None or not any(match.groups()):
        raise ConfigError(f"--by-duration {duration}: expected a duration such as PT1H30M or P7D")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
