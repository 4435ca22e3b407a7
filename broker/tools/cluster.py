"""`pykafka cluster describe`: the brokers of a cluster, its controller, and where the brokers listen.

Shows what kcat -L and kafka-broker-api-versions.sh show of brokers. All listeners of a broker are read from its
settings; where they may not be read, only the address that this client uses is shown.
"""

from __future__ import annotations

from typing import Any

import typer

from broker.client.admin import Admin, ResourceType
from broker.errors import BrokerError
from broker.tools.client_options import JsonOutput, admin_command
from broker.tools.output import print_json, print_lines, print_table

__all__ = ["app"]

app = typer.Typer(
    help="Show the brokers of a cluster.\n\n\b\nExamples:\n  pykafka cluster describe", no_args_is_help=True
)


@app.callback()
def cluster() -> None:
    """Keeps `describe` a sub-command, although it is the only one."""


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
