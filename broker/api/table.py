"""The whole API on one page: key, versions served, handler.

The router serves from this table and ApiVersions answers from it, so the broker advertises exactly what it handles. To
add an API, add a file beside this one and a line here; CONTRIBUTING.md names the places of its key, rights and page.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    refused_versions,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
    share_state_requests,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from broker.api.context import ApiContext
from broker.background_tasks import BackgroundTasks
from broker.net.router import Route
from broker.net.stopwatch import Stopwatch, add_work
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import FETCH_VERSIONS

API_TABLE: tuple[tuple[ApiKey, int, int, Callable[..., Any]], ...] = (
    (ApiKey.PRODUCE, 3, 13, produce.handle),
    (ApiKey.FETCH, *FETCH_VERSIONS, fetch.handle),
    (ApiKey.LIST_OFFSETS, 0, 11, list_offsets.handle),
    (ApiKey.METADATA, 0, 13, metadata.handle),
    (ApiKey.OFFSET_COMMIT, 0, 10, offset_commit.handle),
    (ApiKey.OFFSET_FETCH, 0, 10, offset_fetch.handle),
    (ApiKey.FIND_COORDINATOR, 0, 6, find_coordinator.handle),
    (ApiKey.JOIN_GROUP, 0, 9, join_group.handle),
    (ApiKey.HEARTBEAT, 0, 4, heartbeat.handle),
    (ApiKey.LEAVE_GROUP, 0, 5, leave_group.handle),
    (ApiKey.SYNC_GROUP, 0, 5, sync_group.handle),
    (ApiKey.DESCRIBE_GROUPS, 0, 6, describe_groups.handle),
    (ApiKey.LIST_GROUPS, 0, 5, list_groups.handle),
    (ApiKey.SASL_HANDSHAKE, 0, 1, sasl_handshake.handle),
    (ApiKey.API_VERSIONS, 0, 4, api_versions.make_handler),
    (ApiKey.CREATE_TOPICS, 0, 7, create_topics.handle),
    (ApiKey.DELETE_TOPICS, 0, 6, delete_topics.handle),
    (ApiKey.DELETE_RECORDS, 0, 2, delete_records.handle),
    (ApiKey.INIT_PRODUCER_ID, 0, 5, init_producer_id.handle),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, offset_for_leader_epoch.handle),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, add_partitions_to_txn.handle),
    (ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, add_offsets_to_txn.handle),
    (ApiKey.END_TXN, 0, 5, end_txn.handle),
    (ApiKey.WRITE_TXN_MARKERS, 1, 2, write_txn_markers.handle),
    (ApiKey.TXN_OFFSET_COMMIT, 0, 5, txn_offset_commit.handle),
    (ApiKey.DESCRIBE_ACLS, 0, 3, describe_acls.handle),
    (ApiKey.CREATE_ACLS, 0, 3, create_acls.handle),
    (ApiKey.DELETE_ACLS, 0, 3, delete_acls.handle),
    (ApiKey.DESCRIBE_CONFIGS, 0, 4, describe_configs.handle),
    (ApiKey.ALTER_CONFIGS, 0, 2, alter_configs.handle),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, alter_replica_log_dirs.handle),
    (ApiKey.DESCRIBE_LOG_DIRS, 0, 5, describe_log_dirs.handle),
    (ApiKey.SASL_AUTHENTICATE, 0, 2, sasl_authenticate.handle),
    (ApiKey.CREATE_PARTITIONS, 0, 3, create_partitions.handle),
    (ApiKey.DELETE_GROUPS, 0, 2, delete_groups.handle),
    (ApiKey.ELECT_LEADERS, 0, 2, elect_leaders.handle),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, incremental_alter_configs.handle),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, alter_partition_reassignments.handle),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, list_partition_reassignments.handle),
    (ApiKey.OFFSET_DELETE, 0, 0, offset_delete.handle),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, describe_client_quotas.handle),
    (ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, alter_client_quotas.handle),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, describe_user_scram_credentials.handle),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, alter_user_scram_credentials.handle),
    (ApiKey.DESCRIBE_CLUSTER, 0, 2, describe_cluster.handle),
    (ApiKey.DESCRIBE_PRODUCERS, 0, 0, describe_producers.handle),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, describe_transactions.handle),
    (ApiKey.LIST_TRANSACTIONS, 0, 2, list_transactions.handle),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_group_heartbeat.handle),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer_group_describe.handle),
    (ApiKey.LIST_CONFIG_RESOURCES, 0, 1, list_config_resources.handle),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, describe_topic_partitions.handle),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, share_group_heartbeat.handle),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, consumer_group_describe.handle),
    (ApiKey.SHARE_FETCH, 1, 2, share_fetch.handle),
    (ApiKey.SHARE_ACKNOWLEDGE, 1, 2, share_acknowledge.handle),
    (ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, share_state_requests.handle),
    (ApiKey.READ_SHARE_GROUP_STATE, 0, 0, share_state_requests.handle),
    (ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, share_state_requests.handle),
    (ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, share_state_requests.handle),
    (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, share_state_requests.handle),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, describe_share_group_offsets.handle),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, alter_share_group_offsets.handle),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, delete_share_group_offsets.handle),
)
"""(key, lowest version, highest version, handler)."""


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


_REFUSALS = {
    ApiKey.PRODUCE: refused_versions.refuse_produce,
    ApiKey.FETCH: refused_versions.refuse_fetch,
}
"""What answers the versions below the lowest one."""


def make_routes(context: ApiContext) -> list[Route]:
    """Bind the table to a running broker."""
    routes: list[Route] = []
    for api, low, high, handler in API_TABLE:
        if api is ApiKey.API_VERSIONS:
            bound = handler(routes, context.features, context.quotas)
        else:
            bound = functools.partial(handler, context)
        if api in _CHANGES_METADATA:
            bound = _uncancelled(bound)
        routes.append(Route(api, low, high, bound, 0 if api is ApiKey.PRODUCE else None, _REFUSALS.get(api)))
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
