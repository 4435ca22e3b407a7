"""Requests of every API that name given resources: the same requests about what exists, and about what does not.

Made from kio's schemas, as those of hostile_requests.py, so that an API that is added is asked from its first day.
"""

from __future__ import annotations

import dataclasses
import random
import typing
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import unwrap_optional
from tests.support.hostile_requests import BITS, HostileRequests
from tests.support.raw_requests import NO_ID, batch

PLAIN_ROUNDS = 3
"""So many rounds ask plain questions, which would be answered if they were allowed; later ones are random."""

_TOPIC, _BROKER, _GROUP = 2, 4, 32
_FIRST_METADATA_BY_ID = 12
_NULL = ("group_instance_id", "transactional_id_pattern", "cursor")
_PLAIN_INTS = {
    "acks": -1,
    "config_operation": 0,
    "count": 5,
    "coordinator_epoch": 0,
    "duration_filter": -1,
    "election_type": 0,
    "endpoint_type": 1,
    "generation_id": 1,
    "generation_id_or_member_epoch": 1,
    "isolation_level": 0,
    "iterations": 4096,
    "leader_epoch": 0,
    "max_bytes": 1 << 20,
    "mechanism": 1,
    "min_bytes": 0,
    "num_partitions": 1,
    "operation": 3,
    "partition_max_bytes": 1 << 20,
    "pattern_type_filter": 3,
    "permission_type": 3,
    "replication_factor": 1,
    "resource_pattern_type": 3,
    "resource_type_filter": 2,
    "response_partition_limit": 10,
    "committed_offset": 1,
    "offset": 1,
    "fetch_offset": 0,
    "timestamp": -1,
}
"""-1 where it says epoch or id, else 0."""


class Names(NamedTuple):
    """Of resources of each kind. Two of these whose texts have the same lengths make requests of the same lengths."""

    topic: str
    group: str
    transactional_id: str
    member: str
    user: str
    path: str
    topic_id: uuid.UUID
    producer_id: int
    producer_epoch: int

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.topic, self.group, self.transactional_id, self.member, self.user, self.path)

    def renamed(self, rename: Callable[[str], str], topic_id: uuid.UUID) -> Names:
        """Others of the same producer, which answers show in binary."""
        topic, group, transactional_id, member, user, path = map(rename, self.texts)
        producer = (self.producer_id, self.producer_epoch)
        return Names(topic, group, transactional_id, member, user, path, topic_id, *producer)


class NamedRequests(HostileRequests):
    """One round of requests; the same seed and round make the same requests for other names."""

    def __init__(self, names: Names, seed: int, turn: int) -> None:
        super().__init__(random.Random(seed), names.topic_id)
        self._names = names
        self._turn = turn
        self._plain = turn < PLAIN_ROUNDS
        self._entity = ""
        self._version = 0

    def body(self, api: ApiKey, version: int) -> dict[str, Any]:
        self._version = version
        made = super().body(api, version)
        if api is ApiKey.FIND_COORDINATOR:
            made["key_type"] = self._turn % 2
            made["key"] = self._names.transactional_id if self._turn % 2 else self._names.group
            made["coordinator_keys"] = [made["key"]]
        if api in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS) and self._plain:
            kind, name = ((_TOPIC, self._names.topic), (_GROUP, self._names.group), (_BROKER, "0"))[self._turn]
            for resource in made["resources"]:
                resource.update(resource_type=kind, resource_name=name)
        if api is ApiKey.FETCH:
            made["session_epoch"] = -1  # the id of a new session is random
        if api is ApiKey.PRODUCE and made["acks"] == 0:
            made["acks"] = 1  # nothing would be answered
        return made

    def _struct(self, entity: Any) -> dict[str, Any]:
        outer, self._entity = self._entity, entity.__name__
        made = super()._struct(entity)
        self._entity = outer
        if "topic_id" in made and "name" in made and made["name"] is not None:
            made["topic_id"] = NO_ID  # DeleteTopics takes one or the other
        return made

    def _value(self, name: str, hint: Any, kafka_type: str) -> Any:
        if not self._plain:
            return super()._value(name, hint, kafka_type)
        inner, optional = unwrap_optional(hint)
        if name in _NULL or (optional and self._turn == 1 and self._is_by_id(name)):
            return None
        if name.endswith("_filters") or name in ("states_filter", "types_filter", "forgotten_topics_data"):
            return [] if typing.get_origin(inner) is tuple else None
        if typing.get_origin(inner) is tuple:
            return [self._value(name, typing.get_args(inner)[0], kafka_type)]
        return self._struct(inner) if dataclasses.is_dataclass(inner) else self._scalar(name, kafka_type)

    def _is_by_id(self, name: str) -> bool:
        """Whether the plain question of this turn leaves out a name for an id, or a transaction."""
        if name == "name":
            return self._entity != "MetadataRequestTopic" or self._version >= _FIRST_METADATA_BY_ID
        return name == "transactional_id" and self._entity == "ProduceRequest"

    def _scalar(self, name: str, kafka_type: str) -> Any:
        if kafka_type == "string":
            return self._text(name)
        if name.endswith("producer_id"):
            return self._names.producer_id
        if name.endswith("producer_epoch"):
            return self._names.producer_epoch
        if kafka_type == "uuid":
            return self._names.topic_id
        if kafka_type == "bool":
            return name in ("committed", "transaction_result") if self._plain else self._dice.random() < 0.5
        if not self._plain:
            return super()._scalar(name, kafka_type)
        if kafka_type in BITS:
            return self._plain_int(name)
        match name:
            case "records":
                return batch(b"hostile")
            case "salted_password":
                return b"p" * 32
            case "salt":
                return b"s" * 16
        return 1000 if "timeout" in name else super()._scalar(name, kafka_type)

    def _plain_int(self, name: str) -> int:
        found = _PLAIN_INTS.get(name)
        if found is not None:
            return found
        if name == "resource_type":
            return _TOPIC
        return -1 if "epoch" in name or name == "replica_id" else 0

    def _text(self, name: str) -> str:
        names = self._names
        if name == "name":
            if "Scram" in self._entity or "User" in self._entity:
                return names.user
            if "Config" in self._entity:
                return "retention.ms"
            return "range" if "Protocol" in self._entity else names.topic
        if "transactional_id" in name:
            return names.transactional_id
        if "group" in name:
            return names.group
        if "topic" in name or name.startswith("resource_name"):
            return names.topic
        match name:
            case "member_id":
                return names.member
            case "path":
                return names.path
            case "principal" | "principal_filter":
                return f"User:{names.user}"
            case "host" | "host_filter":
                return "*"
            case "value":
                return "1000"
            case "configuration_keys":
                return "retention.ms"
            case "protocol_type" | "protocol_name":
                return "consumer" if name == "protocol_type" else "range"
        return self._dice.choice(("", "x", "Empty", "Ongoing", "Stable"))
