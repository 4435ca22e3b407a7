"""`pykafka cluster`: run a cluster on this machine; show the brokers of a cluster, its controller and listeners.

`describe` shows what kcat -L and kafka-broker-api-versions.sh show of brokers. All listeners of a broker are read from
its settings; where they may not be read, only the address that this client uses is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker.client.admin import Admin, ResourceType
from broker.embedded import EmbeddedCluster
from broker.errors import BrokerError
from broker.tools.client_options import JsonOutput, admin_command, parse_pairs
from broker.tools.interrupt import Interrupt
from broker.tools.output import note, print_json, print_lines, print_table

__all__ = ["app"]

app = typer.Typer(
    help="Run a cluster on this machine; show the brokers of a cluster.\n\n\b\nExamples:\n"
    "  pykafka cluster start --brokers 3\n  pykafka cluster describe",
    no_args_is_help=True,
)

_LOOK_EVERY_S = 0.2


@app.command()
def start(
    brokers: Annotated[int, typer.Option(min=1, max=100, help="Number of brokers.", metavar="N")] = 3,
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the data and logs of all brokers.", metavar="DIR")
    ] = Path("data/cluster"),
    override: Annotated[
        list[str] | None, typer.Option(help="Setting of all brokers; may be repeated.", metavar="KEY=VALUE")
    ] = None,
) -> None:
    """Run brokers 1 to N and a ZooKeeper until Ctrl-C or SIGTERM. They take free ports, which are printed.

    \b
    Examples:
      pykafka cluster start
      pykafka cluster start --brokers 5 --dir /tmp/cluster --override num.partitions=6
    """
    interrupt = Interrupt()
    with EmbeddedCluster(brokers, directory, parse_pairs(override, "--override")) as kafka:
        print_lines([f"bootstrap servers: {kafka.bootstrap}", f"ZooKeeper: {kafka.zookeeper}"])
        head = ["broker", "address", "process", "log"]
        print_table(head, [(id, one.bootstrap, one.pid, one.log_file) for id, one in kafka.brokers.items()])
        ended: set[int] = set()
        while not interrupt.came_within(_LOOK_EVERY_S):
            for id, one in kafka.brokers.items():
                if not one.running and id not in ended:
                    ended.add(id)
                    note(f"broker {id} has ended by itself; see {one.log_file}")
            if kafka.zookeeper_server is not None and not kafka.zookeeper_server.running:
                note("ZooKeeper has ended by itself; starting it again")
                kafka.zookeeper_server.start()


@admin_command(app)
def describe(admin: Admin, as_json: JsonOutput = False) -> None:
    """Show id and controller of the cluster; address, rack, listeners and number of partitions of each broker.

    \b
    Examples:
      pykafka cluster describe
      pykafka cluster describe -b broker1,broker2:9093 --json
    """
    topics = admin.describe_topics()
    partitions = [one for topic in topics.values() for one in topic.partitions.values()]
    controller = admin.cluster.controller().id
    brokers: list[dict[str, Any]] = [
        {
            **node._asdict(),
            "controller": node.id == controller,
            "leaders": sum(one.leader == node.id for one in partitions),
            "replicas": sum(node.id in one.replicas for one in partitions),
            "listeners": _listeners(admin, node.id),
        }
        for node in admin.cluster.brokers()
    ]
    document = {
        "clusterId": admin.cluster.cluster_id(),
        "controller": controller,
        "topics": len(topics),
        "partitions": len(partitions),
        "brokers": brokers,
    }
    if as_json:
        print_json(document)
        return
    print_lines([f"Cluster {document['clusterId']}: {len(topics)} topics, {len(partitions)} partitions"])
    head = ["broker", "address", "rack", "role", "leaders", "replicas", "listeners"]
    rows = []
    for one in brokers:
        role = "controller" if one["controller"] else None
        address, listeners = f"{one['host']}:{one['port']}", ", ".join(one["listeners"])
        rows.append((one["id"], address, one["rack"], role, one["leaders"], one["replicas"], listeners))
    print_table(head, rows)


def _listeners(admin: Admin, broker: int) -> list[str]:
    """`advertised.listeners` of a broker, or its `listeners` where it advertises them as they are."""
    try:
        entries = admin.describe_configs(ResourceType.BROKER, str(broker), ["advertised.listeners", "listeners"])
    except BrokerError:
        return []
    values = [entries[name].value for name in ("advertised.listeners", "listeners") if name in entries]
    found = next((value for value in values if value), "")
    return [text.strip() for text in (found or "").split(",") if text.strip()]
