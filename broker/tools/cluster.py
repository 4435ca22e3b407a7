"""`pykafka cluster`: run a cluster on this machine; show the brokers of a cluster, its controller and listeners.

`describe` asks each broker itself, for its listeners. So it also finds out which brokers answer: as in Kafka, a broker
that was killed stays in the cluster's metadata until its ZooKeeper session ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node, PartitionMetadata
from broker.embedded import EmbeddedCluster
from broker.errors import BrokerError, ConfigError, ConnectionFailed, RequestTimedOut
from broker.tools.client_options import JsonOutput, admin_command, flag, impatient, option, parse_pairs
from broker.tools.controller_epoch import find_controller
from broker.tools.interrupt import Interrupt
from broker.tools.output import counted, note, print_json, print_lines, print_table, print_view, report
from broker.tools.restart_requests import ask_to_restart, exclusively, serve_restarts
from broker.tools.topics import under_replicated

app = typer.Typer(
    help="Run a cluster on this machine; show the brokers of a cluster.\n\n\b\nExamples:\n"
    "  pykafka cluster start --brokers 3\n  pykafka cluster restart-broker 2\n  pykafka cluster describe",
    no_args_is_help=True,
)

_LOOK_EVERY_S = 0.2
_NAMES_SHOWN = 10
_ASKED_AT_ONCE = 16
_RESTART_S = 90.0
"""How long a broker has to end cleanly and to come up again."""
_SETTINGS = ("advertised.listeners", "listeners", "zookeeper.connect", "standalone")


Directory = Annotated[Path, option("Directory of the data and logs of all brokers.", "DIR", "--dir")]
DIRECTORY = Path("data/cluster")


@app.command()
def start(
    brokers: Annotated[int, option("Number of brokers.", "N", min=1, max=100)] = 3,
    directory: Directory = DIRECTORY,
    override: Annotated[list[str] | None, option("Setting of all brokers; may be repeated.", "KEY=VALUE")] = None,
    ui: Annotated[bool, flag("Show the cluster in the browser, too.", "--ui")] = False,
) -> None:
    """Run brokers 1 to N and a ZooKeeper until Ctrl-C or SIGTERM. They take free ports, which are printed.

    A broker that was killed, to see what happens, is started again by `pykafka cluster restart-broker`.

    \b
    Examples:
      pykafka cluster start
      pykafka cluster start --brokers 5 --dir /tmp/cluster --override num.partitions=6
    """
    interrupt = Interrupt()
    kafka = EmbeddedCluster(brokers, directory, parse_pairs(override, "--override"), ui=ui)
    with contextlib.ExitStack() as stack:
        stack.enter_context(exclusively(directory))
        note(f"Starting {counted(brokers, 'broker')}{' and a ZooKeeper' if kafka.zookeeper_server else ''}.")
        stack.enter_context(kafka)
        print_lines([f"bootstrap servers: {kafka.bootstrap}", f"ZooKeeper: {kafka.zookeeper}"])
        if kafka.ui is not None:
            print_lines([f"console: {kafka.ui.url}"])
        head = ["broker", "address", "process", "log"]
        print_table(head, [(id, one.bootstrap, one.pid, one.log_file) for id, one in kafka.brokers.items()])
        again = "pykafka cluster restart-broker {}" + ("" if directory == DIRECTORY else f" --dir {directory}")
        note(f"To start a broker again: {again.format('ID')}")
        ended: set[int] = set()
        while not interrupt.came_within(_LOOK_EVERY_S):
            for id, one in kafka.brokers.items():
                if not one.running and id not in ended:
                    ended.add(id)
                    note(f"broker {id} has ended by itself; see {one.log_file}; start it again: {again.format(id)}")
            serve_restarts(directory, partial(_restart, kafka, ended))
            if kafka.zookeeper_server is not None and not kafka.zookeeper_server.running:
                note("ZooKeeper has ended by itself; starting it again")
                kafka.zookeeper_server.start()


def _restart(kafka: EmbeddedCluster, ended: set[int], id: int) -> str:
    one = kafka.brokers.get(id)
    if one is None:
        raise ConfigError(f"there is no broker {id}; the brokers are {', '.join(map(str, kafka.brokers))}")
    one.restart()
    ended.discard(id)
    said = f"broker {id} listens on {one.bootstrap} again, as process {one.pid}"
    note(said)
    return said


@app.command()
def restart_broker(
    id: Annotated[int, typer.Argument(help="Id of the broker, as `cluster start` prints it.", metavar="ID")],
    directory: Directory = DIRECTORY,
    as_json: JsonOutput = False,
) -> None:
    """Start a broker of a running `pykafka cluster start` again, on its port and data; stop it first if it runs.

    \b
    Examples:
      pykafka cluster restart-broker 2
      pykafka cluster restart-broker 2 --dir /tmp/cluster
    """
    report(as_json, ask_to_restart(directory, id, _RESTART_S), {"broker": id, "restarted": True})


@admin_command(app)
def describe(admin: Admin, as_json: JsonOutput = False) -> None:
    """Show the controller, each broker with its partitions, and the partitions that lack a replica or a leader.

    The epoch of the controller grows with each election of one. It is read from the ZooKeeper that the brokers use.

    A broker that `does not answer` is registered, but this command could not reach it: a broker that was killed stays
    registered until its ZooKeeper session ends. One that is `not registered` has replicas and is down.
    `out of sync` counts the replicas of a broker that are not in the ISR.

    \b
    Examples:
      pykafka cluster describe
      pykafka cluster describe -b broker1,broker2:9093 --json
    """
    document = _document(admin)
    if as_json:
        print_json(document)
        return
    controller, epoch = document["controller"], document["controllerEpoch"]
    problem = document["controllerEpochProblem"]
    print_lines(
        [
            f"Cluster {document['clusterId']}: {counted(document['topics'], 'topic')}, "
            + counted(document["partitions"], "partition"),
            f"Controller: {'none' if controller is None else controller}, epoch: "
            + (f"unknown ({problem})" if problem else "-" if epoch is None else str(epoch)),
        ]
    )
    rows = [{**one, "state": "up" if one["answers"] else "does not answer"} for one in document["brokers"]]
    unknown = dict.fromkeys(("host", "port", "rack")) | {"leaders": 0, "listeners": ()}
    rows += [{**unknown, **one, "state": "not registered"} for one in document["notRegistered"]]
    for one in rows:
        one["address"] = one["host"] and Node(one["id"], one["host"], one["port"]).address
    columns = "broker=id, address, rack, state, leaders, replicas, out of sync=outOfSync, listeners"
    print_view(rows, columns, shown={"listeners": ", ".join})
    print_lines(
        _shortened("under-replicated partitions", document["underReplicatedPartitions"])
        + _shortened("partitions without a leader", document["partitionsWithoutLeader"])
    )


def _document(admin: Admin) -> dict[str, Any]:
    topics = admin.describe_topics()
    partitions = [one for topic in topics.values() for one in topic.partitions.values()]
    nodes = admin.cluster.brokers()
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        settings = dict(zip((node.id for node in nodes), threads.map(partial(_settings, admin), nodes), strict=True))
    controller = find_controller(admin, next((found for found in settings.values() if found), {}))
    gone = sorted({id for one in partitions for id in one.replicas} - settings.keys())
    return {
        "clusterId": admin.cluster.cluster_id(),
        "controller": None if controller.id < 0 else controller.id,
        "controllerEpoch": controller.epoch,
        "controllerEpochProblem": controller.problem,
        "topics": len(topics),
        "partitions": len(partitions),
        "underReplicatedPartitions": [
            f"{topic.name}-{index}" for topic in topics.values() for index in sorted(under_replicated(topic))
        ],
        "partitionsWithoutLeader": [
            f"{topic.name}-{index}"
            for topic in topics.values()
            for index, one in topic.partitions.items()
            if one.leader < 0
        ],
        "brokers": [
            {
                **node._asdict(),
                "controller": node.id == controller.id,
                "answers": settings[node.id] is not None,
                "leaders": sum(one.leader == node.id for one in partitions),
                **_replicas(node.id, partitions),
                "listeners": _listeners(settings[node.id] or {}),
            }
            for node in nodes
        ],
        "notRegistered": [{"id": id, **_replicas(id, partitions)} for id in gone],
    }


def _replicas(broker: int, partitions: Iterable[PartitionMetadata]) -> dict[str, int]:
    own = [one for one in partitions if broker in one.replicas]
    return {"replicas": len(own), "outOfSync": sum(broker not in one.isr for one in own)}


def _shortened(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return [f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}"]


def _settings(admin: Admin, node: Node) -> dict[str, str | None] | None:
    """Some settings of a broker, none if they may not be read; None for a broker that does not answer."""
    with Cluster(impatient(admin.cluster.settings, node.address)) as cluster:
        try:
            entries = cluster.retrying(
                lambda: Admin(cluster).describe_configs(ResourceType.BROKER, str(node.id), _SETTINGS), timeout_s=0
            )
        except (ConnectionFailed, RequestTimedOut):
            return None
        except BrokerError:
            return {}
    return {name: entry.value for name, entry in entries.items()}


def _listeners(settings: Mapping[str, str | None]) -> list[str]:
    """`advertised.listeners` of a broker, or its `listeners` where it advertises them as they are."""
    found = settings.get("advertised.listeners") or settings.get("listeners") or ""
    return [text.strip() for text in found.split(",") if text.strip()]
