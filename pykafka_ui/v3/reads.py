"""What there is in a cluster: brokers, topics with partitions and settings, groups with members and lag."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, HTTPException
from starlette.requests import Request

from broker.client.admin_types import GroupDescription, MemberDescription
from broker.client.cluster_metadata import Node
from broker.errors import PykafkaError
from broker.protocol.described_config import ConfigEntry, ConfigSource
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.console import Console
from pykafka_ui.snapshot import Group, Partition, Snapshot, Topic
from pykafka_ui.v3.resources import Document, Links, upper_snake


class Reads:
    """The routes, which read what `console` has."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api/v3/clusters", tags=["v3"])
        group = "/{cluster_id}/consumer-groups/{group_id:path}"  # a group's name may have a slash
        for path, route in (
            ("", self.clusters),
            ("/{cluster_id}", self.cluster),
            ("/{cluster_id}/brokers", self.brokers),
            ("/{cluster_id}/brokers/{broker_id}", self.broker),
            ("/{cluster_id}/brokers/{broker_id}/configs", self.broker_configs),
            ("/{cluster_id}/brokers/{broker_id}/configs/{name}", self.broker_config),
            ("/{cluster_id}/topics", self.topics),
            ("/{cluster_id}/topics/{topic_name}", self.topic),
            ("/{cluster_id}/topics/{topic_name}/configs", self.topic_configs),
            ("/{cluster_id}/topics/{topic_name}/configs/{name}", self.topic_config),
            ("/{cluster_id}/topics/{topic_name}/partitions", self.partitions),
            ("/{cluster_id}/topics/{topic_name}/partitions/{partition_id}", self.partition),
            ("/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas", self.replicas),
            ("/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas/{broker_id}", self.replica),
            ("/{cluster_id}/consumer-groups", self.groups),
            (f"{group}/consumers", self.consumers),
            (f"{group}/consumers/{{consumer_id:path}}/assignments", self.assignments),
            (
                f"{group}/consumers/{{consumer_id:path}}/assignments/{{topic_name}}/partitions/{{partition_id}}",
                self.assignment,
            ),
            (f"{group}/consumers/{{consumer_id:path}}", self.consumer),
            (f"{group}/lag-summary", self.lag_summary),
            (f"{group}/lags", self.lags),
            (f"{group}/lags/{{topic_name}}/partitions/{{partition_id}}", self.lag),
            (group, self.group),
        ):
            api.add_api_route(path, route)
        return api

    # --- cluster and brokers

    def clusters(self, request: Request) -> Document:
        """The one cluster."""
        found = snapshot_of(self._console)
        links = Links(request, found.cluster_id)
        return links.collection("KafkaClusterList", [_cluster_document(links, found)], whole=False)

    def cluster(self, request: Request, cluster_id: str) -> Document:
        """The cluster and its controller."""
        return _cluster_document(Links(request, cluster_id), snapshot_of(self._console, cluster_id))

    def brokers(self, request: Request, cluster_id: str) -> Document:
        """Brokers with their advertised addresses."""
        links, found = Links(request, cluster_id), snapshot_of(self._console, cluster_id)
        return links.collection("KafkaBrokerList", [_broker_document(links, one) for one in found.brokers], "brokers")

    def broker(self, request: Request, cluster_id: str, broker_id: int) -> Document:
        """One broker."""
        for one in snapshot_of(self._console, cluster_id).brokers:
            if one.id == broker_id:
                return _broker_document(Links(request, cluster_id), one)
        raise HTTPException(404, f"there is no broker {broker_id}")

    def broker_configs(self, request: Request, cluster_id: str, broker_id: int) -> Document:
        """The settings of a broker."""
        links, at = Links(request, cluster_id), ("brokers", broker_id, "configs")
        self.broker(request, cluster_id, broker_id)
        settings = self._console.broker_settings(broker_id)
        rows = [config_document(links, "KafkaBrokerConfig", one, *at) | {"broker_id": broker_id} for one in settings]
        return links.collection("KafkaBrokerConfigList", rows, *at)

    def broker_config(self, request: Request, cluster_id: str, broker_id: int, name: str) -> Document:
        """One setting of a broker."""
        return _named("setting", "name", name, self.broker_configs(request, cluster_id, broker_id))

    # --- topics

    def topics(self, request: Request, cluster_id: str) -> Document:
        """All topics."""
        links, found = Links(request, cluster_id), snapshot_of(self._console, cluster_id)
        return links.collection("KafkaTopicList", [topic_document(links, t) for t in found.topics.values()], "topics")

    def topic(self, request: Request, cluster_id: str, topic_name: str) -> Document:
        """One topic."""
        return topic_document(Links(request, cluster_id), self._topic(cluster_id, topic_name))

    def topic_configs(self, request: Request, cluster_id: str, topic_name: str) -> Document:
        """The settings of a topic."""
        links, at = Links(request, cluster_id), ("topics", topic_name, "configs")
        self._topic(cluster_id, topic_name)
        rows = [
            config_document(links, "KafkaTopicConfig", one, *at) | {"topic_name": topic_name}
            for one in self._console.topic_settings(topic_name)
        ]
        return links.collection("KafkaTopicConfigList", rows, *at)

    def topic_config(self, request: Request, cluster_id: str, topic_name: str, name: str) -> Document:
        """One setting of a topic."""
        return _named("setting", "name", name, self.topic_configs(request, cluster_id, topic_name))

    def partitions(self, request: Request, cluster_id: str, topic_name: str) -> Document:
        """Partitions with leader, ISR, log start and end offset, and bytes (-1: not known)."""
        links = Links(request, cluster_id)
        found = self._topic(cluster_id, topic_name).partitions
        rows = [_partition_document(links, topic_name, one) for one in found]
        return links.collection("KafkaPartitionList", rows, "topics", topic_name, "partitions")

    def partition(self, request: Request, cluster_id: str, topic_name: str, partition_id: int) -> Document:
        """One partition."""
        one = self._partition(cluster_id, topic_name, partition_id)
        return _partition_document(Links(request, cluster_id), topic_name, one)

    def replicas(self, request: Request, cluster_id: str, topic_name: str, partition_id: int) -> Document:
        """The replicas of a partition."""
        links, at = Links(request, cluster_id), ("topics", topic_name, "partitions", partition_id, "replicas")
        one = self._partition(cluster_id, topic_name, partition_id)
        rows = [
            links.resource(
                "KafkaReplica",
                *(*at, broker),
                topic_name=topic_name,
                partition_id=partition_id,
                broker_id=broker,
                is_leader=broker == one.leader,
                is_in_sync=broker in one.isr,
                broker=links.to("brokers", broker),
            )
            for broker in one.replicas
        ]
        return links.collection("KafkaReplicaList", rows, *at)

    def replica(
        self, request: Request, cluster_id: str, topic_name: str, partition_id: int, broker_id: int
    ) -> Document:
        """One replica of a partition."""
        found = self.replicas(request, cluster_id, topic_name, partition_id)
        return _named("replica", "broker_id", broker_id, found)

    def _topic(self, cluster_id: str, name: str) -> Topic:
        found = snapshot_of(self._console, cluster_id).topics
        if name not in found:
            raise HTTPException(404, f"there is no topic {name!r}")
        return found[name]

    def _partition(self, cluster_id: str, topic: str, index: int) -> Partition:
        for one in self._topic(cluster_id, topic).partitions:
            if one.index == index:
                return one
        raise HTTPException(404, f"topic {topic!r} has no partition {index}")

    # --- groups

    def groups(self, request: Request, cluster_id: str) -> Document:
        """All groups. `partition_assignor` is only known of a group that is asked for by itself."""
        links, found = Links(request, cluster_id), snapshot_of(self._console, cluster_id)
        rows = [_group_document(links, one) for one in found.groups.values()]
        return links.collection("KafkaConsumerGroupList", rows, "consumer-groups")

    def group(self, request: Request, cluster_id: str, group_id: str) -> Document:
        """One group, with its assignor and coordinator."""
        one = self._group(cluster_id, group_id)
        return _group_document(Links(request, cluster_id), one, self._console.group(group_id))

    def consumers(self, request: Request, cluster_id: str, group_id: str) -> Document:
        """The members of a group."""
        links = Links(request, cluster_id)
        self._group(cluster_id, group_id)
        rows = [_consumer_document(links, group_id, one) for one in self._console.group(group_id).members]
        return links.collection("KafkaConsumerList", rows, "consumer-groups", group_id, "consumers")

    def consumer(self, request: Request, cluster_id: str, group_id: str, consumer_id: str) -> Document:
        """One member."""
        return _consumer_document(Links(request, cluster_id), group_id, self._member(cluster_id, group_id, consumer_id))

    def assignments(self, request: Request, cluster_id: str, group_id: str, consumer_id: str) -> Document:
        """The partitions of a member."""
        links = Links(request, cluster_id)
        at = ("consumer-groups", group_id, "consumers", consumer_id, "assignments")
        rows = [
            links.resource(
                "KafkaConsumerAssignment",
                *(*at, tp.topic, "partitions", tp.partition),
                consumer_group_id=group_id,
                consumer_id=consumer_id,
                topic_name=tp.topic,
                partition_id=tp.partition,
                partition=links.to("topics", tp.topic, "partitions", tp.partition),
                lag=links.to("consumer-groups", group_id, "lags", tp.topic, "partitions", tp.partition),
            )
            for tp in self._member(cluster_id, group_id, consumer_id).partitions
        ]
        return links.collection("KafkaConsumerAssignmentList", rows, *at)

    def assignment(
        self, request: Request, cluster_id: str, group_id: str, consumer_id: str, topic_name: str, partition_id: int
    ) -> Document:
        """One partition of a member."""
        found = self.assignments(request, cluster_id, group_id, consumer_id)
        return _named("partition", "partition_id", partition_id, found, topic_name=topic_name)

    def lag_summary(self, request: Request, cluster_id: str, group_id: str) -> Document:
        """The sum of a group's lags, and the largest; and what is unread in partitions without a committed offset."""
        links, one = Links(request, cluster_id), self._group(cluster_id, group_id)
        largest = max(one.lags, key=lambda tp: one.lags[tp], default=None)
        member = self._owners(group_id).get(largest) if largest else None
        return links.resource(
            "KafkaConsumerLagSummary",
            *("consumer-groups", group_id, "lag-summary"),
            consumer_group_id=group_id,
            **{f"max_lag_{name}": value for name, value in _client(member).items()},
            max_lag_topic_name=largest.topic if largest else "",
            max_lag_partition_id=largest.partition if largest else -1,
            max_lag=one.lags[largest] if largest else 0,
            total_lag=one.lag,
            total_unread=one.behind - one.lag,
            partitions_without_commit=len(one.uncommitted),
            max_lag_consumer=links.to("consumer-groups", group_id, "consumers", member.member_id) if member else None,
            max_lag_partition=links.to("topics", largest.topic, "partitions", largest.partition) if largest else None,
        )

    def lags(self, request: Request, cluster_id: str, group_id: str) -> Document:
        """A group's offset and lag in each partition; null where a member reads it without a committed offset."""
        links, found = Links(request, cluster_id), snapshot_of(self._console, cluster_id)
        one, owners = _group_of(found, group_id), self._owners(group_id)
        rows = [_lag_document(links, found, one, tp, owners.get(tp)) for tp in one.partitions]
        return links.collection("KafkaConsumerLagList", rows, "consumer-groups", group_id, "lags")

    def lag(self, request: Request, cluster_id: str, group_id: str, topic_name: str, partition_id: int) -> Document:
        """A group's offset and lag in one partition."""
        found, tp = snapshot_of(self._console, cluster_id), TopicPartition(topic_name, partition_id)
        one = _group_of(found, group_id)
        if tp not in one.partitions:
            raise HTTPException(404, f"group {group_id!r} has no offset of {tp}, and no member that reads it")
        owner = self._owners(group_id).get(tp)
        return _lag_document(Links(request, cluster_id), found, one, tp, owner)

    def _group(self, cluster_id: str, name: str) -> Group:
        return _group_of(snapshot_of(self._console, cluster_id), name)

    def _member(self, cluster_id: str, group_id: str, consumer_id: str) -> MemberDescription:
        self._group(cluster_id, group_id)
        for one in self._console.group(group_id).members:
            if one.member_id == consumer_id:
                return one
        raise HTTPException(404, f"group {group_id!r} has no member {consumer_id!r}")

    def _owners(self, group_id: str) -> Mapping[TopicPartition, MemberDescription]:
        """The members, as far as they can be had: lags are known without them."""
        try:
            return self._console.group(group_id).owners
        except PykafkaError:
            return {}


def snapshot_of(console: Console, cluster_id: str | None = None) -> Snapshot:
    """Raises HTTPException while nothing was seen, and for another cluster."""
    found = console.sampler.watch(groups=True)
    if found.at_ms == 0:
        raise HTTPException(503, f"the cluster does not answer: {found.error or 'not yet'}")
    if cluster_id is not None and cluster_id != found.cluster_id:
        raise HTTPException(404, f"there is no cluster {cluster_id!r}; this one is {found.cluster_id!r}")
    return found


def _group_of(found: Snapshot, name: str) -> Group:
    if name not in found.groups:
        raise HTTPException(404, f"there is no group {name!r}")
    return found.groups[name]


def _cluster_document(links: Links, found: Snapshot) -> Document:
    controller = links.to("brokers", found.controller) if found.controller >= 0 else None
    return links.resource(
        "KafkaCluster",
        controller=controller,
        brokers=links.to("brokers"),
        topics=links.to("topics"),
        consumer_groups=links.to("consumer-groups"),
        controller_id=found.controller,
    )


def _broker_document(links: Links, one: Node) -> Document:
    return links.resource(
        "KafkaBroker",
        *("brokers", one.id),
        broker_id=one.id,
        host=one.host,
        port=one.port,
        rack=one.rack,
        configs=links.to("brokers", one.id, "configs"),
    )


def topic_document(links: Links, one: Topic) -> Document:
    """A topic, with its records and bytes (-1: not known)."""
    return links.resource(
        "KafkaTopic",
        *("topics", one.name),
        topic_name=one.name,
        is_internal=one.internal,
        replication_factor=one.replication,
        partitions_count=len(one.partitions),
        partitions=links.to("topics", one.name, "partitions"),
        configs=links.to("topics", one.name, "configs"),
        records=one.records,
        size_bytes=one.size,
    )


def config_document(links: Links, kind: str, one: ConfigEntry, *at: object) -> Document:
    """A setting, below the address `at`."""
    synonyms = [{"name": s.name, "value": s.value, "source": s.source.name} for s in one.synonyms]
    return links.resource(
        kind,
        *(*at, one.name),
        name=one.name,
        value=one.value,
        is_default=one.source is ConfigSource.DEFAULT_CONFIG,
        is_read_only=one.read_only,
        is_sensitive=one.sensitive,
        source=one.source.name,
        synonyms=synonyms,
    )


def _partition_document(links: Links, topic: str, one: Partition) -> Document:
    at = ("topics", topic, "partitions", one.index)
    return links.resource(
        "KafkaPartition",
        *at,
        topic_name=topic,
        partition_id=one.index,
        leader=links.to(*at, "replicas", one.leader) if one.leader >= 0 else None,
        replicas=links.to(*at, "replicas"),
        leader_id=one.leader,
        replica_ids=list(one.replicas),
        isr=list(one.isr),
        log_start_offset=one.start,
        log_end_offset=one.end,
        size_bytes=one.size,
    )


def _group_document(links: Links, one: Group, about: GroupDescription | None = None) -> Document:
    at = ("consumer-groups", one.id)
    return links.resource(
        "KafkaConsumerGroup",
        *at,
        consumer_group_id=one.id,
        is_simple=not one.protocol_type,
        partition_assignor=about.protocol if about else "",
        state=upper_snake(one.state if about is None or about.state == "Dead" else about.state),
        type=upper_snake(one.type) or "CLASSIC",
        is_mixed_consumer_group=False,
        coordinator=links.to("brokers", about.coordinator.id) if about else None,
        consumers=links.to(*at, "consumers"),
        lag_summary=links.to(*at, "lag-summary"),
        committed_by=one.kind,
        total_lag=one.lag,
        total_unread=one.behind - one.lag,
    )


def _named(what: str, field: str, wanted: object, found: Document, **also: object) -> Document:
    """The row of a list in which `field` is `wanted`. Raises HTTPException when there is none."""
    for row in found["data"]:
        if row[field] == wanted and all(row[name] == value for name, value in also.items()):
            return dict(row)
    raise HTTPException(404, f"there is no {what} {wanted}")


def _client(member: MemberDescription | None) -> Document:
    return {
        "consumer_id": member.member_id if member else "",
        "instance_id": member.group_instance_id if member else None,
        "client_id": member.client_id if member else "",
    }


def _consumer_document(links: Links, group: str, one: MemberDescription) -> Document:
    at = ("consumer-groups", group, "consumers", one.member_id)
    return links.resource(
        "KafkaConsumer",
        *at,
        consumer_group_id=group,
        **_client(one),
        assignments=links.to(*at, "assignments"),
        host=one.host,
    )


def _lag_document(
    links: Links, found: Snapshot, group: Group, tp: TopicPartition, owner: MemberDescription | None
) -> Document:
    at, known = group.offsets.get(tp), tp in group.lags or tp in group.unread
    return links.resource(
        "KafkaConsumerLag",
        *("consumer-groups", group.id, "lags", tp.topic, "partitions", tp.partition),
        consumer_group_id=group.id,
        topic_name=tp.topic,
        partition_id=tp.partition,
        current_offset=at.offset if at else None,
        log_end_offset=found.partitions[tp].end if known else None,
        lag=group.lags.get(tp),
        unread=group.unread.get(tp),
        **_client(owner),
    )
