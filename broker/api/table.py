"""The whole API on one page: keys and the versions served.

The router serves from this table and ApiVersions answers from it, so the broker advertises exactly what it handles. To
add an API, add a file beside this one and a line here. The file has the name of the key in lower case, and the handler
in it is called `handle`. CONTRIBUTING.md names the places of its key, rights and page.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

from broker.api import api_versions
from broker.api.context import ApiContext
from broker.background_tasks import BackgroundTasks
from broker.net.router import Route
from broker.net.stopwatch import Stopwatch, add_work
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import FETCH_VERSIONS

API_TABLE: tuple[tuple[ApiKey, int, int], ...] = (
    (ApiKey.PRODUCE, 3, 12),
    (ApiKey.FETCH, *FETCH_VERSIONS),
    (ApiKey.LIST_OFFSETS, 0, 10),
    (ApiKey.METADATA, 0, 13),
    (ApiKey.OFFSET_COMMIT, 0, 9),
    (ApiKey.OFFSET_FETCH, 0, 9),
    (ApiKey.FIND_COORDINATOR, 0, 6),
    (ApiKey.JOIN_GROUP, 0, 9),
    (ApiKey.HEARTBEAT, 0, 4),
    (ApiKey.LEAVE_GROUP, 0, 5),
    (ApiKey.SYNC_GROUP, 0, 5),
    (ApiKey.DESCRIBE_GROUPS, 0, 6),
    (ApiKey.LIST_GROUPS, 0, 5),
    (ApiKey.SASL_HANDSHAKE, 0, 1),
    (ApiKey.API_VERSIONS, 0, 4),
    (ApiKey.CREATE_TOPICS, 0, 7),
    (ApiKey.DELETE_TOPICS, 0, 6),
    (ApiKey.DELETE_RECORDS, 0, 2),
    (ApiKey.INIT_PRODUCER_ID, 0, 5),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5),
    (ApiKey.ADD_OFFSETS_TO_TXN, 0, 4),
    (ApiKey.END_TXN, 0, 4),
    (ApiKey.WRITE_TXN_MARKERS, 1, 2),
    (ApiKey.TXN_OFFSET_COMMIT, 0, 4),
    (ApiKey.DESCRIBE_ACLS, 0, 3),
    (ApiKey.CREATE_ACLS, 0, 3),
    (ApiKey.DELETE_ACLS, 0, 3),
    (ApiKey.DESCRIBE_CONFIGS, 0, 4),
    (ApiKey.ALTER_CONFIGS, 0, 2),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2),
    (ApiKey.DESCRIBE_LOG_DIRS, 0, 5),
    (ApiKey.SASL_AUTHENTICATE, 0, 2),
    (ApiKey.CREATE_PARTITIONS, 0, 3),
    (ApiKey.DELETE_GROUPS, 0, 2),
    (ApiKey.ELECT_LEADERS, 0, 2),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0),
    (ApiKey.OFFSET_DELETE, 0, 0),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1),
    (ApiKey.ALTER_CLIENT_QUOTAS, 0, 1),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0),
    (ApiKey.DESCRIBE_CLUSTER, 0, 2),
    (ApiKey.DESCRIBE_PRODUCERS, 0, 0),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, 0),
    (ApiKey.LIST_TRANSACTIONS, 0, 2),
    (ApiKey.LIST_CONFIG_RESOURCES, 0, 1),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0),
)
"""(key, lowest version, highest version)."""


_CHANGES_METADATA = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
    }
)
"""A client that disconnects must not end these between the write to ZooKeeper and the notification of the brokers."""


def make_routes(context: ApiContext) -> list[Route]:
    """Bind the table to a running broker."""
    routes: list[Route] = []
    for api, low, high in API_TABLE:
        if api is ApiKey.API_VERSIONS:
            bound: Callable[..., Any] = api_versions.make_handler(routes)
        else:
            handler = importlib.import_module(f"broker.api.{api.name.lower()}").handle
            bound = functools.partial(handler, context)
        if api in _CHANGES_METADATA:
            bound = _uncancelled(bound)
        routes.append(Route(api, low, high, bound, 0 if api is ApiKey.PRODUCE else None))
    return routes


def _uncancelled(handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let a request run to its end even if its client disconnects."""
    tasks = BackgroundTasks()

    async def run(*arguments: Any) -> Any:
        watch = Stopwatch(handle(*arguments))
        try:
            return await tasks.finish("a request whose client has left", watch)
        finally:
            add_work(watch.seconds)

    return run
