"""Show the offsets of partitions; read, set, export and import those that a group has committed (kafka-get-offsets.sh).

With `--zookeeper` the group is one of Kafka's first consumers, which keep their offsets in ZooKeeper, as loads with
the ZooKeeper offset store do. No broker is asked then. Raises BrokerError, ConfigError.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from broker.client.admin import Admin
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import (
    JsonOutput,
    OneGroup,
    TopicsOrPartitions,
    admin_command,
    flag,
    named_partitions,
    one_of_options,
    option,
    parse_timestamp,
)
from broker.tools.output import as_time, print_lines, print_rows
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_registry import ConsumerRegistry

app = typer.Typer(
    help="Show the offsets of partitions; show and set those that a group has committed.\n\n\b\nExamples:\n"
    "  pykafka offsets list --topic flights\n"
    "  pykafka offsets get --group etl\n"
    "  pykafka offsets set --group etl --offset flights:0=42",
    no_args_is_help=True,
)

ZooKeeperOption = Annotated[
    str | None, option("Use the groups that are kept in this ZooKeeper.", "HOST:PORT[/CHROOT]", "--zookeeper")
]

_SESSION_TIMEOUT_MS = 5_000


@contextlib.contextmanager
def zookeeper_groups(connect: str) -> Iterator[ConsumerRegistry]:
    """The groups that are kept in the ZooKeeper at `connect`. Raises ConfigError, ConnectionFailed."""
    with ZooKeeper(connect, _SESSION_TIMEOUT_MS) as zk:
        yield ConsumerRegistry(zk)


@admin_command(app, "list")
def list_offsets_of_topics(
    admin: Admin,
    topic: TopicsOrPartitions = None,
    time: Annotated[
        str | None, option("earliest, latest, max-timestamp, ms since 1970, or a time (UTC).", "TIME")
    ] = None,
    isolation_level: Annotated[
        str | None, option("With read_committed, latest is before the first open transaction.", "LEVEL")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Show the first and the next offset of partitions; with --time, the offset of the first record since then.

    Without --topic: of all topics but internal ones.

    \b
    Examples:
      pykafka offsets list
      pykafka offsets list --topic flights:0,2
      pykafka offsets list --topic flights --time 2026-01-31T12:00:00
    """
    timestamp = None if time is None else parse_timestamp("--time", time)
    partitions = named_partitions(admin, topic or admin.list_topics())

    def ask(when: int) -> list[tuple[int | None, int]]:
        found = list_offsets(admin.cluster, dict.fromkeys(partitions, when), isolation_level=isolation_level)
        return [(None if one.offset < 0 else one.offset, one.timestamp) for one in found.values()]

    rows: list[tuple[object, ...]]
    if timestamp is None:
        names = ["topic", "partition", "earliest", "latest"]
        both = zip(partitions, ask(EARLIEST), ask(LATEST), strict=True)
        rows = [(*tp, first, last) for tp, (first, _), (last, _) in both]
    else:
        names = ["topic", "partition", "offset", "timestamp"]
        rows = [
            (*tp, offset, (None if ms < 0 else ms) if as_json else as_time(ms))
            for tp, (offset, ms) in zip(partitions, ask(timestamp), strict=True)
        ]
    print_rows(names, rows, as_json, nothing="There are no topics.")


@admin_command(app, "get")
def get_offsets(
    admin: Admin,
    group: OneGroup,
    export: Annotated[bool, flag("Print CSV: topic,partition,offset.", "--export")] = False,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Show the committed offsets of a group: in each partition, the next offset to read.

    \b
    Examples:
      pykafka offsets get --group etl
      pykafka offsets get --group etl --export > offsets.csv
    """
    if export and as_json:
        raise ConfigError("give one of --export and --json")
    if zookeeper is not None:
        with zookeeper_groups(zookeeper) as registry:
            offsets = registry.offsets(group)
    else:
        offsets = admin.group_offsets(group)
    if not offsets and not as_json:
        raise PykafkaError(f"group {group!r} has no offsets" + (f" in {zookeeper}" if zookeeper else ""))
    if export:
        print_lines(csv_of_offsets(offsets))
    else:
        _print(group, offsets, as_json)


@admin_command(app, "set")
def set_offsets(
    admin: Admin,
    group: OneGroup,
    offset: Annotated[
        list[str] | None, option("An offset; may be repeated.", "TOPIC:PARTITION=OFFSET", "--offset", "-o")
    ] = None,
    from_file: Annotated[Path | None, option("CSV as --export prints it: topic,partition,offset.", "FILE")] = None,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Set the committed offsets of a group without members.

    \b
    Examples:
      pykafka offsets set --group etl --offset flights:0=42 --offset flights:1=0
      pykafka offsets set --group etl --from-file offsets.csv
    """
    one_of_options(offset=offset, from_file=from_file)
    wanted = offsets_of_csv(from_file) if from_file else _parse(offset or ())
    if zookeeper is not None:
        with zookeeper_groups(zookeeper) as registry:
            members = registry.members(group)
            if members:
                raise PykafkaError(f"group {group!r} has members: {', '.join(members)}; stop them first")
            registry.set_offsets(group, wanted)
    else:
        named_partitions(admin, {f"{tp.topic}:{tp.partition}" for tp in wanted})
        admin.alter_group_offsets(group, wanted)
    _print(group, wanted, as_json)


def csv_of_offsets(offsets: Mapping[TopicPartition, int]) -> list[str]:
    """Lines `topic,partition,offset`, as `kafka-consumer-groups.sh --export` prints them for one group."""
    return [f"{tp.topic},{tp.partition},{offset}" for tp, offset in sorted(offsets.items())]


def offsets_of_csv(path: Path) -> dict[TopicPartition, int]:
    """Read what `csv_of_offsets` makes. Raises ConfigError for a file or line that cannot be read."""
    offsets: dict[TopicPartition, int] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                fields = [field.strip() for field in row]
                if not any(fields):
                    continue
                if len(fields) != 3 or not fields[1].isdecimal() or not fields[2].isdecimal():
                    raise ConfigError(f"{path}, line {number}: expected topic,partition,offset, found {','.join(row)}")
                offsets[TopicPartition(fields[0], int(fields[1]))] = int(fields[2])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not offsets:
        raise ConfigError(f"{path} holds no offsets: expected lines topic,partition,offset")
    return offsets


def _parse(texts: Iterable[str]) -> dict[TopicPartition, int]:
    offsets = {}
    for text in texts:
        topic, colon, rest = text.rpartition(":")
        partition, equals, offset = rest.partition("=")
        if not (colon and topic and equals and partition.isdecimal() and offset.isdecimal()):
            raise ConfigError(f"--offset {text}: expected TOPIC:PARTITION=OFFSET, such as flights:0=42")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def _print(group: str, offsets: Mapping[TopicPartition, int], as_json: bool) -> None:
    rows = [(group, tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())]
    print_rows(("group", "topic", "partition", "offset"), rows, as_json)
