"""Where partitions begin, end and stood at a time; what groups have committed, read and set (kafka-get-offsets.sh).

Reached as `pykafka offsets …`. With `--zookeeper` the group is one of the early generation, which keeps its offsets
there, as loads with the ZooKeeper offset store do; no broker is asked then. Raises BrokerError, UsageError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import BootstrapServer, ConfigFile, JsonOutput, OneGroup, administration
from broker.tools.completion import complete_topics
from broker.tools.output import as_time, print_json, print_table
from broker.tools.partitions import named_partitions, parse_timestamp
from broker.tools.usage import UsageError
from broker.tools.zookeeper_groups import ZooKeeperOption, zookeeper_groups

__all__ = ["app"]

app = typer.Typer(
    help="Show where partitions begin, end and stood at a time; show and set what groups committed.",
    no_args_is_help=True,
)

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="A topic, or some of its partitions; may be repeated. Default: all but internal ones.",
        metavar="NAME[:PARTITION,…]",
        autocompletion=complete_topics,
    ),
]


@app.command("list")
def list_offsets_of_topics(
    topic: Topics = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="earliest, latest, max-timestamp, ms since 1970, or a time (UTC).", metavar="TIME"),
    ] = None,
    isolation_level: Annotated[
        str | None, typer.Option(help="read_committed: latest is where open transactions begin.")
    ] = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Show where partitions begin and end; with --time, the first record since then."""
    timestamp = None if time is None else parse_timestamp("--time", time)
    with administration(bootstrap_server, config_file) as admin:
        partitions = named_partitions(admin, topic or admin.list_topics())

        def ask(when: int) -> list[tuple[int | None, int]]:
            found = list_offsets(admin.cluster, dict.fromkeys(partitions, when), isolation_level=isolation_level)
            return [(None if one.offset < 0 else one.offset, one.timestamp) for one in found.values()]

        if timestamp is None:
            names = ["topic", "partition", "earliest", "latest"]
            rows: list[tuple[object, ...]] = [
                (*tp, first, last)
                for tp, (first, _), (last, _) in zip(partitions, ask(EARLIEST), ask(LATEST), strict=True)
            ]
        else:
            names = ["topic", "partition", "offset", "timestamp"]
            rows = [
                (*tp, offset, (None if ms < 0 else ms) if as_json else as_time(ms))
                for tp, (offset, ms) in zip(partitions, ask(timestamp), strict=True)
            ]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows, nothing="There are no topics.")


@app.command("get")
def get_offsets(
    group: OneGroup,
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Show what a group has committed: by partition, the next offset it will read."""
    if zookeeper is not None:
        with zookeeper_groups(zookeeper) as registry:
            offsets = registry.offsets(group)
    else:
        with administration(bootstrap_server, config_file) as admin:
            offsets = admin.group_offsets(group)
    if not offsets and not as_json:
        raise PykafkaError(f"group {group!r} has no offsets" + (f" in {zookeeper}" if zookeeper else ""))
    _print(group, offsets, as_json)


@app.command("set")
def set_offsets(
    group: OneGroup,
    offset: Annotated[
        list[str], typer.Option("--offset", "-o", help="May be repeated.", metavar="TOPIC:PARTITION=OFFSET")
    ],
    zookeeper: ZooKeeperOption = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Set what a group without members has committed."""
    wanted = _parse(offset)
    if zookeeper is not None:
        with zookeeper_groups(zookeeper) as registry:
            members = registry.members(group)
            if members:
                raise PykafkaError(f"group {group!r} has members: {', '.join(members)}; stop them first")
            registry.set_offsets(group, wanted)
    else:
        with administration(bootstrap_server, config_file) as admin:
            named_partitions(admin, {f"{tp.topic}:{tp.partition}" for tp in wanted})
            admin.alter_group_offsets(group, wanted)
    _print(group, wanted, as_json)


def _parse(texts: Iterable[str]) -> dict[TopicPartition, int]:
    offsets = {}
    for text in texts:
        topic, colon, rest = text.rpartition(":")
        partition, equals, offset = rest.partition("=")
        if not (colon and topic and equals and partition.isdecimal() and offset.isdecimal()):
            raise UsageError(f"--offset {text}: expected TOPIC:PARTITION=OFFSET, such as flights:0=42")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def _print(group: str, offsets: Mapping[TopicPartition, int], as_json: bool) -> None:
    rows = [(group, tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())]
    names = ("group", "topic", "partition", "offset")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows)
