"""What brokers serve that are not the newest Kafka: the APIs and versions of each, and what it refuses all the same.

Each profile names its source. Where a service documents its APIs, but not their versions, `source` says whose versions
are taken. tests/support/cut_down.py makes our broker serve no more than a profile; docs/how-to/other-brokers.md is made
from them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from spark_connector.broker_needs import FEATURES, IDEMPOTENT, Feature
from tests.support.markdown_table import table

Ranges = Mapping[ApiKey, tuple[int, int]]

_ROW = re.compile(r"(\w+) (\d+)(?:-(\d+))?")
_BY_TITLE = {key.title: key for key in ApiKey}


def ranges(text: str) -> Ranges:
    """`Fetch 4-6, EndTxn 0` by API. APIs that our clients do not know are left out, as clients do."""
    found = {}
    for row in text.replace("\n", " ").split(","):
        match = _ROW.fullmatch(row.strip())
        assert match is not None, row
        if match[1] in _BY_TITLE:
            found[_BY_TITLE[match[1]]] = (int(match[2]), int(match[3] or match[2]))
    return found


@dataclasses.dataclass(frozen=True)
class Profile:
    name: str
    source: str
    """Where the ranges were read, and the date of that text."""
    apis: Ranges
    refused: Mapping[ApiKey, ErrorCode] = dataclasses.field(default_factory=dict)
    """APIs that are advertised, and answered with an error."""
    no_times: ErrorCode | None = None
    """The answer to ListOffsets at a time; None: it is served."""
    no_transactional_ids: bool = False
    """Whether InitProducerId is served for idempotent producers only."""
    hangs_up_on_api_versions: bool = False
    """Whether a version of ApiVersions that is too new ends the connection, against KIP-511."""

    def __str__(self) -> str:
        return self.name


def _only(given: Ranges, *left_out: ApiKey) -> Ranges:
    return {api: versions for api, versions in given.items() if api not in left_out}


_TRANSACTIONS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN)

KAFKA_1_0 = Profile(
    "Apache Kafka 1.0",
    "the schemas in the sources of 1.0.0, of October 2017",
    ranges(
        "Produce 0-5, Fetch 0-6, ListOffsets 0-2, Metadata 0-5, OffsetCommit 0-3, OffsetFetch 0-3, FindCoordinator 0-1,"
        "JoinGroup 0-2, Heartbeat 0-1, LeaveGroup 0-1, SyncGroup 0-1, DescribeGroups 0-1, ListGroups 0-1,"
        "SaslHandshake 0-1, ApiVersions 0-1, CreateTopics 0-2, DeleteTopics 0-1, DeleteRecords 0, InitProducerId 0,"
        "OffsetForLeaderEpoch 0, AddPartitionsToTxn 0, AddOffsetsToTxn 0, EndTxn 0, WriteTxnMarkers 0,"
        "TxnOffsetCommit 0, DescribeAcls 0, CreateAcls 0, DeleteAcls 0, DescribeConfigs 0, AlterConfigs 0,"
        "AlterReplicaLogDirs 0, DescribeLogDirs 0, SaslAuthenticate 0, CreatePartitions 0"
    ),
)
KAFKA_2_0 = Profile(
    "Apache Kafka 2.0",
    "the schemas in the sources of 2.0.0, of July 2018",
    ranges(
        "Produce 0-6, Fetch 0-8, ListOffsets 0-3, Metadata 0-6, OffsetCommit 0-4, OffsetFetch 0-4, FindCoordinator 0-2,"
        "JoinGroup 0-3, Heartbeat 0-2, LeaveGroup 0-2, SyncGroup 0-2, DescribeGroups 0-2, ListGroups 0-2,"
        "SaslHandshake 0-1, ApiVersions 0-2, CreateTopics 0-3, DeleteTopics 0-2, DeleteRecords 0-1, InitProducerId 0-1,"
        "OffsetForLeaderEpoch 0-1, AddPartitionsToTxn 0-1, AddOffsetsToTxn 0-1, EndTxn 0-1, WriteTxnMarkers 0,"
        "TxnOffsetCommit 0-1, DescribeAcls 0-1, CreateAcls 0-1, DeleteAcls 0-1, DescribeConfigs 0-2, AlterConfigs 0-1,"
        "AlterReplicaLogDirs 0-1, DescribeLogDirs 0-1, SaslAuthenticate 0, CreatePartitions 0-1, DeleteGroups 0-1"
    ),
)
KAFKA_3_0 = Profile(
    "Apache Kafka 3.0",
    "the schemas in the sources of 3.0.0, of September 2021",
    ranges(
        "Produce 0-9, Fetch 0-12, ListOffsets 0-7, Metadata 0-11, OffsetCommit 0-8, OffsetFetch 0-8,"
        "FindCoordinator 0-4, JoinGroup 0-7, Heartbeat 0-4, LeaveGroup 0-4, SyncGroup 0-5, DescribeGroups 0-5,"
        "ListGroups 0-4, SaslHandshake 0-1, ApiVersions 0-3, CreateTopics 0-7, DeleteTopics 0-6, DeleteRecords 0-2,"
        "InitProducerId 0-4, OffsetForLeaderEpoch 0-4, AddPartitionsToTxn 0-3, AddOffsetsToTxn 0-3, EndTxn 0-3,"
        "WriteTxnMarkers 0-1, TxnOffsetCommit 0-3, DescribeAcls 0-2, CreateAcls 0-2, DeleteAcls 0-2,"
        "DescribeConfigs 0-4, AlterConfigs 0-2, AlterReplicaLogDirs 0-2, DescribeLogDirs 0-2, SaslAuthenticate 0-2,"
        "CreatePartitions 0-3, DeleteGroups 0-2, ElectLeaders 0-2, IncrementalAlterConfigs 0-1,"
        "AlterPartitionReassignments 0, ListPartitionReassignments 0, OffsetDelete 0, DescribeClientQuotas 0-1,"
        "AlterClientQuotas 0-1, DescribeCluster 0, DescribeProducers 0, DescribeTransactions 0, ListTransactions 0"
    ),
)
_KAFKA_3_4 = {
    **KAFKA_3_0.apis,
    **ranges("Fetch 0-13, Metadata 0-12, JoinGroup 0-9, LeaveGroup 0-5, DescribeLogDirs 0-4"),
}
EVENT_HUBS = Profile(
    "Azure Event Hubs, Standard",
    "what the service answered to clients: oliveigah/klife issue 13 (Produce to LeaveGroup), "
    "Azure/azure-event-hubs-for-kafka issues 209 (September 2022; no transactions) and 69 (the rest, 2020), "
    "twmb/franz-go pull request 1022 (May 2025; ApiVersions 4 resets the connection)",
    ranges(
        "Produce 0-7, Fetch 4-6, ListOffsets 0-8, Metadata 0-5, OffsetCommit 0-8, OffsetFetch 0-8, FindCoordinator 0-4,"
        "JoinGroup 0-9, Heartbeat 0-4, LeaveGroup 0-5, SyncGroup 0-1, DescribeGroups 0-1, ListGroups 0-1,"
        "SaslHandshake 0-1, ApiVersions 0-3, CreateTopics 0-2, DeleteTopics 0-2, OffsetForLeaderEpoch 0,"
        "DescribeConfigs 0-2, SaslAuthenticate 0-1, CreatePartitions 0-1, DeleteGroups 0"
    ),
    hangs_up_on_api_versions=True,
)
KOP = Profile(
    "Pulsar with KoP",
    "streamnative/kop at its last commit, of January 2024: it advertises all that the client of Kafka 3.4.1 knows, and "
    "answers UNSUPPORTED_VERSION where it has no handler",
    _KAFKA_3_4,
    refused=dict.fromkeys(
        (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.DESCRIBE_LOG_DIRS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.OFFSET_DELETE,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ),
        ErrorCode.unsupported_version,
    ),
)
URSA = Profile(
    "StreamNative Ursa",
    "docs.streamnative.io, Kafka Protocol and Features, as stored in 2025; versions are not documented, those of "
    "Kafka 3.4 are taken",
    {
        **_only(
            _KAFKA_3_4,
            *_TRANSACTIONS,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.DESCRIBE_ACLS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            ApiKey.DESCRIBE_LOG_DIRS,
            ApiKey.ELECT_LEADERS,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
        )
    },
    no_transactional_ids=True,
)
REDPANDA = Profile(
    "Redpanda",
    "the handlers in the sources of redpanda-data/redpanda, of December 2024; docs.redpanda.com, Kafka Compatibility "
    "26.1, of August 2026, names no other exceptions in them",
    ranges(
        "Produce 0-7, Fetch 4-11, ListOffsets 0-4, Metadata 0-8, OffsetCommit 1-8, OffsetFetch 1-7,"
        "FindCoordinator 0-3, JoinGroup 0-6, Heartbeat 0-4, LeaveGroup 0-4, SyncGroup 0-4, DescribeGroups 0-5,"
        "ListGroups 0-4, SaslHandshake 0-1, ApiVersions 0-3, CreateTopics 0-6, DeleteTopics 0-5, DeleteRecords 0-2,"
        "InitProducerId 0-3, OffsetForLeaderEpoch 0-4, AddPartitionsToTxn 0-3, AddOffsetsToTxn 0-1, EndTxn 0-3,"
        "TxnOffsetCommit 0-3, DescribeAcls 0-2, CreateAcls 0-2, DeleteAcls 0-2, DescribeConfigs 0-4, AlterConfigs 0-2,"
        "DescribeLogDirs 0-2, SaslAuthenticate 0-2, CreatePartitions 0-3, DeleteGroups 0-2,"
        "IncrementalAlterConfigs 0-1, AlterPartitionReassignments 0, ListPartitionReassignments 0, OffsetDelete 0,"
        "DescribeClientQuotas 0-1, AlterClientQuotas 0-1, DescribeProducers 0, DescribeTransactions 0,"
        "ListTransactions 0"
    ),
)
WARPSTREAM = Profile(
    "WarpStream",
    "docs.warpstream.com, Protocol and Feature Support, as stored in 2025; versions are not documented, those of "
    "Kafka 3.0 are taken",
    _only(
        KAFKA_3_0.apis,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_PRODUCERS,
    ),
)
AUTOMQ = Profile(
    "AutoMQ",
    "the schemas in the sources of AutoMQ/automq (Kafka 3.9), of August 2026",
    {
        **_KAFKA_3_4,
        **ranges(
            "Produce 0-11, Fetch 0-17, ListOffsets 0-9, OffsetCommit 0-9, OffsetFetch 0-9, FindCoordinator 0-6,"
            "ListGroups 0-5, ApiVersions 0-4, InitProducerId 0-5, AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4,"
            "EndTxn 0-4, TxnOffsetCommit 0-4, DescribeAcls 0-3, CreateAcls 0-3, DeleteAcls 0-3, DescribeCluster 0-1,"
            "ListTransactions 0-1, ConsumerGroupHeartbeat 0, ConsumerGroupDescribe 0"
        ),
    },
)
LEAST = Profile(
    "a service with the least",
    "no service: what reads and writes cannot do without, and time look-ups refused",
    ranges("Produce 3, Fetch 4, ListOffsets 1, Metadata 1, ApiVersions 0"),
    no_times=ErrorCode.invalid_request,
)

PROFILES = (KAFKA_1_0, KAFKA_2_0, KAFKA_3_0, EVENT_HUBS, KOP, URSA, REDPANDA, WARPSTREAM, AUTOMQ, LEAST)


def lacks(profile: Profile, feature: Feature) -> bool:
    """Whether brokers of the profile do not serve what the feature needs."""
    return any(profile.apis.get(api, (0, -1))[1] < lowest for api, lowest in feature.needs.items())


def needs_table() -> str:
    """The APIs of each feature, for docs/how-to/other-brokers.md."""
    rows = (
        [
            feature.name,
            ", ".join(f"{api.title} {lowest}" for api, lowest in feature.needs.items()),
            feature.since or "none",
            feature.instead,
        ]
        for feature in FEATURES
    )
    return table(["feature", "APIs, with the lowest version", "Kafka since", "without them"], rows)


def services_table() -> str:
    """What works on each profile, for the same page."""
    chosen = [feature for feature in FEATURES if feature.since]
    rows = (
        [profile.name, *(_works(profile, feature) for feature in chosen)] for profile in PROFILES if profile != LEAST
    )
    return table(["brokers", *(feature.name for feature in chosen)], rows)


def sources_table() -> str:
    return table(["brokers", "source"], ([one.name, one.source] for one in PROFILES if one != LEAST))


def _works(profile: Profile, feature: Feature) -> str:
    if not lacks(profile, feature):
        return "yes"
    return "set it to false" if feature is IDEMPOTENT else "no"
