"""Names of topics and groups for the shell's completion, asked of the broker that the line so far names.

Called by typer while somebody presses Tab, in a process of its own. What goes wrong is kept quiet, and nothing waits
longer than `PATIENCE_MS`: no names are better than an error in the middle of a line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import typer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.errors import PykafkaError
from broker.tools.bootstrap import base_properties

__all__ = ["complete_entities", "complete_groups", "complete_topics", "complete_transactional_ids"]

PATIENCE_MS = "1500"


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin with what is typed; internal ones only once their underscores are."""
    return _names(context, incomplete, lambda admin: admin.list_topics(internal=incomplete.startswith("_")))


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Groups that begin with what is typed."""
    return _names(context, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def complete_transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids that begin with what is typed."""
    return _names(context, incomplete, lambda admin: [one.transactional_id for one in admin.list_transactions()])


def complete_entities(context: typer.Context, incomplete: str) -> list[str]:
    """Topics, or the ids of brokers, as `--entity-type` says."""
    if str(context.params.get("entity_type", "topics")).startswith("broker"):
        return _names(context, incomplete, lambda admin: [str(node.id) for node in admin.cluster.brokers()])
    return complete_topics(context, incomplete)


def _names(context: typer.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    logging.disable()  # what is said now would stand in the line that is being written
    given = context.params
    file = given.get("config_file") or given.get("command_config")
    try:
        properties = {
            **base_properties(file),
            "socket.connection.setup.timeout.ms": PATIENCE_MS,
            "request.timeout.ms": PATIENCE_MS,
            "default.api.timeout.ms": PATIENCE_MS,
        }
        with Cluster(given.get("bootstrap_server") or properties["bootstrap.servers"], properties) as cluster:
            return [name for name in ask(Admin(cluster)) if name.startswith(incomplete)]
    except (PykafkaError, OSError):
        return []
