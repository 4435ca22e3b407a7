"""What the pages show, as JSON under /api. The shapes under /api/v3 are those of Confluent's REST Proxy v3.

OpenAPI describes all of it at /api/openapi.json. Errors have its shape, too: `error_code` and `message`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException

from broker.client.cluster_metadata import UnknownTopic
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from pykafka_ui.asked_records import AskedRecords, at_most
from pykafka_ui.console import Console
from pykafka_ui.loads.places import UnknownPlace
from pykafka_ui.snapshot import Group, Snapshot, Topic

__all__ = ["Api", "status_of"]

Document = dict[str, Any]
_MOST_RECORDS = 1_000
_STATUS = {
    ErrorCode.topic_authorization_failed: 403,
    ErrorCode.group_authorization_failed: 403,
    ErrorCode.cluster_authorization_failed: 403,
    ErrorCode.transactional_id_authorization_failed: 403,
    ErrorCode.topic_already_exists: 409,
    ErrorCode.non_empty_group: 409,
}


class Api:
    """The routes, which read what `console` has."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def router(self) -> APIRouter:
        api = APIRouter(prefix="/api")
        api.add_api_route("/v3/clusters", self.clusters, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}", self.cluster, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}/brokers", self.brokers, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}/topics", self.topics, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}/topics/{topic_name}", self.topic, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}/topics/{topic_name}/partitions", self.partitions, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}/topics/{topic_name}/configs", self.topic_configs, tags=["v3"])
        api.add_api_route("/v3/clusters/{cluster_id}/consumer-groups", self.groups, tags=["v3"])
        api.add_api_route(
            "/v3/clusters/{cluster_id}/consumer-groups/{group_id:path}/lag-summary", self.lag_summary, tags=["v3"]
        )
        api.add_api_route("/v3/clusters/{cluster_id}/consumer-groups/{group_id:path}/lags", self.lags, tags=["v3"])
        api.add_api_route("/topics/{name}/records", self.records, tags=["records"])
        api.add_api_route("/history/{kind}", self.history, tags=["history"])
        return api

    def _snapshot(self, cluster: str | None = None) -> Snapshot:
        found = self._console.sampler.watch(groups=True)
        if found.at_ms == 0:
            raise HTTPException(503, f"the cluster does not answer: {found.error or 'not yet'}")
        if cluster is not None and cluster != found.cluster_id:
            raise HTTPException(404, f"there is no cluster {cluster!r}; this one is {found.cluster_id!r}")
        return found

    def clusters(self) -> Document:
        """The one cluster."""
        return _list("KafkaClusterList", [_cluster(self._snapshot())])

    def cluster(self, cluster_id: str) -> Document:
        """The cluster and its controller."""
        return _cluster(self._snapshot(cluster_id))

    def brokers(self, cluster_id: str) -> Document:
        """Brokers with their advertised addresses."""
        found = self._snapshot(cluster_id)
        rows = [
            {"cluster_id": cluster_id, "broker_id": one.id, "host": one.host, "port": one.port, "rack": one.rack}
            for one in found.brokers
        ]
        return _list("KafkaBrokerList", [{"kind": "KafkaBroker"} | row for row in rows])

    def topics(self, cluster_id: str) -> Document:
        """All topics."""
        found = self._snapshot(cluster_id)
        return _list("KafkaTopicList", [_topic(cluster_id, one) for one in found.topics.values()])

    def topic(self, cluster_id: str, topic_name: str) -> Document:
        """One topic."""
        return _topic(cluster_id, _topic_of(self._snapshot(cluster_id), topic_name))

    def partitions(self, cluster_id: str, topic_name: str) -> Document:
        """Partitions with leader, ISR, log start and end offset, and bytes (-1: not known)."""
        rows = [
            {
                "kind": "KafkaPartition",
                "cluster_id": cluster_id,
                "topic_name": topic_name,
                "partition_id": one.index,
                "leader": one.leader,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                "log_start_offset": one.start,
                "log_end_offset": one.end,
                "size_bytes": one.size,
            }
            for one in _topic_of(self._snapshot(cluster_id), topic_name).partitions
        ]
        return _list("KafkaPartitionList", rows)

    def topic_configs(self, cluster_id: str, topic_name: str) -> Document:
        """The settings of a topic."""
        _topic_of(self._snapshot(cluster_id), topic_name)
        rows = [
            {
                "kind": "KafkaTopicConfig",
                "cluster_id": cluster_id,
                "topic_name": topic_name,
                "name": one.name,
                "value": one.value,
                "is_default": not one.source.dynamic,
                "is_read_only": one.read_only,
                "is_sensitive": one.sensitive,
                "source": one.source.name,
            }
            for one in self._console.topic_settings(topic_name)
        ]
        return _list("KafkaTopicConfigList", rows)

    def groups(self, cluster_id: str) -> Document:
        """All groups."""
        found = self._snapshot(cluster_id)
        return _list("KafkaConsumerGroupList", [_group(cluster_id, one) for one in found.groups.values()])

    def lag_summary(self, cluster_id: str, group_id: str) -> Document:
        """The sum of a group's lags, and the largest."""
        one = _group_of(self._snapshot(cluster_id), group_id)
        largest = max(one.lags, key=lambda tp: one.lags[tp], default=None)
        return {
            "kind": "KafkaConsumerGroupLagSummary",
            "cluster_id": cluster_id,
            "consumer_group_id": group_id,
            "max_lag": one.lags[largest] if largest else 0,
            "max_lag_topic_name": largest.topic if largest else None,
            "max_lag_partition_id": largest.partition if largest else None,
            "total_lag": one.lag,
        }

    def lags(self, cluster_id: str, group_id: str) -> Document:
        """A group's offset and lag in each partition."""
        found = self._snapshot(cluster_id)
        one = _group_of(found, group_id)
        rows = [
            {
                "kind": "KafkaConsumerLag",
                "cluster_id": cluster_id,
                "consumer_group_id": group_id,
                "topic_name": tp.topic,
                "partition_id": tp.partition,
                "current_offset": offset.offset,
                "log_end_offset": found.partitions[tp].end if tp in one.lags else None,
                "lag": one.lags.get(tp),
            }
            for tp, offset in sorted(one.offsets.items())
        ]
        return _list("KafkaConsumerLagList", rows)

    def records(self, asked: AskedRecords) -> Document:
        """Some records: at most 1,000, with where older and newer ones are."""
        with self._console.records(at_most(asked, _MOST_RECORDS)) as found:
            return found.document()

    def history(self, kind: str, name: str = "") -> Document:
        """The last hour: `records` or `read` per second of a topic or group, or the `lag` of a group.

        Without a name: of the whole cluster. A point every 30 s, or seldomer in a large cluster.
        """
        if kind not in ("records", "read", "lag"):
            raise HTTPException(404, f"there is no history of {kind!r}")
        history = self._console.sampler.history(kind)
        found = history.values(kind, name) if kind == "lag" else history.rate(kind, name)
        return {"kind": kind, "name": name, "times": [at for at, _ in found], "values": [value for _, value in found]}


def _topic_of(found: Snapshot, name: str) -> Topic:
    if name not in found.topics:
        raise HTTPException(404, f"there is no topic {name!r}")
    return found.topics[name]


def _group_of(found: Snapshot, name: str) -> Group:
    if name not in found.groups:
        raise HTTPException(404, f"there is no group {name!r}")
    return found.groups[name]


def status_of(error: Exception) -> int:
    """The HTTP status for an error of the cluster or of the request."""
    if isinstance(error, UnknownTopic | UnknownPlace):
        return 404
    if isinstance(error, BrokerError):
        return _STATUS.get(error.code, 502 if error.retriable or error.code is ErrorCode.unknown_server_error else 400)
    if isinstance(error, UnsupportedVersion):
        return 501
    return 400 if isinstance(error, ValueError) else 502


def _list(kind: str, rows: list[Document]) -> Document:
    return {"kind": kind, "data": rows}


def _cluster(found: Snapshot) -> Document:
    return {"kind": "KafkaCluster", "cluster_id": found.cluster_id, "controller_id": found.controller}


def _topic(cluster_id: str, one: Topic) -> Document:
    return {
        "kind": "KafkaTopic",
        "cluster_id": cluster_id,
        "topic_name": one.name,
        "is_internal": one.internal,
        "replication_factor": one.replication,
        "partitions_count": len(one.partitions),
        "records": one.records,
        "size_bytes": one.size,
    }


def _group(cluster_id: str, one: Group) -> Document:
    return {
        "kind": "KafkaConsumerGroup",
        "cluster_id": cluster_id,
        "consumer_group_id": one.id,
        "state": one.state,
        "type": one.kind,
        "total_lag": one.lag,
    }
