"""Topics, settings, members and producers as the rows of requests and answers. Called by admin.py."""

from __future__ import annotations

from typing import Any

from broker.client.admin_types import ALL_BROKERS, MemberDescription, NewTopic, ProducerState
from broker.errors import ProtocolError
from broker.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from broker.protocol.described_config import ConfigEntry, ConfigSource, ConfigSynonym, ResourceType
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition


def creatable_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignment else topic.partitions,
        "replication_factor": -1 if topic.assignment else topic.replication,
        "assignments": [{"partition_index": i, "broker_ids": list(ids)} for i, ids in enumerate(topic.assignment)],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }


def resource_name(resource: ResourceType, name: str) -> str:
    kind = resource.name.lower().replace("_", " ")
    return "all brokers" if resource is not ResourceType.TOPIC and name == ALL_BROKERS else f"{kind} {name!r}"


def decode_config_entry(row: Any) -> ConfigEntry:
    return ConfigEntry(
        row.name,
        row.value,
        ConfigSource(int(field(row, "config_source", -1))),
        int(field(row, "config_type", 0)),
        field(row, "documentation"),
        tuple(ConfigSynonym(one.name, one.value, ConfigSource(int(one.source))) for one in field(row, "synonyms", ())),
        row.read_only,
        row.is_sensitive,
    )


def decode_members(group: Any) -> tuple[MemberDescription, ...]:
    """Of a row of a DescribeGroups response."""
    return tuple(sorted(_member(row, group.protocol_type == PROTOCOL_TYPE) for row in group.members))


def _member(row: Any, consumers: bool) -> MemberDescription:
    partitions: tuple[TopicPartition, ...] = ()
    if consumers and row.member_assignment:
        try:
            partitions = tuple(sorted(decode_assignment(row.member_assignment)))
        except ProtocolError:  # the group leader wrote something else
            partitions = ()
    return MemberDescription(
        row.member_id, field(row, "group_instance_id"), row.client_id, row.client_host.removeprefix("/"), partitions
    )


def decode_producer(row: Any) -> ProducerState:
    return ProducerState(
        int(row.producer_id),
        int(row.producer_epoch),
        int(row.last_sequence),
        int(row.last_timestamp),
        int(row.coordinator_epoch),
        int(row.current_txn_start_offset),
    )
