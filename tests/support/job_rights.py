"""The rights that each job of the connector needs: a table that tests/spark_connector/test_rights.py holds to be true,
and from which docs/how-to/rights.md is made.

With the rights of a job it works on a broker that denies all else. Without one of them it fails, or goes on as
`without` says. Read, Write, Delete and Alter include Describe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from broker.security.acl_types import CLUSTER_NAME, AclOperation, AclResourceType, PatternType, ResourcePattern
from tests.support.markdown_table import table


@dataclasses.dataclass(frozen=True)
class Place:
    """The resources of a right. `key`: by what tests find the name; `text`: how the documentation calls them."""

    type: AclResourceType
    key: str
    text: str
    pattern: PatternType = PatternType.LITERAL

    def pattern_of(self, names: Mapping[str, str]) -> ResourcePattern:
        name = CLUSTER_NAME if self.type is AclResourceType.CLUSTER else names[self.key]
        return ResourcePattern(self.type, name, self.pattern)


@dataclasses.dataclass(frozen=True)
class Right:
    operation: AclOperation
    place: Place
    without: str = ""
    """What the job does without it; empty if it fails."""

    def __str__(self) -> str:
        return f"{self.operation.title}-{self.place.type.title}"


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    what: str
    """Its options or command, as Markdown."""
    rights: tuple[Right, ...]

    @property
    def needed(self) -> tuple[Right, ...]:
        return tuple(right for right in self.rights if not right.without)

    @property
    def optional(self) -> tuple[Right, ...]:
        return tuple(right for right in self.rights if right.without)


_O, _R = AclOperation, AclResourceType
_PREFIX = "whose names begin with `transactionalIdPrefix` (`pykafka-sink`) and `-`"
TOPIC = Place(_R.TOPIC, "topic", "topic that is read")
SINK = Place(_R.TOPIC, "sink", "topic that is written")
ANY_TOPIC = Place(_R.TOPIC, "topic", "topic")
BAD_RECORDS = Place(_R.TOPIC, "bad", "topic of `badRecordsTopic`")
GROUP = Place(_R.GROUP, "group", "group")
CLUSTER = Place(_R.CLUSTER, "", "cluster")
SINK_GROUPS = Place(_R.GROUP, "prefix", f"groups {_PREFIX}", PatternType.PREFIXED)
SINK_IDS = Place(_R.TRANSACTIONAL_ID, "prefix", f"transactional ids {_PREFIX}", PatternType.PREFIXED)
COPY = Place(_R.TOPIC, "copy", "copy of a topic")
SYNCS = Place(_R.TOPIC, "syncs", "topic `pykafka-offset-syncs.<source alias>.internal`")
CHECKPOINTS = Place(_R.TOPIC, "checkpoints", "topic `<source alias>.checkpoints.internal`")
MIRROR_ID = Place(_R.TRANSACTIONAL_ID, "mirror", "transactional id `pykafka-mirror.<source alias>.<target alias>`")
TRANSACTIONS = Place(_R.TRANSACTIONAL_ID, "transaction", "transactional id")

SIZES = Right(
    _O.DESCRIBE, CLUSTER, "sizes of records are estimated from samples, which takes a fetch for each partition"
)
LIMIT = Right(
    _O.DESCRIBE_CONFIGS,
    CLUSTER,
    "`transaction.max.timeout.ms` of the brokers is taken for 15 minutes; set `kafka.transaction.timeout.ms` if it is "
    "less",
)
READ = Right(_O.READ, TOPIC)
WRITE_IDS = Right(_O.WRITE, SINK_IDS)
PUBLISH = Right(_O.READ, GROUP, "the load is committed, its offsets are not published to the group; a warning says so")

NOT_MOVED = "the group's offsets are not committed at the target; a warning says so"

JOBS = (
    Job("batch read", "`spark.read`", (READ, SIZES)),
    Job(
        "batch read from committed offsets",
        "`startingOffsets=committed`, `offsetStore=group`",
        (READ, Right(_O.DESCRIBE, GROUP), SIZES),
    ),
    Job("read with a topic of bad records", "`badRecordsTopic`", (READ, Right(_O.WRITE, BAD_RECORDS), SIZES)),
    Job("stream", "`spark.readStream`", (READ, SIZES)),
    Job(
        "stream that commits to a group",
        "`offsetStore=group`; with `startingOffsets=committed` Describe on the group is needed",
        (READ, Right(_O.READ, GROUP, "the stream goes on, its offsets are not committed; a warning says so"), SIZES),
    ),
    Job("batch write, at least once", "`delivery=at-least-once`", (Right(_O.WRITE, SINK),)),
    Job(
        "stream write, at least once",
        "`delivery=at-least-once`",
        (
            Right(_O.WRITE, SINK),
            Right(_O.DESCRIBE, SINK_GROUPS, "it is not noticed if the query was exactly-once before"),
        ),
    ),
    Job(
        "batch write, exactly once",
        "`delivery=exactly-once`",
        (Right(_O.WRITE, SINK), WRITE_IDS, LIMIT),
    ),
    Job(
        "stream write, exactly once",
        "`delivery=exactly-once`; decisions are offsets of the topic that groups commit, therefore Read on it; the "
        "same with `txnAppId`",
        (
            Right(_O.WRITE, SINK),
            Right(_O.READ, SINK),
            WRITE_IDS,
            Right(_O.READ, SINK_GROUPS),
            LIMIT,
        ),
    ),
    Job("load", "`load()`, `watch()`, `pykafka load`, `pykafka load --watch`", (READ, PUBLISH, SIZES)),
    Job(
        "verify",
        "`verify()`, `pykafka loads verify`",
        (
            READ,
            Right(
                _O.DESCRIBE_CONFIGS,
                TOPIC,
                "the topic counts as compacted: rows that the log does not have are noted, and are no problem",
            ),
        ),
    ),
    Job(
        "mirror, at the source",
        "`pykafka mirror`, the user of `--source-config`",
        (
            READ,
            Right(_O.DESCRIBE_CONFIGS, TOPIC),
            Right(_O.DESCRIBE, GROUP, "the group's offsets are not mirrored"),
        ),
    ),
    Job(
        "mirror, at the target",
        "`pykafka mirror`, the user of `--target-config`; Create on the cluster does for all topics; Alter on a copy "
        "is needed where its source gets more partitions",
        (
            *(Right(one, COPY) for one in (_O.CREATE, _O.WRITE, _O.ALTER_CONFIGS)),
            *(Right(one, SYNCS) for one in (_O.CREATE, _O.WRITE, _O.READ)),
            *(Right(one, CHECKPOINTS) for one in (_O.CREATE, _O.WRITE)),
            Right(_O.WRITE, MIRROR_ID),
            Right(_O.READ, COPY, NOT_MOVED),
            Right(_O.READ, GROUP, NOT_MOVED),
        ),
    ),
    Job(
        "console in the browser",
        "`pykafka ui`",
        (
            Right(_O.DESCRIBE, ANY_TOPIC, "the topic is not listed, and no group's lag in it is known"),
            Right(_O.READ, ANY_TOPIC, "the page of the topic's records says which right is lacking"),
            Right(_O.DESCRIBE_CONFIGS, ANY_TOPIC, "the topic's settings are not shown"),
            Right(_O.DESCRIBE, GROUP, "the group is listed if Describe on the cluster is granted, without offsets"),
            Right(_O.DESCRIBE, TRANSACTIONS, "its transactions are not listed"),
            Right(_O.DESCRIBE, CLUSTER, "no sizes and directories are shown; groups are listed by their own rights"),
            Right(_O.DESCRIBE_CONFIGS, CLUSTER, "the settings of brokers are not shown"),
        ),
    ),
)


def job_rights() -> str:
    """As Markdown."""
    return table(["job", "right", "on", "without it"], _rows())


def _rows() -> Iterator[list[str]]:
    for job in JOBS:
        for number, right in enumerate(job.rights):
            name = "" if number else f"**{job.name}**: {job.what}"
            yield [name, right.operation.title, right.place.text, right.without or "the job fails"]
