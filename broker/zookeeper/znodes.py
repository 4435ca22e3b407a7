"""Kafka's ZooKeeper nodes: their paths, their JSON and what it means (kafka.zk.ZkData). Pure.

Used by registry.py and consumer_registry.py, which read and write the nodes. Decoders accept every version of a node
that Kafka has written since 0.8 and ignore unknown fields. Encoders write what Kafka 3 writes.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER, BrokerInfo, Endpoint, PartitionInfo, Topic

T = TypeVar("T")

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE_ID = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
DELETED_TOPICS = "/admin/pykafka_deleted_topics"
"""Ids of deleted topics, below the brokers that may still have their logs. Kafka has no such node."""
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
DEFAULT_ENTITY = "<default>"
"""In place of a name: the settings of every broker, or the quotas of every user, client id or address."""
USER_CONFIGS = "/config/users"
CLIENT_CONFIGS = "/config/clients"
IP_CONFIGS = "/config/ips"
GROUP_CONFIGS = "/config/groups"
CONFIG_CHANGES = "/config/changes"
ISR_CHANGES = "/isr_change_notification"
ACL_CHANGES = "/kafka-acl-changes"
EXTENDED_ACL_CHANGES = "/kafka-acl-extended-changes"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
CONSUMERS = "/consumers"

PERSISTENT_PATHS = (
    *("/cluster", BROKER_IDS, TOPICS, BROKER_SEQUENCE_ID, CONSUMERS, ISR_CHANGES, PRODUCER_ID_BLOCK),
    *(DELETE_TOPICS, DELETED_TOPICS),
    *(TOPIC_CONFIGS, BROKER_CONFIGS, CLIENT_CONFIGS, USER_CONFIGS, IP_CONFIGS, CONFIG_CHANGES),
)
"""What the first broker creates (KafkaZkClient.createTopLevelPaths)."""


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What json and int() raise on garbage."""


class MalformedNode(PykafkaError):
    """A node whose data is not in Kafka's format."""

    def __init__(self, path: str, data: bytes, reason: object) -> None:
        super().__init__(f"{path} in ZooKeeper holds {data[:200]!r}, which cannot be read: {reason}")


# -- paths


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}"


def state_path(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(entity: int | str) -> str:
    """`entity` is a broker's id or DEFAULT_ENTITY."""
    return f"{BROKER_CONFIGS}/{entity}"


def user_config_path(user: str) -> str:
    """`user` as `sanitized` gives it."""
    return f"{USER_CONFIGS}/{user}"


def sanitized(name: str) -> str:
    """A user's name as the name of a node (org.apache.kafka.common.utils.Sanitizer)."""
    return urllib.parse.quote(name, safe="-_.").replace("~", "%7E")


def desanitized(name: str) -> str:
    return urllib.parse.unquote(name)


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def deleted_topics_path(broker_id: int) -> str:
    return f"{DELETED_TOPICS}/{broker_id}"


def deleted_topic_path(broker_id: int, topic_id: uuid.UUID) -> str:
    return f"{DELETED_TOPICS}/{broker_id}/{uuid_to_text(topic_id)}"


# -- brokers, topics, partitions


def encode_broker(info: BrokerInfo) -> bytes:
    """Version 5 of the node."""
    plaintext = "PLAINTEXT" in (info.security_protocols.get(e.listener) for e in info.endpoints)
    node: dict[str, Any] = {
        "features": {name: {"min_version": 0, "max_version": high} for name, high in info.features.items()},
        "listener_security_protocol_map": dict(info.security_protocols),
        "endpoints": [str(endpoint) for endpoint in info.endpoints],
        "jmx_port": -1,
        "port": info.port if plaintext else -1,
        "host": info.host if plaintext else None,
        "version": 5,
        "timestamp": str(info.timestamp_ms),
    }
    return _encode(node | ({"rack": info.rack} if info.rack else {}))


def decode_broker(broker_id: int, data: bytes) -> BrokerInfo:
    try:
        node = json.loads(data)
        endpoints = tuple(Endpoint.parse(text) for text in node.get("endpoints") or ())
        if not endpoints:  # version 1 had host and port only
            endpoints = (Endpoint("PLAINTEXT", str(node["host"]), int(node["port"])),)
        protocols = node.get("listener_security_protocol_map") or {e.listener: e.listener for e in endpoints}
        features = {name: int(versions["max_version"]) for name, versions in (node.get("features") or {}).items()}
        timestamp_ms = int(node.get("timestamp", 0))
        return BrokerInfo(broker_id, endpoints, protocols, node.get("rack"), timestamp_ms, features=features)
    except UNREADABLE as error:
        raise MalformedNode(broker_path(broker_id), data, error) from error


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic: `/brokers/topics/T` (version 3) and `/config/topics/T`. The first replica is the preferred leader."""

    name: str
    topic_id: uuid.UUID
    assignment: Mapping[int, tuple[int, ...]]
    config: Mapping[str, str] = field(default_factory=dict)
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, partition) for partition in sorted(self.assignment)]

    def replicas_of(self, partition: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """(all replicas, those that a reassignment adds, those that it removes)."""
        adding, removing = self.adding_replicas.get(partition, ()), self.removing_replicas.get(partition, ())
        return self.assignment[partition], adding, removing

    def reassigned(
        self, partition: int, replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
    ) -> TopicRecord:
        """With other replicas of a partition, as `replicas_of` gives them."""

        def changed(old: Mapping[int, tuple[int, ...]], value: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
            return {key: ids for key, ids in {**old, partition: value}.items() if ids}

        return dataclasses.replace(
            self,
            assignment=changed(self.assignment, replicas),
            adding_replicas=changed(self.adding_replicas, adding),
            removing_replicas=changed(self.removing_replicas, removing),
        )

    def partition(self, partition: int, state: PartitionState | None) -> PartitionInfo:
        """The partition in the metadata. `state` is None while no leader has been written."""
        replicas, adding, removing = self.replicas_of(partition)
        if state is None:
            return PartitionInfo(NO_LEADER, 0, replicas, (), adding=adding, removing=removing)
        return PartitionInfo(
            state.leader,
            state.leader_epoch,
            replicas,
            state.isr,
            state.version,
            adding,
            removing,
            is_restored=state.is_restored,
        )

    def topic(self, states: Mapping[TopicPartition, PartitionState]) -> Topic:
        partitions = {tp.partition: self.partition(tp.partition, states.get(tp)) for tp in self.partitions()}
        return Topic(self.name, self.topic_id, partitions, self.config)

    def encode(self) -> bytes:
        """The topic's node, without its config, which has a node of its own."""
        return _encode(
            {
                "removing_replicas": _replicas_to_json(self.removing_replicas),
                "partitions": _replicas_to_json(self.assignment),
                "topic_id": uuid_to_text(self.topic_id),
                "adding_replicas": _replicas_to_json(self.adding_replicas),
                "version": 3,
            }
        )

    @classmethod
    def decode(cls, name: str, data: bytes, config: Mapping[str, str]) -> TopicRecord:
        try:
            node = json.loads(data)
            topic_id = uuid_from_text(node["topic_id"]) if node.get("topic_id") else _NO_UUID
            moves = (_replicas_from_json(node.get(key)) for key in ("adding_replicas", "removing_replicas"))
            return cls(name, topic_id, _replicas_from_json(node["partitions"]), config, *moves)
        except UNREADABLE as error:
            raise MalformedNode(topic_path(name), data, error) from error


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Leader (-1: none), leader epoch and ISR: `…/partitions/P/state`.

    `version` is that of the node that was read, NO_STATE if there was none.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    version: int = field(default=0, compare=False)
    is_restored: bool = False
    """As in PartitionInfo. Kafka has no such field."""

    def encode(self) -> bytes:
        restored = {"restored": True} if self.is_restored else {}
        return _encode(
            {
                "controller_epoch": self.controller_epoch,
                "leader": self.leader,
                "version": 1,
                "leader_epoch": self.leader_epoch,
                "isr": list(self.isr),
                **restored,
            }
        )

    @classmethod
    def decode(cls, tp: TopicPartition, data: bytes, version: int) -> PartitionState:
        try:
            node = json.loads(data)
            isr = tuple(map(int, node["isr"]))
            leader, leader_epoch, controller_epoch = (
                int(node[key]) for key in ("leader", "leader_epoch", "controller_epoch")
            )
            return cls(leader, leader_epoch, isr, controller_epoch, version, bool(node.get("restored")))
        except UNREADABLE as error:
            raise MalformedNode(state_path(tp), data, error) from error


# -- other nodes


def encode_config(config: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """An empty node is an empty config, as in Kafka."""
    try:
        return {str(key): str(value) for key, value in json.loads(data)["config"].items()} if data else {}
    except UNREADABLE as error:
        raise MalformedNode(path, data, error) from error


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return _field(CLUSTER_ID, data, "id", str)


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _encode({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def decode_controller(data: bytes) -> int:
    return _field(CONTROLLER, data, "brokerid", int)


def encode_producer_id_block(broker_id: int, first: int, last: int) -> bytes:
    return _encode({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})


def decode_producer_id_block_end(data: bytes) -> int:
    """The last producer id that was allocated."""
    return _field(PRODUCER_ID_BLOCK, data, "block_end", int)


def encode_config_change(entity_path: str) -> bytes:
    return _encode({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    return _field(path, data, "entity_path", str)


def encode_isr_change(partitions: Iterable[TopicPartition]) -> bytes:
    changed = [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]
    return _encode({"version": 1, "partitions": changed})


def decode_isr_change(path: str, data: bytes) -> list[TopicPartition]:
    """Also the partitions of a preferred election."""
    try:
        return [TopicPartition(one["topic"], int(one["partition"])) for one in json.loads(data)["partitions"]]
    except UNREADABLE as error:
        raise MalformedNode(path, data, error) from error


def encode_reassignment(replicas: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    rows = [{"topic": tp.topic, "partition": tp.partition, "replicas": list(ids)} for tp, ids in replicas.items()]
    return _encode({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    try:
        rows = json.loads(data)["partitions"]
        return {TopicPartition(row["topic"], int(row["partition"])): tuple(map(int, row["replicas"])) for row in rows}
    except UNREADABLE as error:
        raise MalformedNode(REASSIGN_PARTITIONS, data, error) from error


# -- Kafka's text form of a UUID

_NO_UUID = uuid.UUID(int=0)


def uuid_to_text(value: uuid.UUID) -> str:
    """22 characters of URL-safe base64 (org.apache.kafka.common.Uuid)."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def uuid_from_text(text: str) -> uuid.UUID:
    """Raises ValueError."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def new_uuid() -> uuid.UUID:
    """A random UUID whose text does not begin with a dash, so that it can be a command-line argument."""
    while uuid_to_text(value := uuid.uuid4()).startswith("-"):
        pass
    return value


def _replicas_to_json(replicas: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(replicas[partition]) for partition in sorted(replicas)}


def _replicas_from_json(node: Mapping[str, Sequence[int]] | None) -> dict[int, tuple[int, ...]]:
    return {int(partition): tuple(map(int, replicas)) for partition, replicas in (node or {}).items()}


def _field(path: str, data: bytes, name: str, type_: Callable[[Any], T]) -> T:
    try:
        return type_(json.loads(data)[name])
    except UNREADABLE as error:
        raise MalformedNode(path, data, error) from error


def _encode(node: Mapping[str, Any]) -> bytes:
    return json.dumps(node, separators=(",", ":")).encode()
