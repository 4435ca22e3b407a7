"""Fetch with its limits, waits, sessions and epochs; ListOffsets, OffsetForLeaderEpoch, DeleteRecords; log directories,
elections and reassignments of the topic that is read."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking, versions
from tests.support.raw_requests import NO_ID, ask_for, batch, fetch_body

RECORDS = 10
BY_NAME, BY_ID = (4, 5, 7, 11, 12), (13, 15, 16)
FIRST_WITH_EPOCH = 9
WAIT_MS, LONG_WAIT_MS = 700, 3000
TIME = 1_700_000_000_000  # of every record

Wanted = Sequence[Mapping[str, Any]]


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}f"
    topic_id = asking.create(topic, 2)
    for number in range(RECORDS):
        stored = asking.requests.produce({(topic, 0): batch(b"v%d" % number * 10)}, version=9)[topic, 0]
        assert stored.error_code is ErrorCode.none
    _ranges(asking, topic)
    _by_id(asking, topic_id)
    _waits(asking, topic)
    _sessions_and_epochs(asking, topic)
    _list_offsets(asking, topic)
    _leader_epochs(asking, topic)
    _delete_records(asking, topic)
    _of_the_cluster(asking, topic)


def _fetch(asking: Asking, name: str, wanted: Wanted, version: int = 12, **body: Any) -> Any:
    def pick(answer: Any) -> Any:
        partitions = [partition for topic in answer["responses"] for partition in topic["partitions"]]
        return {
            "error": answer.get("error_code"),
            "session": answer.get("session_id") not in (0, None),
            "parts": sorted(partitions, key=lambda one: (one["partition_index"], one["error_code"])),
        }

    return asking.ask(f"Fetch {name}", ApiKey.FETCH, fetch_body(wanted, **body), version, pick)


def _ranges(asking: Asking, topic: str) -> None:
    first, second = ask_for(topic), ask_for(topic, 0, 1)
    asked: dict[str, tuple[Wanted, dict[str, int]]] = {
        "start": ([first], {}),
        "mid": ([ask_for(topic, 3)], {}),
        "end": ([ask_for(topic, RECORDS)], {}),
        "beyond": ([ask_for(topic, RECORDS + 1)], {}),
        "neg": ([ask_for(topic, -1)], {}),
        "unknown topic": ([ask_for("nope-y")], {}),
        "unknown part": ([ask_for(topic, 0, 9)], {}),
        "bad name": ([ask_for("a/b")], {}),
        "max bytes 1": ([first], {"max_bytes": 1}),
        "partition max 1": ([ask_for(topic, max_bytes=1)], {}),
        "partition max 250": ([ask_for(topic, max_bytes=250)], {}),
        "max 250": ([first], {"max_bytes": 250}),
        "max bytes 0": ([first], {"max_bytes": 0}),
        "part max 0": ([ask_for(topic, max_bytes=0)], {}),
        "part max neg": ([ask_for(topic, max_bytes=-1)], {}),
        "empty": ([], {}),
        "two parts, 2nd empty": ([{"topic": topic, "partitions": first["partitions"] + second["partitions"]}], {}),
        "same part twice": ([{"topic": topic, "partitions": first["partitions"] * 2}], {}),
    }
    of_epochs = {"epoch 5": ask_for(topic, epoch=5), "epoch 0": ask_for(topic, epoch=0)}
    for version in BY_NAME:
        for name, (wanted, limits) in asked.items():
            _fetch(asking, name, wanted, version, **limits)
        for name, one in of_epochs.items() if version >= FIRST_WITH_EPOCH else ():
            _fetch(asking, name, [one], version)


def _by_id(asking: Asking, topic_id: uuid.UUID) -> None:
    for version in BY_ID:
        _fetch(asking, "by id", [ask_for(topic_id)], version)
        _fetch(asking, "unknown id", [ask_for(uuid.UUID(int=5))], version)
        _fetch(asking, "zero id", [ask_for(NO_ID)], version)
        _fetch(asking, "id unknown part", [ask_for(topic_id, 0, 9)], version)


def _waits(asking: Asking, topic: str) -> None:
    """Each answer, and whether it took the time that was given, or none."""
    end = ask_for(topic, RECORDS)
    for name, noted, wanted, wait_ms, min_bytes in (
        ("wait", "waited", [end], WAIT_MS, 1),
        ("min bytes 0", "min 0 waited", [end], LONG_WAIT_MS, 0),
        ("min bytes big", "minbytes waited", [ask_for(topic)], WAIT_MS, 1 << 20),
        ("error with wait", "err waited", [ask_for(topic, 99)], LONG_WAIT_MS, 1),
        ("err and good with wait", "err2 waited", [ask_for("nope-y"), end], LONG_WAIT_MS, 1),
    ):
        began = time.monotonic()
        _fetch(asking, name, wanted, max_wait=wait_ms, min_bytes=min_bytes)
        waited_ms = (time.monotonic() - began) * 1000
        # What ends early is noted as true where the wait is long, what waits where it is short.
        asking.note(
            f"Fetch {noted}", waited_ms < wait_ms / 2 if wait_ms == LONG_WAIT_MS else waited_ms > 0.85 * wait_ms
        )


def _sessions_and_epochs(asking: Asking, topic: str) -> None:
    begun = _fetch(asking, "new session", [ask_for(topic)], session_epoch=0)
    session = begun.session_id
    _fetch(asking, "session 1 incremental", [], session_id=session, session_epoch=1)
    _fetch(asking, "session wrong epoch", [], session_id=session, session_epoch=7)
    _fetch(asking, "session unknown", [ask_for(topic)], session_id=123456, session_epoch=1)
    _fetch(asking, "session close unknown", [ask_for(topic)], session_id=123456, session_epoch=-1)
    for name, offset, fetched in (("last fetched epoch", RECORDS, 0), ("last fetched epoch 7", 5, 7)):
        (partition,) = ask_for(topic, offset, epoch=0)["partitions"]
        _fetch(asking, name, [{"topic": topic, "partitions": [{**partition, "last_fetched_epoch": fetched}]}])
    _fetch(asking, "replica 0 not follower", [ask_for(topic)])

    def pick(answer: Any) -> Any:
        partitions = [partition for topic in answer["responses"] for partition in topic["partitions"]]
        return [answer["error_code"], [partition["error_code"] for partition in partitions]]

    body = {**fetch_body([ask_for(topic)]), "replica_id": 5}
    asking.ask("Fetch as replica 5", ApiKey.FETCH, body, 12, pick)


def _list_offset(
    asking: Asking,
    name: str,
    topic: str,
    timestamp: int = -1,
    *,
    version: int = 8,
    part: int = 0,
    epoch: int = -1,
    committed: bool = False,
    replica: int = -1,
) -> None:
    asked = {"partition_index": part, "current_leader_epoch": epoch, "timestamp": timestamp}
    body = {
        "replica_id": replica,
        "isolation_level": int(committed),
        "topics": [{"name": topic, "partitions": [asked]}],
        "timeout": 1000,
    }

    def pick(answer: Any) -> Any:
        partitions = [partition for one in answer["topics"] for partition in one["partitions"]]
        if name not in ("-1", "-2", "-4", "-5"):
            for partition in partitions:
                partition["timestamp"] = partition["timestamp"] not in (-1, None)
        return partitions

    asking.ask(f"ListOffsets {name}", ApiKey.LIST_OFFSETS, body, version, pick)


def _list_offsets(asking: Asking, topic: str) -> None:
    for version in versions(ApiKey.LIST_OFFSETS):
        for special in range(-1, -7, -1):
            _list_offset(asking, str(special), topic, special, version=version)
        for name, moment in (("0", 0), (str(TIME), TIME), (str(TIME + 1), TIME + 1), ("far", TIME * 2)):
            _list_offset(asking, f"time {name}", topic, moment, version=version)
        _list_offset(asking, "unknown", "nope-y", version=version)
        _list_offset(asking, "bad part", topic, version=version, part=9)
        _list_offset(asking, "bad name", "a/b", version=version)
        _list_offset(asking, "epoch 9", topic, version=version, epoch=9)
        _list_offset(asking, "epoch 0", topic, version=version, epoch=0)
        _list_offset(asking, "iso 1", topic, version=version, committed=True)
        _list_offset(asking, "empty part latest", topic, version=version, part=1)
        _list_offset(asking, "empty part -3", topic, -3, version=version, part=1)
        _list_offset(asking, "empty part time", topic, 0, version=version, part=1)
        _list_offset(asking, "as replica 5", topic, version=version, replica=5)
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": topic, "partitions": [asked] * 2}]
    body = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
    asking.ask("ListOffsets dup", ApiKey.LIST_OFFSETS, body, 8)


def _leader_epochs(asking: Asking, topic: str) -> None:
    asked = {
        "0": (topic, 0, -1, 0),
        "-1": (topic, 0, -1, -1),
        "5": (topic, 0, -1, 5),
        "cur 7": (topic, 0, 7, 0),
        "cur 0": (topic, 0, 0, 0),
        "unknown": ("nope-y", 0, -1, 0),
        "part": (topic, 9, -1, 0),
        "empty": (topic, 1, -1, 0),
    }
    for name, (of_topic, index, current, epoch) in asked.items():
        partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"topic": of_topic, "partitions": [partition]}]}
        asking.ask_all(f"OffsetForLeaderEpoch {name}", ApiKey.OFFSET_FOR_LEADER_EPOCH, body)


def _delete_records(asking: Asking, topic: str) -> None:
    def delete(name: str, of_topic: str, index: int, offset: int, version: int) -> None:
        topics = [{"name": of_topic, "partitions": [{"partition_index": index, "offset": offset}]}]
        asking.ask(f"DeleteRecords {name}", ApiKey.DELETE_RECORDS, {"topics": topics, "timeout": 5000}, version)

    for version in versions(ApiKey.DELETE_RECORDS):
        delete("beyond", topic, 0, RECORDS + 1, version)
        delete("neg", topic, 0, -2, version)
        delete("3", topic, 0, 3, version)
        delete("lower again", topic, 0, 1, version)
        delete("unknown", "nope-y", 0, 1, version)
        delete("part", topic, 9, 1, version)
        delete("bad name", "a/b", 0, 1, version)
        delete("empty -1", topic, 1, -1, version)
        delete("internal", "__consumer_offsets", 0, -1, version)
    compacted = f"{asking.prefix}cmp2"
    asking.create(compacted, 1, cleanup_policy="compact")
    delete("compact", compacted, 0, 0, 2)
    _fetch(asking, "below start", [ask_for(topic, 1)])
    for name, moment in (("-2", -2), ("-4", -4), ("time 0", 0)):
        _list_offset(asking, name, topic, moment)


def _of_the_cluster(asking: Asking, topic: str) -> None:
    def directories(answer: Any) -> Any:
        for found in answer["results"]:
            for name in ("log_dir", "total_bytes", "usable_bytes"):
                found.pop(name, None)
            for one in found["topics"]:
                one["partitions"].sort(key=lambda partition: partition["partition_index"])
        return [answer.get("error_code"), answer["results"]]

    wanted = [{"topic": topic, "partitions": [0, 1, 7]}, {"topic": "nope-y", "partitions": [0]}]
    asking.ask_all("DescribeLogDirs", ApiKey.DESCRIBE_LOG_DIRS, {"topics": wanted}, directories)
    _elections(asking, topic)
    _reassignments(asking, topic)

    def cluster(answer: Any) -> Any:
        return {name: value for name, value in answer.items() if name not in ("brokers", "controller_id", "cluster_id")}

    for kind in (1, 2, 3):
        body: dict[str, Any] = {"include_cluster_authorized_operations": True, "endpoint_type": kind}
        asking.ask_all(f"DescribeCluster {kind}", ApiKey.DESCRIBE_CLUSTER, body, cluster)
    moved = [{"path": "/nope", "topics": [{"name": topic, "partitions": [0]}]}]
    asking.ask("AlterReplicaLogDirs", ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": moved})


def _elections(asking: Asking, topic: str) -> None:
    def pick(answer: Any) -> Any:
        results = answer["replica_election_results"]
        results.sort(key=lambda one: one["topic"])
        for one in results:
            one["partition_result"].sort(key=lambda partition: partition["partition_id"])
        return answer

    for kind in (0, 1, 5):
        wanted = [{"topic": topic, "partitions": [0, 9]}, {"topic": "nope-y", "partitions": [0]}]
        body = {"election_type": kind, "topic_partitions": wanted, "timeout": 3000}
        asking.ask_all(f"ElectLeaders {kind}", ApiKey.ELECT_LEADERS, body, pick)

    def needed(answer: Any) -> Any:
        """Kafka names every topic, with those partitions that need an election: none."""
        results = answer["replica_election_results"]
        return {**answer, "replica_election_results": [one for one in results if one["partition_result"]]}

    body = dict[str, Any](election_type=0, topic_partitions=None, timeout=3000)
    asking.ask("ElectLeaders all", ApiKey.ELECT_LEADERS, body, 2, needed)


def _reassignments(asking: Asking, topic: str) -> None:
    ours = asking.broker_id
    for name, of_topic, index, replicas in (
        ("same", topic, 0, [ours]),
        ("unknown broker", topic, 0, [9]),
        ("cancel none", topic, 0, None),
        ("empty", topic, 0, []),
        ("dup", topic, 0, [ours, ours]),
        ("neg", topic, 0, [-1]),
        ("unknown part", topic, 9, [ours]),
        ("unknown", "nope-y", 0, [ours]),
        ("cancel unknown", "nope-y", 0, None),
    ):
        topics = [{"name": of_topic, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        body: dict[str, Any] = {"timeout": 3000, "topics": topics}
        asking.ask(f"AlterReassign {name}", ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, 0)
    for name, named in (("", None), (" x", [{"name": "nope-y", "partition_indexes": [0]}])):
        body = {"timeout": 3000, "topics": named}
        asking.ask(f"ListReassign{name}", ApiKey.LIST_PARTITION_REASSIGNMENTS, body)
