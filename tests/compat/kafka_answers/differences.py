"""The wanted differences from Apache Kafka 3.8.1's answers, area by area. One that is no difference any more fails the
test, as does one that is not here. docs/compatibility.md has a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.compat.kafka_answers.comparing import ABSENT, ANYTHING, Difference

AFTER_MAX = Difference(
    "`message.timestamp.after.max.ms` is 1 h",
    "Kafka 4's default (KIP-1030); 3.8.1 has no limit. A record from a clock that is wrong would keep its segment from "
    "retention for years",
    ("DescribeConfigs topic*", "DescribeConfigs broker"),
    {"*message.timestamp.after.max.ms.value": "3600000"},
)

_REMOVED = {"message.downconversion.enable", "message.format.version", "message.timestamp.difference.max.ms"}
_NEW = {"archive.topic.id", "remote.log.copy.disable", "remote.log.delete.on.disable"}

PRODUCE = [
    Difference(
        "Null records are answered",
        "INVALID_RECORD; Kafka 3.8.1 never answers, and the client waits for its time-out",
        ("Produce null records",),
        {
            "": lambda one: (
                (one.kafka, one.ours["error_code"], one.ours["base_offset"]) == ("no answer", "invalid_record", -1)
            )
        },
    ),
    Difference(
        "Records more than 1 h ahead are refused",
        "INVALID_TIMESTAMP, by the default of `message.timestamp.after.max.ms` above",
        ("Produce ts future",),
        {"error_code": "invalid_timestamp", "base_offset": -1, "record_errors": ANYTHING},
    ),
]

FETCH = [
    Difference(
        "A fetch gives whole batches",
        "Kafka cuts the last batch where the limit is; clients drop what is cut and fetch it again",
        ("Fetch partition max 250", "Fetch max 250"),
        {"parts.records": "176 bytes"},
    ),
    Difference(
        "Limits below 0 count as 0",
        "one batch is given; Kafka fails on them with UNKNOWN_SERVER_ERROR",
        ("Fetch part max neg",),
        {
            "parts.error_code": "none",
            "parts.high_watermark": 10,
            "parts.last_stable_offset": 10,
            "parts.log_start_offset": 0,
            "parts.records": "88 bytes",
        },
    ),
    Difference(
        "ListOffsets of unknown negative times is UNSUPPORTED_VERSION",
        "as of Kafka 4; 3.8.1 takes -5 and -6 for times, and finds the first record",
        ("ListOffsets -5", "ListOffsets -6"),
        {
            "error_code": "unsupported_version",
            "offset": -1,
            "timestamp": ANYTHING,
            "leader_epoch": -1,
        },
    ),
]

REMOVED = tuple(
    f"CreateTopics config {setting}"
    for setting in (
        "message.format.version=2.0",
        "message.timestamp.difference.max.ms=5",
        "message.downconversion.enable=false",
    )
)
TOPICS = [
    Difference(
        "So a new topic tells one setting more",
        "than 3.8.1 does",
        ("CreateTopics *",),
        {"configs": "35 configs"},
    ),
    Difference(
        "Settings that Kafka 4 removed are unknown",
        "`message.format.version`, `message.timestamp.difference.max.ms`, `message.downconversion.enable`: "
        "INVALID_CONFIG, as of Kafka 4, and the message says what to set instead. 3.8.1 takes them",
        REMOVED,
        {
            "error_code": "invalid_config",
            "configs": [],
            "num_partitions": -1,
            "replication_factor": -1,
            "topic_id": None,
        },
    ),
    Difference(
        "A topic created by its first use is there at once",
        "the answer has its partitions; KRaft says UNKNOWN_TOPIC_OR_PARTITION until its brokers have heard of it",
        ("Metadata name 'nope-x'", "Metadata autocreate"),
        {"error_code": "none", "partitions": ANYTHING, "topic_id": "uuid"},
    ),
    Difference(
        "Metadata by neither name nor id is UNKNOWN_TOPIC_ID",
        "Kafka fails with UNKNOWN_SERVER_ERROR",
        ("Metadata by zero id",),
        {"error_code": "unknown_topic_id", "name": None},
    ),
]

OF_BROKER = ("DescribeConfigs broker",)
BROKER = [
    Difference(
        "A broker has fewer settings",
        "what belongs to KRaft, threads, callbacks for quotas, the plugins of tiered storage, Java's TLS or plugins is "
        "not there",
        OF_BROKER,
        {"configs.*": ABSENT},
    ),
    Difference(
        "It has some of its own",
        "`docs/decisions.md` says why",
        OF_BROKER,
        {
            "configs.allow.everyone.if.no.acl.found": ANYTHING,
            "configs.archive.*": ANYTHING,
            "configs.errors.deadletterqueue.*": ANYTHING,
            "configs.group.share.*": ANYTHING,
            "configs.share.coordinator.*": ANYTHING,
            "configs.embedded.zookeeper.port": ANYTHING,
            "configs.logging.format": ANYTHING,
            "configs.metrics.auth.password": ANYTHING,
            "configs.metrics.auth.token": ANYTHING,
            "configs.metrics.auth.username": ANYTHING,
            "configs.metrics.listener": ANYTHING,
            "configs.quota.burst.ms": ANYTHING,
            "configs.slow.request.log.ms": ANYTHING,
            "configs.socket.request.receive.timeout.ms": ANYTHING,
            "configs.standalone": ANYTHING,
            "configs.super.users": ANYTHING,
        },
    ),
    Difference(
        "`zookeeper.session.timeout.ms` is 6 s",
        "18 s in Kafka, whose brokers may pause for garbage collection; `docs/decisions.md` says more",
        OF_BROKER,
        {"configs.zookeeper.session.timeout.ms.value": "6000"},
    ),
    Difference(
        "`sasl.oauthbearer.expected.audience` is an empty list while it is not set",
        "null in Kafka; both mean that no audience is expected",
        OF_BROKER,
        {"configs.sasl.oauthbearer.expected.audience.value": ""},
    ),
    Difference(
        "The throttles of replication are listed",
        "Kafka takes them, and does not list them while they are not set",
        OF_BROKER,
        {
            "configs.leader.replication.throttled.rate": ANYTHING,
            "configs.follower.replication.throttled.rate": ANYTHING,
        },
    ),
    Difference(
        "Where it listens and keeps its logs",
        "is each broker's own; unset, `advertised.listeners` is empty, and how brokers connect to each other null",
        OF_BROKER,
        {
            "configs.advertised.listeners.value": "",
            "configs.advertised.listeners.config_source": 5,
            "configs.inter.broker.listener.name.value": None,
            "configs.inter.broker.listener.name.config_source": 5,
            "configs.security.inter.broker.protocol.value": None,
            "configs.sasl.mechanism.inter.broker.protocol.value": None,
            "configs.listener.security.protocol.map.value": ANYTHING,
            "configs.listener.security.protocol.map.config_source": 5,
            "configs.listeners.value": ANYTHING,
            "configs.log.dirs.value": ANYTHING,
            "configs.zookeeper.connect.*": ANYTHING,
            "configs.zookeeper.sasl.jaas.config": ANYTHING,
        },
    ),
    Difference(
        "Lists are of type LIST",
        "Kafka calls those of listeners and directories STRING",
        OF_BROKER,
        {
            f"configs.{name}.config_type": 7
            for name in ("advertised.listeners", "listener.security.protocol.map", "listeners", "log.dirs")
        },
    ),
    Difference(
        "Listeners and TLS change by a restart",
        "their settings are read-only; Kafka alters them while it runs",
        OF_BROKER,
        {
            "configs.*listeners.read_only": True,
            "configs.listener.security.protocol.map.read_only": True,
            "configs.max.connections.per.ip.overrides.read_only": True,
            "configs.sasl.enabled.mechanisms.read_only": True,
            "configs.sasl.kerberos.*.read_only": True,
            "configs.sasl.mechanism.inter.broker.protocol.read_only": True,
            "configs.ssl.*.read_only": True,
            "configs.transaction.partition.verification.enable.read_only": True,
        },
    ),
    Difference(
        "Defaults of a process without a JVM",
        "`docs/decisions.md` says why: a bound on the memory of requests, buffers that the OS tunes, SCRAM where Kafka "
        "has GSSAPI, files in PEM where it has JKS, and a tick each second",
        OF_BROKER,
        {
            "configs.log.flush.scheduler.interval.ms.value": "1000",
            "configs.queued.max.request.bytes.value": "536870912",
            "configs.sasl.enabled.mechanisms.value": "SCRAM-SHA-256,SCRAM-SHA-512",
            "configs.socket.receive.buffer.bytes.value": "-1",
            "configs.socket.send.buffer.bytes.value": "-1",
            "configs.ssl.keystore.type.value": None,
            "configs.ssl.truststore.type.value": None,
        },
    ),
]

CONFIGS = [
    AFTER_MAX,
    Difference(
        "Those settings of topics are not described",
        "the three that Kafka 4 removed",
        ("DescribeConfigs topic*",),
        {
            "*message.downconversion.enable": ABSENT,
            "*message.format.version": ABSENT,
            "*message.timestamp.difference.max.ms": ABSENT,
        },
    ),
    Difference(
        "Nor are they listed",
        "where all settings of a topic are asked for",
        ("DescribeConfigs key list",),
        {"": lambda one: str(one.ours) not in _REMOVED},  # three are gone, and three are new: each name by itself
    ),
    Difference(
        "A topic has more settings for its archive",
        "`remote.log.copy.disable` and `remote.log.delete.on.disable` (KIP-950) are as of 3.9, "
        "`archive.topic.id` is ours",
        ("DescribeConfigs topic*",),
        dict.fromkeys(map("*{}".format, sorted(_NEW)), ANYTHING),
    ),
    Difference(
        "A topic may take dead letters of share groups",
        "`errors.deadletterqueue.group.enable` (KIP-1191) is as of 4.4",
        ("DescribeConfigs topic*",),
        {"*errors.deadletterqueue.group.enable": ANYTHING},
    ),
    *BROKER,
    Difference(
        "A look-up of offsets may wait for the archive",
        "`remote.list.offsets.request.timeout.ms` is as of 3.9",
        OF_BROKER,
        {"configs.remote.list.offsets.request.timeout.ms": ANYTHING},
    ),
    Difference(
        "An unknown setting of a broker is refused",
        "INVALID_REQUEST with the nearest name; Kafka keeps it for a plugin that may read it. Kafka's settings of its "
        "threads are unknown here",
        ("IncAlter broker bogus", "IncAlter broker cleaner threads"),
        {"": "invalid_request"},
    ),
    Difference(
        "An unknown operation on a setting is INVALID_REQUEST",
        "Kafka fails with UNKNOWN_SERVER_ERROR",
        ("IncAlter topic op 9",),
        {"": "invalid_request"},
    ),
    Difference(
        "A group has settings",
        "as of Kafka 4 (KIP-848); 3.8.1 says INVALID_REQUEST",
        ("DescribeConfigs 32/grp", "IncAlter type 32"),
        {"": lambda one: one.ours in ("none", True)},
    ),
    Difference(
        "Consumer groups and share groups are as of Kafka 4",
        "assignors have short names, members may change the protocol (`group.consumer.migration.policy`), patterns are "
        "looked up again, and 3.8.1 has no share groups",
        OF_BROKER,
        {
            "configs.group.consumer.assignors.value": "uniform,range",
            "configs.group.consumer.migration.policy.value": "bidirectional",
            "configs.group.consumer.regex.refresh.interval.ms": ANYTHING,
            "configs.group.share.*": ANYTHING,
        },
    ),
    Difference(
        "There are no subscriptions to client metrics",
        "INVALID_REQUEST: clients push no telemetry to this broker (KIP-714)",
        ("DescribeConfigs 16/sub", "IncAlter type 16"),
        {"": "invalid_request"},
    ),
]

GROUPS = [
    Difference(
        "A group has the operations of Kafka 4",
        "its settings can be described and altered (KIP-848); up to 3.9 it can be read, deleted and described",
        ("DescribeGroups *",),
        {"authorized_operations": 3400},
    ),
    Difference(
        "A commit of version 9 to a group that is not there is GROUP_ID_NOT_FOUND",
        "as of Kafka 4, where it names a generation; up to 3.9 ILLEGAL_GENERATION, as in older versions here",
        ("OffsetCommit generation of no group", "OffsetCommit instance of no group"),
        {"partitions.error_code": "group_id_not_found"},
    ),
]

EACH_SECOND = Difference(
    "A group that assigns anew has a heartbeat each second",
    "so that partitions change hands within a second or two; Kafka keeps the interval of the group",
    ("ConsumerGroupHeartbeat *",),
    {"heartbeat_interval": lambda one: (one.kafka, one.ours) == (5.0, 1.0)},
)

CONSUMER_GROUPS = [
    EACH_SECOND,
    Difference(
        "A group may name a topic for dead letters",
        "`errors.deadletterqueue.topic.name` and `errors.deadletterqueue.copy.record.enable` (KIP-1191) are as of 4.4",
        ("DescribeConfigs group that is not there",),
        {
            "results.configs": lambda one: (
                [each for each in one.ours if not each["name"].startswith("errors.deadletterqueue.")] == one.kafka
            )
        },
    ),
    Difference(
        "A pattern that cannot be read is refused before the epoch is looked at",
        "INVALID_REGULAR_EXPRESSION; Kafka says FENCED_MEMBER_EPOCH first",
        ("ConsumerGroupHeartbeat a bad pattern, later",),
        {"error_code": "invalid_regular_expression"},
    ),
    Difference(
        "Settings of streams groups are unknown",
        "INVALID_CONFIG: the groups of KIP-1071 are not served",
        ("AlterConfigs group streams.*",),
        {"responses.error_code": "invalid_config"},
    ),
]

SHARE_GROUPS = [
    Difference(
        "A member has its partitions with its first heartbeat",
        "it is answered when their share states are made; Kafka assigns them with the second heartbeat",
        ("ShareGroupHeartbeat of a short member id",),
        {"assignment": [2], "member_epoch": 3},
    ),
    Difference(
        "What a share fetch cannot read it says of the partition",
        "UNKNOWN_TOPIC_ID, and INVALID_REQUEST where the group has no share state; Kafka says UNKNOWN_SERVER_ERROR",
        ("ShareFetch sessions: an unknown id", "ShareFetch of an empty group"),
        {"*": ANYTHING},
    ),
    Difference(
        "Offsets that a member cannot have are INVALID_REQUEST",
        "in an acknowledgement that begins below 0, or has an offset twice; Kafka ignores the first",
        ("ShareAcknowledge acks: a negative offset", "ShareAcknowledge acks: overlapping batches"),
        {"responses.partitions.error_code": "invalid_request"},
    ),
    Difference(
        "The offset of a share group is as of the last acknowledgement",
        "Kafka stores that its start has moved with the next one",
        ("DescribeShareGroupOffsets acks: at the end", "DescribeShareGroupOffsets of *"),
        {"groups.topics.partitions.start_offset": ANYTHING},
    ),
    Difference(
        "The offsets of no share group are -1",
        "as of any group, if partitions are named; Kafka says UNKNOWN_SERVER_ERROR until its state topic is there",
        ("DescribeShareGroupOffsets without a group",),
        {"*": ANYTHING},
    ),
    Difference(
        "The lag of a share group is never below 0",
        "even if its offset was set behind the end of the partition",
        ("DescribeShareGroupOffsets that was set behind the end",),
        {"groups.topics.partitions.lag": 0},
    ),
    Difference(
        "Records that were delivered often come with few others",
        "half as many at each of the last deliveries, and alone at the last one; Kafka halves later",
        ("ShareFetch deliveries: at most one record, *",),
        {"responses.partitions.acquired_records*": ANYTHING},
    ),
]

TRANSACTIONS_V2 = [
    Difference(
        "A question about partitions has the code of its version",
        "INVALID_TXN_STATE in AddPartitionsToTxn 4, as of 3.8.1, TRANSACTION_ABORTABLE from 5 on (KIP-890); Kafka 4 "
        "tells brokers the newer code in both",
        ("AddPartitions verify *",),
        {"*partition_error_code": "invalid_txn_state"},
    ),
]

TRANSACTIONS = [
    Difference(
        "Each batch of a transaction is verified with its coordinator",
        "INVALID_PRODUCER_ID_MAPPING for another transactional id; Kafka asks only before the first of a partition, "
        "and takes those that follow",
        ("Produce other txid",),
        {"": lambda one: (one.kafka, one.ours) in (("none", "invalid_producer_id_mapping"), (2, -1))},
    ),
]

FOLLOWERS_FETCH = Difference(
    "A fetch with a replica id names leader epochs",
    "NOT_LEADER_OR_FOLLOWER without them: they show whether logs have diverged. Kafka counts the position nevertheless",
    ("Fetch leader, as replica 2",),
    {"error_code": "not_leader_or_follower", "*offset": -1, "high_watermark": -1},
)

CLUSTER = [
    Difference(
        "DescribeTopicPartitions of a topic without a name is INVALID_TOPIC",
        "Kafka fails with UNKNOWN_SERVER_ERROR",
        ("DescribeTopicPartitions no name",),
        {"error_code": "invalid_topic_exception", "topic_authorized_operations": ANYTHING},
    ),
    FOLLOWERS_FETCH,
    Difference(
        "A follower answers OFFSET_NOT_AVAILABLE beyond its end",
        "KIP-392; Kafka says OFFSET_OUT_OF_RANGE, and a client that takes it for the leader resets its offset",
        ("Fetch follower, beyond",),
        {"error_code": "offset_not_available"},
    ),
    Difference(
        "Replicas that a reassignment removes keep their order",
        "as with ZooKeeper, which has no DescribeTopicPartitions; KRaft sorts them",
        ("DescribeTopicPartitions two running",),
        {"partitions.replica_nodes": ANYTHING},
    ),
]

RIGHTS = [
    Difference(
        "A topic that a request for metadata creates is there at once",
        "as above; Kafka with ZooKeeper says LEADER_NOT_AVAILABLE",
        ("Metadata with Create *",),
        {"topics.error_code": "none", "topics.partitions": ANYTHING},
    ),
    Difference(
        "OffsetFetch 1 without a right on the group says so",
        "GROUP_AUTHORIZATION_FAILED for each partition; Kafka answers without any, as if nothing had been committed",
        ("OffsetFetch without Describe Group",),
        {"topics": ANYTHING},
    ),
    Difference(
        "The settings of a group need a right on it",
        "as of Kafka 4; 3.9 knows no settings of groups in these requests: INVALID_REQUEST",
        ("DescribeConfigs without *Configs Group", "*AlterConfigs without *Configs Group"),
        {"*.error_code": "group_authorization_failed"},
    ),
    Difference(
        "With the right they are shown and altered",
        "as of Kafka 4, too",
        ("DescribeConfigs with DescribeConfigs Group", "*AlterConfigs with AlterConfigs Group"),
        {"*.error_code": lambda one: one.ours in ("none", "invalid_config"), "results.configs": True},
    ),
]

ACLS = [
    Difference(
        "A group has the operations of Kafka 4 here, too",
        "DescribeConfigs and AlterConfigs, as above",
        ("Operations on a group: ALL", "Operations on a group: DENY DELETE"),
        {"operations": lambda one: one.ours == [*one.kafka, "DESCRIBE_CONFIGS", "ALTER_CONFIGS"]},
    ),
    Difference(
        "An ACL of an unknown type, operation or permission is INVALID_REQUEST",
        "Kafka hangs up, and fails with UNKNOWN_SERVER_ERROR where one stands for any",
        (
            "CreateAcls resource type [01]",
            "CreateAcls pattern type [012]",
            "CreateAcls permission [01]",
            "CreateAcls operation [01] on *",
        ),
        {"": {"results": [{"error_code": "invalid_request"}]}, "results.error_code": "invalid_request"},
    ),
    Difference(
        "So is one that could fit nobody or cannot be kept",
        "a principal that is no type and name, an empty host, a name that cannot be a node in ZooKeeper; Kafka takes "
        "them, but with ZooKeeper fails on such names",
        (
            *(f"CreateAcls principal {one!r}" for one in ("", "x", "User", "User:", ":x")),
            *("CreateAcls principal '[*]'", "CreateAcls name '.'", "CreateAcls name 'a\\nb'"),
            *("CreateAcls host ''", "CreateAcls one of two"),
        ),
        {"results.error_code": "invalid_request"},
    ),
    Difference(
        "TwoPhaseCommit is an operation",
        "as of Kafka 4 (KIP-939); 3.9 refuses it",
        ("CreateAcls operation 15 on *",),
        {"results.error_code": "none"},
    ),
    Difference(
        "A filter with an unknown term is INVALID_REQUEST",
        "Kafka hangs up on 0, and finds nothing for numbers that it does not know",
        (
            *("DescribeAcls *, unknown", "DescribeAcls *, 9", "DeleteAcls *, unknown"),
            *(f"D*Acls {what} 0" for what in ("resource type", "operation", "permission")),
            *(f"DescribeAcls {what} 99" for what in ("resource type", "operation", "permission")),
        ),
        {
            "error_code": "invalid_request",
            "": lambda one: "'error_code': 'invalid_request'" in repr(one.ours) and one.kafka == "closed",
        },
    ),
    Difference(
        "Each filter of a DeleteAcls counts for itself",
        "Kafka hangs up on a request in which one has an unknown term",
        ("DeleteAcls one that is wrong and one that is not", "DescribeAcls after them"),
        {
            "": lambda one: [found["error_code"] for found in one.ours] == ["invalid_request", "none"],
            "resources": lambda one: len(one.ours) == len(one.kafka) - 1,
        },
    ),
]

QUOTAS = [
    Difference(
        "A quota is a finite number",
        "INVALID_REQUEST; Kafka takes NaN, and infinity for percentages",
        ("AlterClientQuotas * nan", "AlterClientQuotas percentage inf"),
        {"error_code": "invalid_request"},
    ),
    Difference(
        "The removal of an unknown key is INVALID_REQUEST",
        "Kafka looks at the keys that are set only",
        ("AlterClientQuotas removal of an unknown key",),
        {"error_code": "invalid_request"},
    ),
    Difference(
        "An entity that is named twice is altered twice",
        "in the order of the request; KRaft refuses it, and with ZooKeeper the last counts",
        ("AlterClientQuotas an entity twice",),
        {"": lambda one: [entry["error_code"] for entry in one.ours] == ["none", "none"]},
    ),
]

WANTED: Mapping[str, Sequence[Difference]] = {
    "produce": PRODUCE,
    "fetch": FETCH,
    "topics": TOPICS,
    "configs": CONFIGS,
    "groups": GROUPS,
    "transactions": TRANSACTIONS,
    "quotas": QUOTAS,
    "rights": RIGHTS,
    "acls": ACLS,
    "cluster": CLUSTER,
    "consumer_groups": CONSUMER_GROUPS,
    "group_migration": [EACH_SECOND],
    "share_groups": SHARE_GROUPS,
    "topic_ids": (),
    "transactions_v2": TRANSACTIONS_V2,
}
