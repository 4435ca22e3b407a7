"""Asks the brokers of a cluster of three, and disturbs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import TIMEOUT_S, Asking
from tests.support.raw_requests import LATEST, Requests, ask_for, batch
from tests.support.waiting import eventually

PATIENCE_S = 60.0

Targets = Sequence[tuple[str, int, Sequence[int] | None]]
"""(topic, partition, replicas), None to cancel."""


class Nodes(Protocol):
    """The brokers 1, 2 and 3, as what runs them sees them."""

    @property
    def addresses(self) -> Mapping[int, str]:
        """`host:port` of each."""

    def kill(self, broker_id: int) -> None:
        """With SIGKILL."""

    def start(self, broker_id: int) -> None:
        """On the same data and port."""

    def pause(self, broker_id: int) -> None:
        """With SIGSTOP."""

    def resume(self, broker_id: int) -> None: ...


class ClusterAsking(Asking):
    """A cluster that is asked, one broker at a time: `at` says which."""

    def __init__(self, nodes: Nodes, prefix: str) -> None:
        self._nodes = nodes
        self.alive = set(nodes.addresses)
        super().__init__(nodes.addresses[1], 1, prefix)

    def at(self, broker_id: int) -> ClusterAsking:
        """Ask this broker from now on."""
        self.close()
        self.broker_id = broker_id
        self._bootstrap = self._nodes.addresses[broker_id]
        self.requests = Requests(self._bootstrap, TIMEOUT_S)
        return self

    def at_controller(self) -> ClusterAsking:
        return self.at(self.controller())

    def controller(self) -> int:
        """A broker that does what only a controller may; with KRaft each hands it on."""
        found = -1

        def known() -> bool:
            nonlocal found
            found = self.at(min(self.alive)).requests.metadata(version=8).controller_id
            return found in self.alive

        eventually(known, PATIENCE_S)
        return found

    # --- the brokers

    def kill(self, broker_id: int) -> None:
        """Return when the others know that it is gone."""
        self._nodes.kill(broker_id)
        self.alive.discard(broker_id)
        self.await_brokers()

    def start(self, broker_id: int) -> None:
        """Return when all know it."""
        self._nodes.start(broker_id)
        self.alive.add(broker_id)
        self.await_brokers()

    def replace(self, dying: int, returning: int) -> None:
        """Kill one, and start another, without a majority of three in between."""
        self._nodes.kill(dying)
        self.alive.discard(dying)
        self.start(returning)

    def pause(self, broker_id: int) -> None:
        self._nodes.pause(broker_id)

    def resume(self, broker_id: int) -> None:
        self._nodes.resume(broker_id)

    def await_brokers(self) -> None:
        """Return when those that live know each other, and no others."""

        def known(broker_id: int) -> bool:
            return {one.node_id for one in self.at(broker_id).requests.metadata(version=8).brokers} == self.alive

        eventually(lambda: all(known(one) for one in self.alive), PATIENCE_S, 0.05)
        self.at_controller()

    # --- topics

    def assign(self, name: str, *replicas: Sequence[int], **config: str) -> str:
        """A topic with these replicas for its partitions, which all brokers know. Config keys with `_` for `.`."""
        topic = f"{self.prefix}{name}"
        self.at_controller()
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)]
        asked = {"name": topic, "assignments": assignments, "num_partitions": -1, "replication_factor": -1}
        (made,) = self.requests.create_topics({**asked, "configs": configs})
        assert made.error_code is ErrorCode.none, made
        self.await_states(topic, [(ids[0], ids) for ids in replicas])
        return topic

    def await_states(self, topic: str, states: Sequence[tuple[int, Collection[int]]]) -> None:
        """Return when every live broker knows of each partition (leader, in-sync replicas), and leaders lead."""

        def knows(broker_id: int) -> bool:
            found = [(one.leader_id, set(one.isr_nodes)) for one in partitions_of(self.at(broker_id).requests, topic)]
            return found == [(leader, set(isr)) for leader, isr in states]

        def leads(index: int, leader: int) -> bool:
            found = self.at(leader).requests.list_offset(topic, LATEST, index, version=8)
            return bool(found.error_code is ErrorCode.none)

        eventually(lambda: all(knows(one) for one in self.alive), PATIENCE_S, 0.05)
        led = [(index, leader) for index, (leader, _) in enumerate(states) if leader >= 0]
        eventually(lambda: all(leads(*one) for one in led), PATIENCE_S, 0.05)
        self.at_controller()

    def await_watermark(self, topic: str, offset: int, broker_id: int) -> None:
        """Return when the follower's high watermark of partition 0 is there."""
        self.at(broker_id)
        eventually(lambda: self.requests.fetch([ask_for(topic)], version=12)[0].high_watermark == offset)

    def put(self, topic: str, count: int, partition: int = 0) -> None:
        """`count` batches of one record each, acknowledged by all in-sync replicas."""
        leader = {one.partition_index: one.leader_id for one in partitions_of(self.requests, topic)}[partition]
        self.at(leader)
        for number in range(count):
            records = {(topic, partition): batch(b"v%d" % number * 10)}
            stored = self.requests.produce(records, version=9)[topic, partition]
            assert stored.error_code is ErrorCode.none, stored

    # --- answers

    def ask_metadata(
        self, name: str, *topics: str, in_versions: Sequence[int] = (12,), with_epochs: bool = True
    ) -> None:
        """Brokers with racks, the topics with all that is said of them."""
        body = {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False}
        for version in in_versions:
            self.ask(f"Metadata {name}", ApiKey.METADATA, body, version, partial(self._metadata, with_epochs))

    def _metadata(self, with_epochs: bool, answer: Any) -> Any:
        answer["brokers"] = [[one["node_id"], one.get("rack", "")] for one in answer["brokers"]]
        answer["brokers"].sort()
        answer["controller_id"] = answer.get("controller_id", 0) in self.alive
        answer.pop("cluster_id", None)
        answer["topics"].sort(key=lambda one: one["name"])
        for topic in answer["topics"]:
            sort_partitions(topic["partitions"], with_epochs)
        return answer

    def ask_topics(
        self,
        name: str,
        *topics: str,
        limit: int = 2000,
        cursor: tuple[str, int] | None = None,
        with_epochs: bool = True,
    ) -> None:
        """DescribeTopicPartitions."""
        after = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        body = {
            "topics": [{"name": topic} for topic in topics],
            "response_partition_limit": limit,
            "cursor": after,
        }

        def pick(answer: Any) -> Any:
            for topic in answer["topics"]:
                sort_partitions(topic["partitions"], with_epochs)
                if topic["is_internal"]:
                    topic["partitions"] = len(topic["partitions"])
            return [answer["topics"], answer["next_cursor"]]

        self.ask(f"DescribeTopicPartitions {name}", ApiKey.DESCRIBE_TOPIC_PARTITIONS, body, 0, pick)

    def elect(self, name: str, kind: int, *partitions: tuple[str, int], version: int = 2) -> None:
        """ElectLeaders; without partitions of all of them."""
        wanted = [{"topic": topic, "partitions": [index]} for topic, index in partitions] or None
        body = {"election_type": kind, "topic_partitions": wanted, "timeout": 5000}

        def pick(answer: Any) -> Any:
            """Kafka names every topic, with those partitions that need an election."""
            found = [
                [one["topic"], partition["partition_id"], partition["error_code"]]
                for one in answer["replica_election_results"]
                for partition in one["partition_result"]
            ]
            return [answer.get("error_code"), *sorted(found)]

        self.ask(f"ElectLeaders {name}", ApiKey.ELECT_LEADERS, body, version, pick)

    def reassign(self, name: str, *targets: tuple[str, int, Sequence[int] | None]) -> None:
        """AlterPartitionReassignments; replicas None cancel."""
        named: dict[str, list[Mapping[str, Any]]] = {}
        for topic, index, replicas in targets:
            named.setdefault(topic, []).append({"partition_index": index, "replicas": replicas})
        topics = [{"name": topic, "partitions": partitions} for topic, partitions in named.items()]

        def pick(answer: Any) -> Any:
            found = [
                [one["name"], partition["partition_index"], partition["error_code"]]
                for one in answer["responses"]
                for partition in one["partitions"]
            ]
            return [answer["error_code"], *sorted(found)]

        body = {"timeout": 5000, "topics": topics}
        self.ask(f"AlterReassign {name}", ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, 0, pick)

    def list_reassignments(self, name: str, *partitions: tuple[str, int]) -> None:
        """ListPartitionReassignments; without partitions of all of them."""
        topics = [{"name": topic, "partition_indexes": [index]} for topic, index in partitions] or None

        def pick(answer: Any) -> Any:
            for topic in answer["topics"]:
                topic["partitions"].sort(key=lambda one: one["partition_index"])
            return {**answer, "topics": sorted(answer["topics"], key=lambda one: one["name"])}

        body = {"timeout": 5000, "topics": topics}
        self.ask(f"ListReassign {name}", ApiKey.LIST_PARTITION_REASSIGNMENTS, body, 0, pick)


def partitions_of(requests: Requests, topic: str) -> list[Any]:
    """What a broker's Metadata says of the partitions, in order."""
    found = requests.metadata(topic, version=8).topics
    return sorted(found[0].partitions, key=lambda one: one.partition_index) if found else []


def sort_partitions(partitions: list[Any], with_epochs: bool) -> None:
    """Also their sets of replicas that are no orders."""
    partitions.sort(key=lambda one: one["partition_index"])
    for one in partitions:
        if not with_epochs:
            one.pop("leader_epoch", None)
        for of_brokers in ("isr_nodes", "offline_replicas"):
            if one.get(of_brokers):
                one[of_brokers].sort()
