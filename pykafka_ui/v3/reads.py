"""What there is in a cluster: brokers, topics with partitions and settings, groups with members and lag.

Each function is a resource: its decorator says where it is and which rows there are, and it returns the fields of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fastapi import APIRouter

from broker.client.admin_types import MemberDescription
from broker.client.cluster_metadata import Node
from broker.errors import PykafkaError
from broker.protocol.described_config import ConfigEntry, ConfigSource
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.console import Console
from pykafka_ui.seen.snapshot import Group, Partition, Snapshot, Topic
from pykafka_ui.v3.resources import Document, Resource, View, upper_snake

At = Sequence[object]
_NO_SETTING = "there is no setting {name}"


def reads(console: Console) -> APIRouter:
    api = APIRouter(prefix="/api/v3", tags=["v3"])
    CLUSTERS.add_to(api, console)
    return api


# --- cluster and brokers


def cluster(view: View, at: At, seen: Snapshot) -> Document:
    """The cluster and its controller."""
    return {
        "controller": view.link("brokers", seen.controller) if seen.controller >= 0 else None,
        "brokers": view.link("brokers"),
        "topics": view.link("topics"),
        "consumer_groups": view.link("consumer-groups"),
        "controller_id": seen.controller,
    }


CLUSTERS = Resource(
    "clusters/{cluster_id}",
    "KafkaCluster",
    lambda view, _: {view.seen.cluster_id: view.seen},
    cluster,
    "The one cluster.",
)


@CLUSTERS.has(
    "brokers/{broker_id}",
    "KafkaBroker",
    lambda view, seen: {node.id: node for node in seen.brokers},
    "Brokers with their advertised addresses.",
    "there is no broker {broker_id}",
)
def broker(view: View, at: At, node: Node) -> Document:
    """One broker."""
    return {
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "configs": view.link(*at, "configs"),
    }


@broker.has(
    "configs/{name}",
    "KafkaBrokerConfig",
    lambda view, node: _by_name(view.console.broker_settings(node.id)),
    "The settings of a broker.",
    _NO_SETTING,
)
def broker_config(view: View, at: At, entry: ConfigEntry) -> Document:
    """One setting of a broker."""
    return _setting(entry)


# --- topics


@CLUSTERS.has(
    "topics/{topic_name}",
    "KafkaTopic",
    lambda view, seen: seen.topics,
    "All topics.",
    "there is no topic {topic_name!r}",
)
def topic(view: View, at: At, about: Topic) -> Document:
    """One topic."""
    return {
        "is_internal": about.internal,
        "replication_factor": about.replication,
        "partitions_count": len(about.partitions),
        "partitions": view.link(*at, "partitions"),
        "configs": view.link(*at, "configs"),
        "records": about.records,
        "size_bytes": about.size,
        "archived_bytes": about.archived,
    }


@topic.has(
    "configs/{name}",
    "KafkaTopicConfig",
    lambda view, about: _by_name(view.console.topic_settings(about.name)),
    "The settings of a topic.",
    _NO_SETTING,
)
def topic_config(view: View, at: At, entry: ConfigEntry) -> Document:
    """One setting of a topic."""
    return _setting(entry)


@topic.has(
    "partitions/{partition_id}",
    "KafkaPartition",
    lambda view, about: {one.index: one for one in about.partitions},
    "Partitions with leader, ISR, log start and end offset, and bytes (-1: not known).",
    "topic {topic_name!r} has no partition {partition_id}",
)
def partition(view: View, at: At, about: Partition) -> Document:
    """One partition."""
    return {
        "leader": view.link(*at, "replicas", about.leader) if about.leader >= 0 else None,
        "replicas": view.link(*at, "replicas"),
        "leader_id": about.leader,
        "replica_ids": list(about.replicas),
        "isr": list(about.isr),
        "log_start_offset": about.start,
        "log_end_offset": about.end,
        "size_bytes": about.size,
    }


@partition.has(
    "replicas/{broker_id}",
    "KafkaReplica",
    lambda view, about: {broker_id: (broker_id, about) for broker_id in about.replicas},
    "The replicas of a partition.",
    "there is no replica {broker_id}",
)
def replica(view: View, at: At, row: tuple[int, Partition]) -> Document:
    """One replica of a partition."""
    broker_id, about = row
    return {
        "is_leader": broker_id == about.leader,
        "is_in_sync": broker_id in about.isr,
        "broker": view.link("brokers", broker_id),
    }


# --- groups


@CLUSTERS.has(
    "consumer-groups/{group_id}",
    "KafkaConsumerGroup",
    lambda view, seen: seen.groups,
    "All groups. `partition_assignor` is only known of a group that is asked for by itself.",
    "there is no group {group_id!r}",
)
def group(view: View, at: At, seen: Group) -> Document:
    """One group, with its assignor and coordinator."""
    about = view.console.group(seen.id) if "group_id" in view.path else None
    return {
        "is_simple": not seen.protocol_type,
        "partition_assignor": about.protocol if about else "",
        "state": upper_snake(seen.state if about is None or about.state == "Dead" else about.state),
        "type": upper_snake(seen.type) or "CLASSIC",
        "is_mixed_consumer_group": False,
        "coordinator": view.link("brokers", about.coordinator.id) if about else None,
        "consumers": view.link(*at, "consumers"),
        "lag_summary": view.link(*at, "lag-summary"),
        "committed_by": seen.kind,
        "total_lag": seen.behind.lag,
        "total_unread": seen.behind.unread,
    }


@group.has(
    "consumers/{consumer_id}",
    "KafkaConsumer",
    lambda view, seen: {member.member_id: member for member in view.console.group(seen.id).members},
    "The members of a group.",
    "group {group_id!r} has no member {consumer_id!r}",
)
def consumer(view: View, at: At, member: MemberDescription) -> Document:
    """One member."""
    return {**_client(member), "assignments": view.link(*at, "assignments"), "host": member.host}


@consumer.has(
    "assignments/{topic_name}/partitions/{partition_id}",
    "KafkaConsumerAssignment",
    lambda view, member: {tp: tp for tp in member.partitions},
    "The partitions of a member.",
    "there is no partition {partition_id}",
)
def assignment(view: View, at: At, tp: TopicPartition) -> Document:
    """One partition of a member."""
    group_id, at_partition = view.path["group_id"], (tp.topic, "partitions", tp.partition)
    return {
        "partition": view.link("topics", *at_partition),
        "lag": view.link("consumer-groups", group_id, "lags", *at_partition),
    }


@group.has("lag-summary", "KafkaConsumerLagSummary", lambda view, seen: {(): seen})
def lag_summary(view: View, at: At, seen: Group) -> Document:
    """The sum of a group's lags, and the largest; and what is unread in partitions without a committed offset.

    Null is what is not known of any partition.
    """
    largest = max(seen.lags, key=lambda tp: seen.lags[tp], default=None)
    member = _owners(view, seen).get(largest) if largest else None
    return {
        **{f"max_lag_{name}": value for name, value in _client(member).items()},
        "max_lag_topic_name": largest.topic if largest else "",
        "max_lag_partition_id": largest.partition if largest else -1,
        "max_lag": seen.lags[largest] if largest else None,
        "total_lag": seen.behind.lag,
        "total_unread": seen.behind.unread,
        "partitions_without_commit": len(seen.uncommitted),
        "max_lag_consumer": view.link("consumer-groups", seen.id, "consumers", member.member_id) if member else None,
        "max_lag_partition": view.link("topics", largest.topic, "partitions", largest.partition) if largest else None,
    }


GroupLag = tuple[Group, TopicPartition, MemberDescription | None]


def _lags(view: View, seen: Group) -> Mapping[TopicPartition, GroupLag]:
    owners = _owners(view, seen)
    return {tp: (seen, tp, owners.get(tp)) for tp in seen.partitions}


@group.has(
    "lags/{topic_name}/partitions/{partition_id}",
    "KafkaConsumerLag",
    _lags,
    "A group's offset and lag in each partition; null where a member reads it without a committed offset.",
    "group {group_id!r} has no offset of {topic_name}-{partition_id}, and no member that reads it",
)
def lag(view: View, at: At, row: GroupLag) -> Document:
    """A group's offset and lag in one partition."""
    seen, tp, member = row
    committed, is_known = seen.offsets.get(tp), tp in seen.lags or tp in seen.unread
    return {
        "current_offset": committed.offset if committed else None,
        "log_end_offset": view.seen.partitions[tp].end if is_known else None,
        "lag": seen.lags.get(tp),
        "unread": seen.unread.get(tp),
        **_client(member),
    }


# --- parts of them


def _by_name(entries: Iterable[ConfigEntry]) -> Mapping[str, ConfigEntry]:
    return {entry.name: entry for entry in entries}


def _setting(entry: ConfigEntry) -> Document:
    return {
        "value": entry.value,
        "is_default": entry.source is ConfigSource.DEFAULT_CONFIG,
        "is_read_only": entry.read_only,
        "is_sensitive": entry.sensitive,
        "source": entry.source.name,
        "synonyms": [{"name": one.name, "value": one.value, "source": one.source.name} for one in entry.synonyms],
    }


def _client(member: MemberDescription | None) -> Document:
    return {
        "consumer_id": member.member_id if member else "",
        "instance_id": member.group_instance_id if member else None,
        "client_id": member.client_id if member else "",
    }


def _owners(view: View, seen: Group) -> Mapping[TopicPartition, MemberDescription]:
    """The members, as far as they can be had: lags are known without them."""
    try:
        return view.console.group(seen.id).owners
    except PykafkaError:
        return {}
