"""A cluster of three that is well: manual assignments, pages of topics, who answers what, elections, reassignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import versions
from tests.compat.kafka_answers.cluster_asking import ClusterAsking, partitions_of
from tests.support.raw_requests import ask_for, batch, fetch_body
from tests.support.waiting import eventually

PREFERRED, UNCLEAN = 0, 1
TOPIC_CONFIG, BROKER_CONFIG = 2, 4
LATEST, EARLIEST, GREATEST_TIME = -1, -2, -3
_EMPTY = {
    "aborted_transactions": None,
    "current_leader": {"leader_epoch": -1, "leader_id": -1},
    "diverging_epoch": {"end_offset": -1, "epoch": -1},
    "preferred_read_replica": -1,
    "snapshot_id": {"end_offset": -1, "epoch": -1},
}
"""What an answer to a Fetch has in most cases, and is left out."""


def ask_all(asking: ClusterAsking) -> None:
    asking.await_brokers()
    _brokers(asking)
    _create(asking)
    _grow(asking)
    _pages(asking)
    _roles(asking)
    _coordinators(asking)
    _elect(asking)
    _refused_reassignments(asking)
    _reassign(asking)


def _brokers(asking: ClusterAsking) -> None:
    def pick(answer: Any) -> Any:
        brokers = sorted([one["broker_id"], one["rack"]] for one in answer["brokers"])
        return [brokers, answer["controller_id"] in asking.alive, answer["cluster_authorized_operations"]]

    topic = asking.assign("racks", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    asking.ask_metadata("racks", topic, in_versions=versions(ApiKey.METADATA))
    body = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    asking.ask_all("DescribeCluster racks", ApiKey.DESCRIBE_CLUSTER, body, pick)


def _create(asking: ClusterAsking) -> None:
    """CreateTopics with assignments, good and bad."""

    def create(
        name: str,
        assignment: Sequence[tuple[int, Sequence[int]]] = (),
        *,
        topic: str = "",
        validate_only: bool = False,
        **given: int,
    ) -> None:
        asked = {
            "name": f"{asking.prefix}made-{topic or name.replace(' ', '-')}",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in assignment],
            "configs": (),
            **given,
        }
        body = {"topics": [asked], "timeout": 5000, "validate_only": validate_only}

        def pick(answer: Any) -> Any:
            (one,) = answer["topics"]
            return [one["error_code"], one["num_partitions"], one["replication_factor"]]

        asking.ask(f"CreateTopics {name}", ApiKey.CREATE_TOPICS, body, 7, pick)

    create("validated", [(0, [3, 1]), (1, [1, 2])], validate_only=True)
    create("good", [(0, [3, 1]), (1, [1, 2])])
    create("again", [(0, [3, 1])], topic="good")
    create("in another order", [(1, [3]), (0, [1])])
    create("count and assignment", [(0, [1])], num_partitions=1)
    create("factor and assignment", [(0, [1])], replication_factor=1)
    create("a replica twice", [(0, [1, 1])])
    create("unknown broker", [(0, [9])])
    create("one of them unknown", [(0, [1, 9])])
    create("negative broker", [(0, [-1])])
    create("no replicas", [(0, [])])
    create("a gap", [(0, [1]), (2, [2])])
    create("not from 0", [(1, [1])])
    create("negative partition", [(-1, [1])])
    create("a partition twice", [(0, [1]), (0, [2])])
    create("other factors", [(0, [1, 2]), (1, [1])])
    create("factor 3", num_partitions=2, replication_factor=3, validate_only=True)
    create("defaults", validate_only=True)
    create("factor 4", num_partitions=1, replication_factor=4)
    create("factor 0", num_partitions=1, replication_factor=0)
    create("factor -2", num_partitions=1, replication_factor=-2)
    create("count 0", num_partitions=0, replication_factor=1)
    create("count -2", num_partitions=-2, replication_factor=1)
    asking.await_states(f"{asking.prefix}made-good", [(3, (3, 1)), (1, (1, 2))])
    asking.ask_metadata("made with an assignment", f"{asking.prefix}made-good")


def _grow(asking: ClusterAsking) -> None:
    """CreatePartitions with assignments, good and bad."""
    topic = asking.assign("grown", [1, 2])

    def grow(
        name: str,
        count: int,
        *assignments: Sequence[int],
        of: str = topic,
        times: int = 1,
        empty: bool = False,
        validate_only: bool = False,
    ) -> None:
        given = [{"broker_ids": ids} for ids in assignments]
        one = {"name": of, "count": count, "assignments": given if given or empty else None}
        body = {"topics": [one] * times, "timeout": 5000, "validate_only": validate_only}

        def pick(answer: Any) -> Any:
            return [one["error_code"] for one in answer["results"]]

        asking.ask(f"CreatePartitions {name}", ApiKey.CREATE_PARTITIONS, body, 3, pick)

    grow("as many", 1)
    grow("none", 0)
    grow("fewer than none", -1)
    grow("of an unknown topic", 2, of="nope-y")
    grow("too few assignments", 3, [1, 2])
    grow("too many assignments", 2, [1, 2], [2, 3])
    grow("an empty list of assignments", 2, empty=True)
    grow("no replicas", 2, [])
    grow("another factor", 2, [1])
    grow("a larger factor", 2, [1, 2, 3])
    grow("unknown broker", 2, [1, 9])
    grow("negative broker", 2, [1, -1])
    grow("a replica twice", 2, [2, 2])
    grow("twice in the request", 2, times=2)
    grow("validated", 2, [2, 3], validate_only=True)
    grow("as many, with an assignment", 1, [2, 3])
    grow("good", 2, [3, 2])
    grow("fewer", 1)
    asking.await_states(topic, [(1, (1, 2)), (3, (3, 2))])
    asking.ask_metadata("grown", topic)


def _pages(asking: ClusterAsking) -> None:
    """DescribeTopicPartitions (KIP-966), which Kafka with ZooKeeper has not."""
    racks, made, grown = (f"{asking.prefix}{name}" for name in ("racks", "made-good", "grown"))
    describe = asking.ask_topics
    describe("one", racks)
    describe("out of order", racks, made)
    describe("twice", made, made)
    describe("unknown", racks, "nope-y")
    describe("bad name", "a/b")
    describe("no name", "")
    for limit in (1, 2, 3, 0, -1):
        describe(f"limit {limit}", racks, grown, limit=limit)
    describe("limit where a topic ends", racks, grown, limit=2)
    describe("limit after an unknown topic", "Nope", grown, racks, limit=3)
    describe("cursor within", grown, racks, cursor=(racks, 1))
    describe("cursor within, limit", grown, racks, cursor=(grown, 1), limit=2)
    describe("cursor behind the last partition", grown, racks, cursor=(grown, 9))
    describe("cursor at a topic that is not asked for", racks, cursor=(grown, 0))
    describe("cursor at an unknown topic", racks, cursor=("nope-y", 0))
    describe("cursor before all", grown, racks, cursor=("", 0))
    describe("cursor behind all", grown, racks, cursor=("zzz", 0))
    describe("cursor negative", grown, racks, cursor=(grown, -1))
    describe("internal", "__consumer_offsets")

    def names(answer: Any) -> Any:
        found = [one["name"] for one in answer["topics"]]
        return [found == sorted(found), "__consumer_offsets" in found, racks.replace(asking.prefix, "U") in found]

    body = {"topics": [], "response_partition_limit": 2000, "cursor": None}
    asking.ask("DescribeTopicPartitions all", ApiKey.DESCRIBE_TOPIC_PARTITIONS, body, 0, names)


def ask_fetch(
    asking: ClusterAsking, name: str, topic: Any, version: int = 12, *, partition: int = 0, **given: Any
) -> None:
    """Fetch one partition; `epoch`, `offset`, and what the request has."""
    wanted = ask_for(topic, given.pop("offset", 0), partition, epoch=given.pop("epoch", -1))
    wanted["partitions"][0]["last_fetched_epoch"] = given.pop("fetched", -1)
    body = {**fetch_body([wanted]), **given}

    def pick(answer: Any) -> Any:
        parts = [one for found in answer["responses"] for one in found["partitions"]]
        for one in parts:
            for name, empty in _EMPTY.items():
                if one.get(name) == empty:
                    one.pop(name, None)
        nodes = sorted([one["node_id"], one["rack"]] for one in answer.get("node_endpoints", ()))
        return [answer["error_code"], parts, nodes]

    asking.ask(f"Fetch {name}", ApiKey.FETCH, body, version, pick)


def ask_offsets(
    asking: ClusterAsking, name: str, topic: str, *times: int, epoch: int = -1, partition: int = 0, **given: Any
) -> None:
    """ListOffsets of one partition, once for each time."""
    for time in times or (LATEST,):
        asked = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": time}
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [asked]}],
            "timeout": 1000,
            **given,
        }

        def pick(answer: Any) -> Any:
            (found,) = answer["topics"][0]["partitions"]
            return [found["error_code"], found["offset"], found["leader_epoch"]]

        asking.ask(f"ListOffsets {name} {time}" if times else f"ListOffsets {name}", ApiKey.LIST_OFFSETS, body, 8, pick)


def ask_epoch(
    asking: ClusterAsking,
    name: str,
    topic: str,
    epoch: int,
    current: int = -1,
    *,
    partition: int = 0,
    replica: int = -1,
) -> None:
    """OffsetForLeaderEpoch of one partition."""
    asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    body = {"replica_id": replica, "topics": [{"topic": topic, "partitions": [asked]}]}

    def pick(answer: Any) -> Any:
        (found,) = answer["topics"][0]["partitions"]
        return [found["error_code"], found["leader_epoch"], found["end_offset"]]

    asking.ask(f"OffsetForLeaderEpoch {name}", ApiKey.OFFSET_FOR_LEADER_EPOCH, body, 4, pick)


def ask_produce(
    asking: ClusterAsking, name: str, topic: str, acks: int = -1, *, timeout: int = 5000, version: int = 9
) -> None:
    """Produce one record."""
    parts = [{"index": 0, "records": batch(b"one")}]
    body = {
        "transactional_id": None,
        "acks": acks,
        "timeout": timeout,
        "topic_data": [{"name": topic, "partition_data": parts}],
    }

    def pick(answer: Any) -> Any:
        (found,) = answer["responses"][0]["partition_responses"]
        nodes = sorted([one["node_id"], one["rack"]] for one in answer.get("node_endpoints", ()))
        return [
            found["error_code"],
            found["base_offset"],
            found["log_start_offset"],
            found.get("current_leader"),
            nodes,
        ]

    asking.ask(f"Produce {name}", ApiKey.PRODUCE, body, version, pick)


def _roles(asking: ClusterAsking) -> None:
    """What the leader answers, a follower, and a broker without a replica."""
    topic = asking.assign("roles", [1, 2])
    asking.put(topic, 3)
    asking.await_watermark(topic, 3, 2)
    for role, broker_id in (("leader", 1), ("follower", 2), ("stranger", 3)):
        asking.at(broker_id)
        for epoch, said in ((-1, "none"), (0, "current"), (1, "newer")):
            ask_fetch(asking, f"{role}, epoch {said}", topic, epoch=epoch)
            ask_offsets(asking, f"{role}, epoch {said}", topic, epoch=epoch)
            ask_epoch(asking, f"{role}, epoch {said}", topic, 0, epoch)
        ask_fetch(asking, f"{role}, by name", topic, 11)
        topic_id = asking.requests.metadata(topic, version=12).topics[0].topic_id
        ask_fetch(asking, f"{role}, by id", topic_id, 16)
        ask_fetch(asking, f"{role}, end", topic, offset=3)
        ask_fetch(asking, f"{role}, beyond", topic, offset=4)
        ask_fetch(asking, f"{role}, unknown partition", topic, partition=5)
        ask_offsets(asking, role, topic, LATEST, EARLIEST, GREATEST_TIME, -4, 0, 1_700_000_000_000, 1_800_000_000_000)
        ask_offsets(asking, f"{role}, committed", topic, isolation_level=1)
        ask_offsets(asking, f"{role}, unknown partition", topic, partition=5)
        ask_produce(asking, f"{role}, no acks wanted but 2", topic, 2)
        if role != "leader":
            ask_produce(asking, role, topic)
            ask_produce(asking, f"{role}, acks 1", topic, 1)
            ask_produce(asking, f"{role}, hints", topic, version=10)
        for replica in (-2, 2, 3, 9, -3):
            ask_fetch(asking, f"{role}, as replica {replica}", topic, offset=3, replica_id=replica)
            ask_offsets(asking, f"{role}, as replica {replica}", topic, replica_id=replica)
            ask_epoch(asking, f"{role}, as replica {replica}", topic, 0, replica=replica)
            ask_fetch(
                asking, f"{role}, as replica {replica}, epochs", topic, offset=3, epoch=0, fetched=0, replica_id=replica
            )
        for epoch in (-1, 1):
            state = {"replica_id": 2, "replica_epoch": epoch}
            name = f"{role}, as replica 2 of broker epoch {epoch}"
            ask_fetch(asking, name, topic_id, 16, offset=3, epoch=0, fetched=0, replica_state=state)
        _delete_records(asking, role, topic)
        _producers(asking, role, topic)
    asking.at(1)
    ask_epoch(asking, "of epoch 1", topic, 1)
    ask_epoch(asking, "of epoch -1", topic, -1)


def _delete_records(asking: ClusterAsking, role: str, topic: str) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]
    asking.ask(f"DeleteRecords {role}", ApiKey.DELETE_RECORDS, {"topics": topics, "timeout": 5000}, 2)


def _producers(asking: ClusterAsking, role: str, topic: str) -> None:
    topics = [{"name": topic, "partition_indexes": [0]}]
    asking.ask(f"DescribeProducers {role}", ApiKey.DESCRIBE_PRODUCERS, {"topics": topics}, 0)


def _coordinators(asking: ClusterAsking) -> None:
    """Every request for a coordinator, at another broker."""
    group, transaction = f"{asking.prefix}group", f"{asking.prefix}transaction"

    def at_another(key: str, kind: int) -> None:
        body = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        found = asking.requests.ask(ApiKey.FIND_COORDINATOR, body, 4).coordinators[0].node_id
        asking.at(min(asking.alive - {found}))

    def codes(answer: Any) -> Any:
        """All error codes, wherever they are."""
        if isinstance(answer, dict):
            return [
                found for key, value in answer.items() for found in ([value] if key == "error_code" else codes(value))
            ]
        return [found for one in answer for found in codes(one)] if isinstance(answer, list) else []

    topic = f"{asking.prefix}roles"
    commit = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    commits = [{"name": topic, "partitions": [commit]}]
    member: Mapping[str, Any] = {"group_id": group, "member_id": "m", "group_instance_id": None, "generation_id": 1}
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    producer = {"transactional_id": transaction, "producer_id": 5, "producer_epoch": 0}
    new = {"transactional_id": transaction, "producer_id": -1, "producer_epoch": -1}
    of_group: dict[ApiKey, tuple[int, Mapping[str, Any]]] = {
        ApiKey.HEARTBEAT: (4, member),
        ApiKey.SYNC_GROUP: (5, {**member, **protocol, "assignments": []}),
        ApiKey.LEAVE_GROUP: (5, {**member, "members": [{"member_id": "m", "group_instance_id": None, "reason": None}]}),
        ApiKey.JOIN_GROUP: (
            9,
            {
                **member,
                "member_id": "",
                "session_timeout": 10_000,
                "rebalance_timeout": 10_000,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b"m"}],
                "reason": None,
            },
        ),
        ApiKey.OFFSET_COMMIT: (8, {**member, "generation_id_or_member_epoch": -1, "member_id": "", "topics": commits}),
        ApiKey.OFFSET_FETCH: (
            8,
            {
                "groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
                "require_stable": False,
            },
        ),
        ApiKey.OFFSET_DELETE: (0, {**member, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}),
        ApiKey.DESCRIBE_GROUPS: (5, {"groups": [group], "include_authorized_operations": False}),
        ApiKey.DELETE_GROUPS: (2, {"groups_names": [group]}),
        ApiKey.TXN_OFFSET_COMMIT: (3, {**producer, **member, "topics": commits}),
    }
    of_transaction: dict[ApiKey, tuple[int, Mapping[str, Any]]] = {
        ApiKey.INIT_PRODUCER_ID: (4, {**new, "transaction_timeout": 1000}),
        ApiKey.ADD_PARTITIONS_TO_TXN: (
            3,
            {
                "v3_and_below_transactional_id": transaction,
                "v3_and_below_producer_id": 5,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
            },
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: (3, {**producer, "group_id": group}),
        ApiKey.END_TXN: (3, {**producer, "committed": True}),
        ApiKey.DESCRIBE_TRANSACTIONS: (0, {"transactional_ids": [transaction]}),
    }
    for kind, key, asked in ((0, group, of_group), (1, transaction, of_transaction)):
        at_another(key, kind)
        for api, (version, body) in asked.items():
            asking.ask(f"{api.name} elsewhere", api, body, version, codes)


def _elect(asking: ClusterAsking) -> None:
    """No partition needs an election."""
    topic = asking.assign("elected", [1, 2], [2, 3])
    for kind, name in ((PREFERRED, "preferred"), (UNCLEAN, "unclean"), (5, "of no kind")):
        for version in versions(ApiKey.ELECT_LEADERS)[0 if kind == PREFERRED else 1 :]:
            asking.elect(f"{name}, not needed", kind, (topic, 0), version=version)
            asking.elect(f"{name}, all", kind, version=version)
        asking.elect(f"{name}, unknown topic", kind, ("nope-y", 0))
        asking.elect(f"{name}, unknown partition", kind, (topic, 5))
        asking.elect(f"{name}, some of them unknown", kind, (topic, 5), (topic, 1), ("nope-y", 0))
    asking.elect("preferred, twice", PREFERRED, (topic, 0), (topic, 0))
    body = {"election_type": PREFERRED, "topic_partitions": [], "timeout": 5000}
    asking.ask("ElectLeaders preferred, none", ApiKey.ELECT_LEADERS, body, 2)


def _refused_reassignments(asking: ClusterAsking) -> None:
    topic = asking.assign("moved", [1, 2], [2, 3])
    for name, replicas in (
        ("as it is", [1, 2]),
        ("unknown broker", [1, 9]),
        ("only unknown brokers", [8, 9]),
        ("negative broker", [-1]),
        ("a replica twice", [1, 1]),
        ("no replicas", []),
        ("cancel none", None),
    ):
        asking.reassign(name, (topic, 0, replicas))
    asking.reassign("unknown topic", ("nope-y", 0, [1]))
    asking.reassign("cancel of an unknown topic", ("nope-y", 0, None))
    asking.reassign("unknown partition", (topic, 5, [1]))
    asking.reassign("some of them bad", (topic, 0, [1, 9]), (topic, 1, [2, 3]), ("nope-y", 0, [1]))
    asking.reassign("nothing")
    asking.list_reassignments("none")
    asking.list_reassignments("of an unknown topic", ("nope-y", 0))
    asking.list_reassignments("of an unknown partition", (topic, 5))
    asking.ask_metadata("not reassigned", topic)
    other = min(asking.alive - {asking.controller()})
    asking.at(other)
    asking.reassign("at another broker", (topic, 0, [1, 2]))
    asking.list_reassignments("at another broker")
    asking.elect("at another broker", PREFERRED, (topic, 0))
    asking.at_controller()


def _throttle(asking: ClusterAsking, topic: str, rate: str) -> None:
    """No replica that is not in sync gets more than that a second."""
    brokers = [(BROKER_CONFIG, str(one), "follower.replication.throttled.rate", rate) for one in sorted(asking.alive)]
    for kind, name, key, value in (*brokers, (TOPIC_CONFIG, topic, "follower.replication.throttled.replicas", "*")):
        configs = [{"name": key, "config_operation": 0, "value": value}]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        if kind == BROKER_CONFIG:
            asking.at(int(name))
        asking.ask(
            "Throttle", ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False}, 1, str
        )
    asking.at_controller()


def _reassign(asking: ClusterAsking) -> None:
    """Reassignments while they run, for a throttle keeps them running, and their ends."""
    topic = asking.assign("moved2", [1, 2], [2, 3])
    for partition in (0, 1):
        asking.put(topic, 5, partition)
    _throttle(asking, topic, "1")

    def look(name: str) -> None:
        """Not at the leader epochs: KRaft begins one when the leader changes, ZooKeeper's controller at every step."""
        asking.ask_metadata(name, topic, with_epochs=False)
        asking.ask_topics(name, topic, with_epochs=False)
        asking.list_reassignments(name)
        asking.list_reassignments(f"{name}, asked for", (topic, 0))
        asking.list_reassignments(f"{name}, other asked for", (topic, 1), ("nope-y", 0))

    def await_replicas(*replicas: Sequence[int], in_order: bool = False) -> None:

        def there(broker_id: int) -> bool:
            found = partitions_of(asking.at(broker_id).requests, topic)
            as_asked = tuple if in_order else frozenset
            return [as_asked(one.replica_nodes) for one in found] == [as_asked(ids) for ids in replicas]

        eventually(lambda: all(there(one) for one in asking.alive), 60, 0.05)
        asking.at_controller()

    asking.reassign("start", (topic, 0, [3, 2]))
    await_replicas([3, 2, 1], [2, 3])
    look("running")
    asking.reassign("the same again", (topic, 0, [3, 2]))
    asking.elect("preferred, while it is added", PREFERRED, (topic, 0))
    asking.elect("unclean, while one is added", UNCLEAN, (topic, 0))
    asking.reassign("cancel", (topic, 0, None))
    await_replicas([1, 2], [2, 3])
    look("cancelled")
    asking.reassign("cancel again", (topic, 0, None))
    asking.reassign("start of two", (topic, 0, [3]), (topic, 1, [1, 2, 3]))
    await_replicas([3, 1, 2], [1, 2, 3])
    look("two running")
    asking.reassign("replace", (topic, 0, [1, 3]))
    asking.reassign("replace by what it was", (topic, 0, [1, 2]))
    await_replicas([1, 2], [1, 2, 3])
    look("replaced by what it was")
    asking.reassign("order only", (topic, 0, [2, 1]))
    await_replicas([2, 1], [1, 2, 3], in_order=True)
    look("in another order")
    asking.elect("preferred, of the new order", PREFERRED, (topic, 0))
    asking.reassign("start again", (topic, 0, [3, 1]))
    _throttle(asking, topic, "100000000")
    asking.await_states(topic, [(3, (3, 1)), (2, (1, 2, 3))])
    await_replicas([3, 1], [1, 2, 3])
    look("done")
    asking.reassign("fewer", (topic, 0, [3]), (topic, 1, [3]))
    await_replicas([3], [3])
    asking.await_states(topic, [(3, (3,)), (3, (3,))])
    look("fewer")
    asking.at(1)
    ask_fetch(asking, "where the partition was", topic)
    asking.at_controller()
    asking.reassign("start, and the topic is deleted", (topic, 0, [3, 1]))
    asking.note("Delete while it is reassigned", asking.requests.delete(topic).name)
    eventually(lambda: not any(partitions_of(asking.at(one).requests, topic) for one in asking.alive), 60, 0.05)
    asking.at_controller()
    asking.list_reassignments("deleted")
