"""The table of docs/reference/protocol.md: every API key of Kafka's protocol, the versions served, or why none.

Keys, names and Kafka's versions are kio's; what is served is in broker/api/table.py. It is one of the tables of
tests/support/reference_pages.py.
"""

from __future__ import annotations

from kio.schema.index import api_key_map

from broker.api.table import API_TABLE
from broker.protocol.messages import known_versions

NO_KRAFT = "of KRaft, the quorum that replaced ZooKeeper; the cluster's state is in ZooKeeper here"
NO_STREAMS_GROUPS = "of streams groups (KIP-1071), which are not built; Kafka Streams works with classic groups"
NO_TELEMETRY = "client metrics (KIP-714) are not gathered; clients do not push when it is not advertised"
NO_AUTHORIZER = "SECURITY_DISABLED without `authorizer.class.name`, as of Kafka without an authorizer"
BETWEEN_BROKERS = "between brokers of a KRaft cluster"

NOT_SERVED = {
    "vote": NO_KRAFT,
    "begin_quorum_epoch": NO_KRAFT,
    "end_quorum_epoch": NO_KRAFT,
    "describe_quorum": NO_KRAFT,
    "alter_partition": BETWEEN_BROKERS,
    "update_features": "the controller finalizes a feature as soon as all brokers have it",
    "envelope": BETWEEN_BROKERS,
    "fetch_snapshot": NO_KRAFT,
    "broker_registration": BETWEEN_BROKERS,
    "broker_heartbeat": BETWEEN_BROKERS,
    "unregister_broker": NO_KRAFT,
    "allocate_producer_ids": "between brokers; blocks of producer ids are taken from ZooKeeper",
    "controller_registration": NO_KRAFT,
    "get_telemetry_subscriptions": NO_TELEMETRY,
    "push_telemetry": NO_TELEMETRY,
    "assign_replicas_to_dirs": BETWEEN_BROKERS,
    "add_raft_voter": NO_KRAFT,
    "remove_raft_voter": NO_KRAFT,
    "update_raft_voter": NO_KRAFT,
    "streams_group_heartbeat": NO_STREAMS_GROUPS,
    "streams_group_describe": NO_STREAMS_GROUPS,
}
"""kio's name of an API → why it is not served. What comes to be served is taken out here: the test tells."""

REMARKS = {
    "fetch": "17 and 18 are for followers of a KRaft cluster",
    "offset_commit": "0 keeps offsets in ZooKeeper",
    "offset_fetch": "0 reads those in ZooKeeper",
    "init_producer_id": "6 is of two-phase commit (KIP-939)",
    "list_transactions": "2 filters by a pattern",
    "api_versions": "Produce is advertised from 0, or librdkafka takes the broker for one without record batches",
    **dict.fromkeys(
        (f"{what}_delegation_token" for what in ("create", "renew", "expire", "describe")),
        "DELEGATION_TOKEN_AUTH_DISABLED without `delegation.token.secret.key`",
    ),
    "describe_acls": NO_AUTHORIZER,
    "create_acls": NO_AUTHORIZER,
    "delete_acls": NO_AUTHORIZER,
    "alter_replica_log_dirs": "to where the partition lies already; a move is INVALID_REQUEST",
    "elect_leaders": "the controller answers",
    "alter_partition_reassignments": "the controller answers",
    "list_partition_reassignments": "the controller answers",
}
"""kio's name of an API → what is particular here. A remark on versions is shown while those are not served."""


def protocol() -> str:
    """The table's text."""
    served = {int(api): (low, high) for api, low, high, *_ in API_TABLE}
    lines = ["| key | API | in Kafka | served | remarks |", "| --- | --- | --- | --- | --- |"]
    for key, name in sorted(api_key_map.items()):
        here = _span(*served[key]) if key in served else "no"
        lowest, highest = known_versions(key)
        known = min(lowest, served.get(key, (lowest,))[0]), highest
        remark = REMARKS.get(name, "") if key in served else NOT_SERVED.get(name, "")
        if remark[:1].isdigit() and key in served and served[key][1] == known[1]:
            remark = ""
        title = "".join(word.capitalize() for word in name.split("_"))
        lines.append(f"| {key} | {title} | {_span(*known)} | {here} | {remark} |")
    return "".join(f"{line}\n" for line in lines)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"
