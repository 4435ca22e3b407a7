"""Which right each API asks for, on one page (Kafka's documentation of "Protocol and resources", KafkaApis).

The handlers ask by these constants (`ApiContext.allows`), docs/reference/permissions.md is generated from them, and a
test takes away each of them in turn. Whoever lacks a right gets its error code whether the resource exists or not, but
for topics that are named by id: ids are no secret (KIP-516).
Super users have all rights; without an authorizer everybody has, but for ClusterAction. The client looks up here what
it lacks when it is refused (`lacking`).
"""

from __future__ import annotations

import dataclasses

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.security.acl_types import AclOperation, AclResourceType

_CODES = {
    AclResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    AclResourceType.GROUP: ErrorCode.group_authorization_failed,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    AclResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    AclResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    AclResourceType.USER: ErrorCode.delegation_token_authorization_failed,
}


_ROWS: list[Permission] = []


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Permission:
    """A right that requests of one API need, and a row of `PERMISSIONS`. Equal only to itself."""

    api: ApiKey
    operation: AclOperation
    resource: AclResourceType
    asked: str = ""
    """Of which resources, or when; empty for each that the request names."""
    otherwise: str = ""
    """What is answered without the right, if not the error code of the resource's type."""
    low: int = dataclasses.field(default=0, kw_only=True)
    high: int | None = dataclasses.field(default=None, kw_only=True)
    """The API's versions that ask for it."""
    code: ErrorCode = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", _CODES[self.resource])
        _ROWS.append(self)

    @property
    def request(self) -> str:
        """The API's name as Kafka writes it."""
        return self.api.title


_row, _A, _O = Permission, ApiKey, AclOperation
_TOPIC, _GROUP, _CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
_TRANSACTION = AclResourceType.TRANSACTIONAL_ID
_LEFT_OUT = "is left out"
_HIDDEN = f"TOPIC_AUTHORIZATION_FAILED; {_LEFT_OUT} where all are asked for"
_NO_OPERATIONS = "the bits of the cluster's authorized operations are 0"

# --- records

PRODUCE_TRANSACTION = _row(_A.PRODUCE, _O.WRITE, _TRANSACTION, "for records of a transaction")
PRODUCE_TOPIC = _row(_A.PRODUCE, _O.WRITE, _TOPIC)
FETCH_TOPIC = _row(_A.FETCH, _O.READ, _TOPIC)
FETCH_AS_FOLLOWER = _row(
    _A.FETCH, _O.CLUSTER_ACTION, _CLUSTER, "for a follower", "TOPIC_AUTHORIZATION_FAILED for each partition"
)
LIST_OFFSETS_TOPIC = _row(_A.LIST_OFFSETS, _O.DESCRIBE, _TOPIC)
END_OF_EPOCH_AS_BROKER = _row(
    _A.OFFSET_FOR_LEADER_EPOCH, _O.CLUSTER_ACTION, _CLUSTER, "instead of Describe on topics", "Describe is asked for"
)
END_OF_EPOCH_TOPIC = _row(_A.OFFSET_FOR_LEADER_EPOCH, _O.DESCRIBE, _TOPIC)
DELETE_RECORDS_TOPIC = _row(_A.DELETE_RECORDS, _O.DELETE, _TOPIC)
DESCRIBE_PRODUCERS_TOPIC = _row(_A.DESCRIBE_PRODUCERS, _O.READ, _TOPIC)

# --- metadata and topics

METADATA_TOPIC = _row(
    _A.METADATA,
    _O.DESCRIBE,
    _TOPIC,
    otherwise=f"TOPIC_AUTHORIZATION_FAILED, without its name for an id; {_LEFT_OUT} where all are asked for",
)
METADATA_CREATE_ANY = _row(
    _A.METADATA, _O.CREATE, _CLUSTER, "to create a missing topic", "Create on the topic is asked for"
)
METADATA_CREATE = _row(_A.METADATA, _O.CREATE, _TOPIC, "to create it")
METADATA_CLUSTER = _row(_A.METADATA, _O.DESCRIBE, _CLUSTER, "for authorized operations", _NO_OPERATIONS, low=8, high=10)
DESCRIBE_TOPIC_PARTITIONS_TOPIC = _row(_A.DESCRIBE_TOPIC_PARTITIONS, _O.DESCRIBE, _TOPIC, otherwise=_HIDDEN)
DESCRIBE_CLUSTER_OPERATIONS = _row(
    _A.DESCRIBE_CLUSTER, _O.DESCRIBE, _CLUSTER, "for authorized operations", _NO_OPERATIONS
)
CREATE_TOPICS_ANY = _row(_A.CREATE_TOPICS, _O.CREATE, _CLUSTER, "", "Create on each topic is asked for")
CREATE_TOPICS_TOPIC = _row(_A.CREATE_TOPICS, _O.CREATE, _TOPIC)
CREATE_TOPICS_CONFIGS = _row(
    _A.CREATE_TOPICS,
    _O.DESCRIBE_CONFIGS,
    _TOPIC,
    "for its settings in the answer",
    "the topic is created and its settings are not shown (topic config error code)",
    low=5,
)
DELETE_TOPICS_DESCRIBE = _row(
    _A.DELETE_TOPICS, _O.DESCRIBE, _TOPIC, "of an id", "TOPIC_AUTHORIZATION_FAILED without its name", low=6
)
DELETE_TOPICS_TOPIC = _row(_A.DELETE_TOPICS, _O.DELETE, _TOPIC)
CREATE_PARTITIONS_TOPIC = _row(_A.CREATE_PARTITIONS, _O.ALTER, _TOPIC)

# --- groups

FIND_GROUP = _row(_A.FIND_COORDINATOR, _O.DESCRIBE, _GROUP)
JOIN_GROUP = _row(_A.JOIN_GROUP, _O.READ, _GROUP)
SYNC_GROUP = _row(_A.SYNC_GROUP, _O.READ, _GROUP)
HEARTBEAT = _row(_A.HEARTBEAT, _O.READ, _GROUP)
LEAVE_GROUP = _row(_A.LEAVE_GROUP, _O.READ, _GROUP)
CONSUMER_HEARTBEAT = _row(_A.CONSUMER_GROUP_HEARTBEAT, _O.READ, _GROUP)
CONSUMER_HEARTBEAT_TOPIC = _row(
    _A.CONSUMER_GROUP_HEARTBEAT,
    _O.DESCRIBE,
    _TOPIC,
    "of each name",
    f"TOPIC_AUTHORIZATION_FAILED; {_LEFT_OUT} of those that a pattern matches",
)
DESCRIBE_CONSUMERS_GROUP = _row(_A.CONSUMER_GROUP_DESCRIBE, _O.DESCRIBE, _GROUP)
DESCRIBE_CONSUMERS_TOPIC = _row(_A.CONSUMER_GROUP_DESCRIBE, _O.DESCRIBE, _TOPIC, "of each assigned one")
COMMIT_GROUP = _row(_A.OFFSET_COMMIT, _O.READ, _GROUP)
COMMIT_TOPIC = _row(_A.OFFSET_COMMIT, _O.READ, _TOPIC)
FETCH_OFFSETS_GROUP = _row(_A.OFFSET_FETCH, _O.DESCRIBE, _GROUP)
FETCH_OFFSETS_TOPIC = _row(_A.OFFSET_FETCH, _O.DESCRIBE, _TOPIC, otherwise=_HIDDEN)
DESCRIBE_GROUPS_GROUP = _row(_A.DESCRIBE_GROUPS, _O.DESCRIBE, _GROUP)
LIST_GROUPS_ANY = _row(_A.LIST_GROUPS, _O.DESCRIBE, _CLUSTER, "", "Describe on each group is asked for")
LIST_GROUPS_GROUP = _row(_A.LIST_GROUPS, _O.DESCRIBE, _GROUP, "of each group", _LEFT_OUT)
DELETE_GROUPS_GROUP = _row(_A.DELETE_GROUPS, _O.DELETE, _GROUP)
DELETE_OFFSETS_GROUP = _row(_A.OFFSET_DELETE, _O.DELETE, _GROUP)
DELETE_OFFSETS_TOPIC = _row(_A.OFFSET_DELETE, _O.READ, _TOPIC)

# --- share groups

SHARE_HEARTBEAT = _row(_A.SHARE_GROUP_HEARTBEAT, _O.READ, _GROUP)
SHARE_HEARTBEAT_TOPIC = _row(_A.SHARE_GROUP_HEARTBEAT, _O.DESCRIBE, _TOPIC, "of each name")
DESCRIBE_SHARES_GROUP = _row(_A.SHARE_GROUP_DESCRIBE, _O.DESCRIBE, _GROUP)
DESCRIBE_SHARES_TOPIC = _row(_A.SHARE_GROUP_DESCRIBE, _O.DESCRIBE, _TOPIC, "of each assigned one")
SHARE_FETCH_GROUP = _row(_A.SHARE_FETCH, _O.READ, _GROUP)
SHARE_FETCH_TOPIC = _row(_A.SHARE_FETCH, _O.READ, _TOPIC)
SHARE_ACKNOWLEDGE_GROUP = _row(_A.SHARE_ACKNOWLEDGE, _O.READ, _GROUP)
SHARE_ACKNOWLEDGE_TOPIC = _row(_A.SHARE_ACKNOWLEDGE, _O.READ, _TOPIC)
DESCRIBE_SHARE_OFFSETS_GROUP = _row(_A.DESCRIBE_SHARE_GROUP_OFFSETS, _O.DESCRIBE, _GROUP)
DESCRIBE_SHARE_OFFSETS_TOPIC = _row(_A.DESCRIBE_SHARE_GROUP_OFFSETS, _O.DESCRIBE, _TOPIC, otherwise=_HIDDEN)
ALTER_SHARE_OFFSETS_GROUP = _row(_A.ALTER_SHARE_GROUP_OFFSETS, _O.READ, _GROUP)
ALTER_SHARE_OFFSETS_TOPIC = _row(_A.ALTER_SHARE_GROUP_OFFSETS, _O.READ, _TOPIC)
DELETE_SHARE_OFFSETS_GROUP = _row(_A.DELETE_SHARE_GROUP_OFFSETS, _O.DELETE, _GROUP)
DELETE_SHARE_OFFSETS_TOPIC = _row(_A.DELETE_SHARE_GROUP_OFFSETS, _O.READ, _TOPIC)

FIND_SHARE = _row(_A.FIND_COORDINATOR, _O.CLUSTER_ACTION, _CLUSTER, "for a share partition", low=6)
SHARE_STATE_AS_BROKER = {
    api: _row(api, _O.CLUSTER_ACTION, _CLUSTER, "", "CLUSTER_AUTHORIZATION_FAILED for each partition")
    for api in (
        *(_A.INITIALIZE_SHARE_GROUP_STATE, _A.READ_SHARE_GROUP_STATE, _A.WRITE_SHARE_GROUP_STATE),
        *(_A.DELETE_SHARE_GROUP_STATE, _A.READ_SHARE_GROUP_STATE_SUMMARY),
    )
}

# --- transactions

FIND_TRANSACTION = _row(_A.FIND_COORDINATOR, _O.DESCRIBE, _TRANSACTION, low=1)
INIT_TRANSACTION = _row(_A.INIT_PRODUCER_ID, _O.WRITE, _TRANSACTION, "for a transactional producer")
INIT_IDEMPOTENT = _row(
    _A.INIT_PRODUCER_ID,
    _O.IDEMPOTENT_WRITE,
    _CLUSTER,
    "for an idempotent producer",
    "Write on any topic is asked for (KIP-679)",
)
INIT_IDEMPOTENT_TOPIC = _row(
    _A.INIT_PRODUCER_ID, _O.WRITE, _TOPIC, "of any topic, for an idempotent producer", "CLUSTER_AUTHORIZATION_FAILED"
)
ADD_PARTITIONS_TRANSACTION = _row(_A.ADD_PARTITIONS_TO_TXN, _O.WRITE, _TRANSACTION, high=3)
ADD_PARTITIONS_TOPIC = _row(
    _A.ADD_PARTITIONS_TO_TXN,
    _O.WRITE,
    _TOPIC,
    otherwise="TOPIC_AUTHORIZATION_FAILED; the others get OPERATION_NOT_ATTEMPTED",
    high=3,
)
ADD_PARTITIONS_AS_BROKER = _row(_A.ADD_PARTITIONS_TO_TXN, _O.CLUSTER_ACTION, _CLUSTER, low=4)
ADD_OFFSETS_TRANSACTION = _row(_A.ADD_OFFSETS_TO_TXN, _O.WRITE, _TRANSACTION)
ADD_OFFSETS_GROUP = _row(_A.ADD_OFFSETS_TO_TXN, _O.READ, _GROUP)
END_TRANSACTION = _row(_A.END_TXN, _O.WRITE, _TRANSACTION)
COMMIT_TRANSACTION = _row(_A.TXN_OFFSET_COMMIT, _O.WRITE, _TRANSACTION)
COMMIT_TRANSACTION_GROUP = _row(_A.TXN_OFFSET_COMMIT, _O.READ, _GROUP)
COMMIT_TRANSACTION_TOPIC = _row(_A.TXN_OFFSET_COMMIT, _O.READ, _TOPIC)
WRITE_MARKERS_AS_ADMIN = _row(
    _A.WRITE_TXN_MARKERS, _O.ALTER, _CLUSTER, "to end a hanging transaction", "ClusterAction is asked for"
)
WRITE_MARKERS_AS_BROKER = _row(_A.WRITE_TXN_MARKERS, _O.CLUSTER_ACTION, _CLUSTER)
DESCRIBE_TRANSACTION = _row(_A.DESCRIBE_TRANSACTIONS, _O.DESCRIBE, _TRANSACTION)
DESCRIBE_TRANSACTION_TOPIC = _row(_A.DESCRIBE_TRANSACTIONS, _O.DESCRIBE, _TOPIC, "of each of its topics", _LEFT_OUT)
LIST_TRANSACTION = _row(_A.LIST_TRANSACTIONS, _O.DESCRIBE, _TRANSACTION, "of each transactional id", _LEFT_OUT)

# --- settings, users, rights, quotas

DESCRIBE_CONFIGS_TOPIC = _row(_A.DESCRIBE_CONFIGS, _O.DESCRIBE_CONFIGS, _TOPIC)
DESCRIBE_CONFIGS_GROUP = _row(_A.DESCRIBE_CONFIGS, _O.DESCRIBE_CONFIGS, _GROUP)
DESCRIBE_CONFIGS_CLUSTER = _row(_A.DESCRIBE_CONFIGS, _O.DESCRIBE_CONFIGS, _CLUSTER, "for brokers and loggers")
ALTER_CONFIGS_TOPIC = _row(_A.ALTER_CONFIGS, _O.ALTER_CONFIGS, _TOPIC)
ALTER_CONFIGS_GROUP = _row(_A.ALTER_CONFIGS, _O.ALTER_CONFIGS, _GROUP)
ALTER_CONFIGS_CLUSTER = _row(_A.ALTER_CONFIGS, _O.ALTER_CONFIGS, _CLUSTER, "for brokers and loggers")
INCREMENTAL_ALTER_TOPIC = _row(_A.INCREMENTAL_ALTER_CONFIGS, _O.ALTER_CONFIGS, _TOPIC)
INCREMENTAL_ALTER_GROUP = _row(_A.INCREMENTAL_ALTER_CONFIGS, _O.ALTER_CONFIGS, _GROUP)
INCREMENTAL_ALTER_CLUSTER = _row(_A.INCREMENTAL_ALTER_CONFIGS, _O.ALTER_CONFIGS, _CLUSTER, "for brokers and loggers")
LIST_CONFIG_RESOURCES = _row(_A.LIST_CONFIG_RESOURCES, _O.DESCRIBE_CONFIGS, _CLUSTER)
DESCRIBE_QUOTAS = _row(_A.DESCRIBE_CLIENT_QUOTAS, _O.DESCRIBE_CONFIGS, _CLUSTER)
ALTER_QUOTAS = _row(_A.ALTER_CLIENT_QUOTAS, _O.ALTER_CONFIGS, _CLUSTER)
DESCRIBE_SCRAM = _row(_A.DESCRIBE_USER_SCRAM_CREDENTIALS, _O.DESCRIBE, _CLUSTER)
ALTER_SCRAM = _row(
    _A.ALTER_USER_SCRAM_CREDENTIALS,
    _O.ALTER,
    _CLUSTER,
    otherwise="CLUSTER_AUTHORIZATION_FAILED; also with it for a super user, whom only super users change",
)
CREATE_TOKEN = _row(
    _A.CREATE_DELEGATION_TOKEN,
    _O.CREATE_TOKENS,
    AclResourceType.USER,
    "of another owner",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED; also with it for a super user, of whom only super users create tokens",
    low=3,
)
DESCRIBE_TOKEN = _row(
    _A.DESCRIBE_DELEGATION_TOKEN,
    _O.DESCRIBE,
    AclResourceType.DELEGATION_TOKEN,
    "of each token of others",
    "DescribeTokens on its owner is asked for",
)
DESCRIBE_TOKENS_OF_USER = _row(
    _A.DESCRIBE_DELEGATION_TOKEN,
    _O.DESCRIBE_TOKENS,
    AclResourceType.USER,
    "of the owner of each token of others",
    f"{_LEFT_OUT}; also with it for a super user, whose tokens only super users see",
)
DESCRIBE_ACLS = _row(_A.DESCRIBE_ACLS, _O.DESCRIBE, _CLUSTER)
CREATE_ACLS = _row(_A.CREATE_ACLS, _O.ALTER, _CLUSTER)
DELETE_ACLS = _row(_A.DELETE_ACLS, _O.ALTER, _CLUSTER)

# --- replicas

ELECT_LEADERS = _row(_A.ELECT_LEADERS, _O.ALTER, _CLUSTER)
ALTER_REASSIGNMENTS = _row(_A.ALTER_PARTITION_REASSIGNMENTS, _O.ALTER, _CLUSTER)
LIST_REASSIGNMENTS = _row(_A.LIST_PARTITION_REASSIGNMENTS, _O.DESCRIBE, _CLUSTER)
ALTER_LOG_DIRS = _row(_A.ALTER_REPLICA_LOG_DIRS, _O.ALTER, _CLUSTER)
DESCRIBE_LOG_DIRS = _row(
    _A.DESCRIBE_LOG_DIRS, _O.DESCRIBE, _CLUSTER, "", "no directory; from version 3 CLUSTER_AUTHORIZATION_FAILED"
)

PERMISSIONS = tuple(_ROWS)

OPEN_APIS = frozenset(
    {
        *(ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE),
        *(ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),  # for the token's owner and renewers
    }
)
"""APIs that need no right."""


def lacking(api: ApiKey, code: ErrorCode) -> Permission | None:
    """The right that a client lacks whose request was answered with this code; None for a code that is about no right.

    Where an API asks for several, that which it asks for each resource of the request. Brokers' own rights are none.
    """
    rows = [
        row
        for row in PERMISSIONS
        if row.api is api and row.code is code and row.operation is not AclOperation.CLUSTER_ACTION
    ]
    return next((row for row in rows if not row.asked), rows[0] if rows else None)
