"""CreateTopics, CreatePartitions, DeleteTopics, Metadata, DescribeTopicPartitions: names, counts, assignments."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking, versions
from tests.support.raw_requests import NO_ID
from tests.support.waiting import eventually

CREATE_IN = (2, 4, 5, 7)
NAMES = ("", ".", "..", "a b", "a/b", "ü", "x" * 249, "x" * 250, "@.und", "@_und")
SETTINGS: Sequence[tuple[str, str | None]] = [
    ("bogus", "1"),
    ("retention.ms", "x"),
    ("retention.ms", "-2"),
    ("retention.ms", "-1"),
    ("cleanup.policy", "nope"),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", ""),
    ("min.insync.replicas", "0"),
    ("min.insync.replicas", "5"),
    ("compression.type", "brotli"),
    ("compression.type", "gzip"),
    ("max.message.bytes", "-1"),
    ("segment.bytes", "10"),
    ("segment.bytes", "14"),
    ("segment.bytes", "1048576"),
    ("message.timestamp.type", "x"),
    ("message.format.version", "2.0"),
    ("unclean.leader.election.enable", "yes"),
    ("unclean.leader.election.enable", "TRUE"),
    ("min.cleanable.dirty.ratio", "2"),
    ("min.cleanable.dirty.ratio", "nan"),
    ("retention.ms", None),
    ("retention.ms", ""),
    ("retention.ms", " 5 "),
    ("segment.ms", "0"),
    ("file.delete.delay.ms", "-1"),
    ("remote.storage.enable", "true"),
    ("leader.replication.throttled.replicas", "0:1"),
    ("leader.replication.throttled.replicas", "z"),
    ("compression.gzip.level", "20"),
    ("compression.zstd.level", "5"),
    ("message.timestamp.before.max.ms", "5"),
    ("message.timestamp.difference.max.ms", "5"),
    ("local.retention.ms", "9"),
    ("preallocate", "true"),
    ("flush.messages", "0"),
    ("index.interval.bytes", "-1"),
    ("max.compaction.lag.ms", "0"),
    ("min.compaction.lag.ms", "9"),
    ("message.downconversion.enable", "false"),
    ("follower.replication.throttled.replicas", "*"),
]


def ask_all(asking: Asking) -> None:
    _create(asking)
    _create_with_settings(asking)
    _create_assigned(asking)
    _ask_create(asking, "empty request")
    _metadata(asking)
    _create_partitions(asking)
    _delete(asking)
    _pages(asking)


def _ask_create(
    asking: Asking,
    name: str,
    *topics: Mapping[str, Any],
    validate: bool = False,
    in_versions: Iterable[int] = CREATE_IN,
) -> None:
    """`@` in a topic's name stands for the run's prefix and the version."""
    defaults = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}

    def pick(answer: Any) -> Any:
        for topic in answer["topics"]:
            if topic.get("configs"):
                topic["configs"] = f"{len(topic['configs'])} configs"
        return answer["topics"]

    for version in in_versions:
        prefix = f"{asking.prefix}-{version}"
        wanted = [{**defaults, **topic, "name": topic["name"].replace("@", prefix)} for topic in topics]
        body = {"topics": wanted, "timeout": 30_000, "validate_only": validate}
        asking.ask(f"CreateTopics {name}", ApiKey.CREATE_TOPICS, body, version, pick)


def _create(asking: Asking) -> None:
    def ask(name: str, *topics: Mapping[str, Any], validate: bool = False) -> None:
        _ask_create(asking, name, *topics, validate=validate)

    ask("ok", {"name": "@a"})
    ask("again", {"name": "@a"})
    ask("validate", {"name": "@v"}, validate=True)
    ask("validate existing", {"name": "@a"}, validate=True)
    ask("dup in request", {"name": "@dup"}, {"name": "@dup"})
    ask("partitions -1 rf -1", {"name": "@d", "num_partitions": -1, "replication_factor": -1})
    ask("partitions 0", {"name": "@p0", "num_partitions": 0})
    ask("partitions -2", {"name": "@p2", "num_partitions": -2})
    for factor in (0, -2, 3):
        ask(f"rf {factor}", {"name": f"@r{factor}", "replication_factor": factor})
    for name in NAMES:
        ask(f"name {name[:10]!r} {len(name)}", {"name": name}, validate=name.startswith("xxx"))
    ask("collide 1", {"name": "@c.c"})
    ask("collide 2", {"name": "@c_c"})
    ask("__consumer_offsets", {"name": "__consumer_offsets"}, validate=True)


def _create_with_settings(asking: Asking) -> None:
    def configs(*settings: tuple[str, str | None]) -> Sequence[Mapping[str, Any]]:
        return [{"name": key, "value": value} for key, value in settings]

    for number, (key, value) in enumerate(SETTINGS):
        topic = {"name": f"@cfg{number}", "configs": configs((key, value))}
        _ask_create(asking, f"config {key}={value}", topic, validate=True, in_versions=(7,))
    crossed = configs(("max.compaction.lag.ms", "5"), ("min.compaction.lag.ms", "10"))
    _ask_create(asking, "compaction lag crossed", {"name": "@cl", "configs": crossed}, in_versions=(7,))
    twice = configs(("retention.ms", "5"), ("retention.ms", "10"))
    _ask_create(asking, "same config twice", {"name": "@c2", "configs": twice}, in_versions=(7,))


def _create_assigned(asking: Asking) -> None:
    ours = asking.broker_id
    cases: Mapping[str, Sequence[tuple[int, Sequence[int]]]] = {
        "ok": [(0, [ours]), (1, [ours])],
        "with partitions": [(0, [ours])],
        "unknown": [(0, [9])],
        "dup": [(0, [ours, ours])],
        "gap": [(1, [ours])],
        "gap2": [(0, [ours]), (2, [ours])],
        "empty": [(0, [])],
        "same partition": [(0, [ours]), (0, [ours])],
        "negative": [(-1, [ours])],
    }
    for number, (name, assigned) in enumerate(cases.items()):
        count = 1 if name == "with partitions" else -1
        topic = {
            "name": f"@as{number}",
            "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assigned],
            "num_partitions": count,
            "replication_factor": count,
        }
        _ask_create(asking, f"assign {name}", topic, in_versions=(7,))


def _metadata(asking: Asking) -> None:
    made, automatic = f"{asking.prefix}-7a", f"{asking.prefix}auto"

    def body(*topics: tuple[str | None, uuid.UUID], create: bool = False) -> Mapping[str, Any]:
        asked = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
        return {"topics": asked, "allow_auto_topic_creation": create}

    def whole(answer: Any) -> Any:
        return {name: value for name, value in answer.items() if name not in ("brokers", "cluster_id")}

    def topics(answer: Any) -> Any:
        return answer["topics"]

    operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    asking.ask_all("Metadata one", ApiKey.METADATA, {**body((made, NO_ID)), **operations}, whole)
    for name in ("nope-x", "a/b", "", "x" * 250):
        asking.ask_all(f"Metadata name {name[:6]!r}", ApiKey.METADATA, body((name, NO_ID)), topics)
    asking.ask("Metadata autocreate bad", ApiKey.METADATA, body(("a/b", NO_ID), create=True), 12, topics)
    asking.ask("Metadata autocreate", ApiKey.METADATA, body((automatic, NO_ID), create=True), 12, topics)
    eventually(lambda: asking.requests.metadata(automatic, version=12).topics[0].error_code == 0)
    asking.ask("Metadata autocreate after", ApiKey.METADATA, body((automatic, NO_ID), create=True), 12, topics)
    asking.ask("Metadata by unknown id", ApiKey.METADATA, body((None, uuid.UUID(int=99)), create=True), 12, topics)
    asking.ask("Metadata by zero id", ApiKey.METADATA, body((None, NO_ID), create=True), 12, topics)
    asking.ask("Metadata twice", ApiKey.METADATA, body((made, NO_ID), (made, NO_ID)), 12, topics)
    asking.ask("Metadata empty", ApiKey.METADATA, body(), 12, topics)


def _create_partitions(asking: Asking) -> None:
    topic, ours = f"{asking.prefix}-7a", asking.broker_id

    def ask(name: str, version: int, *topics: tuple[str, int, Sequence[int] | None]) -> None:
        asked = [
            {"name": one, "count": count, "assignments": None if brokers is None else [{"broker_ids": brokers}]}
            for one, count, brokers in topics
        ]
        body = {"topics": asked, "timeout": 5000, "validate_only": False}
        asking.ask(f"CreatePartitions {name}", ApiKey.CREATE_PARTITIONS, body, version)

    for version in versions(ApiKey.CREATE_PARTITIONS):
        ask("more", version, (topic, 3 + version, None))
        ask("same", version, (topic, 3 + version, None))
        ask("fewer", version, (topic, 1, None))
        ask("zero", version, (topic, 0, None))
        ask("neg", version, (topic, -1, None))
        ask("unknown", version, ("nope-x", 3, None))
        ask("bad name", version, ("a/b", 3, None))
        ask("assign wrong n", version, (topic, 10, [ours]))
        ask("assign unknown", version, (topic, 4 + version, [9]))
        ask("assign two", version, (topic, 4 + version, [ours, ours]))
        ask("assign none", version, (topic, 4 + version, []))
    ask("dup", 3, (topic, 20, None), (topic, 20, None))


def _delete(asking: Asking) -> None:
    def ask(name: str, *topics: tuple[str | None, uuid.UUID], version: int = 6) -> None:
        body = {
            "topics": [{"name": one, "topic_id": topic_id} for one, topic_id in topics],
            "topic_names": [one for one, _ in topics],
            "timeout": 30_000,
        }
        asking.ask(f"DeleteTopics {name}", ApiKey.DELETE_TOPICS, body, version)

    for version in versions(ApiKey.DELETE_TOPICS):
        ask("unknown", ("nope-x", NO_ID), version=version)
        ask("bad name", ("a/b", NO_ID), version=version)
    first, second = (f"{asking.prefix}-5a", NO_ID), (f"{asking.prefix}-4a", NO_ID)
    ask("same twice", first, first)
    ask("ok", second)
    ask("again", second)
    ask("none")
    ask("by unknown id", (None, uuid.UUID(int=77)))
    ask("by name and id", ("x", uuid.UUID(int=77)))
    ask("by neither", (None, NO_ID))


def _pages(asking: Asking) -> None:
    topic = f"{asking.prefix}dtp"
    asking.create(topic, 3)
    for name, topics, index in (
        ("two", (topic, "nope-x"), None),
        ("cursor", (topic,), 2),
        ("cursor neg", (topic,), -2),
        ("cursor beyond", (topic,), 9),
        ("bad name", ("a/b",), None),
    ):
        body = {
            "topics": [{"name": one} for one in topics],
            "response_partition_limit": 2,
            "cursor": None if index is None else {"topic_name": topic, "partition_index": index},
        }
        asking.ask(f"DescribeTopicPartitions {name}", ApiKey.DESCRIBE_TOPIC_PARTITIONS, body)
