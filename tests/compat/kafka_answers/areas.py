"""All areas by name: what asks for each, and how the broker is set up that is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers import (
    acl_requests,
    cluster_requests,
    config_requests,
    consumer_group_requests,
    fetch_requests,
    group_requests,
    produce_requests,
    quota_requests,
    rights_requests,
    share_group_requests,
    topic_id_requests,
    topic_requests,
    transaction_requests,
    transaction_v2_requests,
)
from tests.compat.kafka_answers.asking import Answers, Asking
from tests.compat.kafka_answers.cluster_asking import ClusterAsking, Nodes
from tests.compat.kafka_answers.guarded_asking import GuardedAsking
from tests.support.permission_cases import GUARDED_SETTINGS as GUARDED
from tests.support.waiting import eventually

AREAS: Mapping[str, Callable[[Asking], None]] = {
    "produce": produce_requests.ask_all,
    "fetch": fetch_requests.ask_all,
    "topics": topic_requests.ask_all,
    "configs": config_requests.ask_all,
    "groups": group_requests.ask_all,
    "transactions": transaction_requests.ask_all,
    "quotas": quota_requests.ask_all,
}

KAFKA4_AREAS: Mapping[str, Callable[[Asking], None]] = {
    "consumer_groups": consumer_group_requests.ask_all,
    "group_migration": consumer_group_requests.ask_migrations,
    "share_groups": share_group_requests.ask_all,
    "topic_ids": topic_id_requests.ask_all,
    "transactions_v2": transaction_v2_requests.ask_all,
}
"""Recorded of Kafka 4.3.0, the others of 3.8.1 and 3.9. It also had KAFKA4_SETTINGS."""

SETTINGS = {
    "broker.id": "1",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "500",
    "min.insync.replicas": "1",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}
"""What the Kafka that was recorded had set."""

KAFKA4_SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
    "group.share.assignment.interval.ms": "0",
    "group.share.assignor.offload.enable": "false",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "15000",
}
"""Without the first four its answers depend on the time: they let a group wait before it is assigned anew."""

GUARDED_AREAS: Mapping[str, Callable[[GuardedAsking], None]] = {
    "rights": rights_requests.ask_all,
    "acls": acl_requests.ask_all,
}
"""Asked of a broker with an authorizer."""

GUARDED_SETTINGS = {**SETTINGS, **GUARDED}
"""What it had set; among themselves its brokers were the super user."""

CLUSTER_AREAS: Mapping[str, Callable[[ClusterAsking], None]] = {
    "cluster": cluster_requests.ask_all,
}
"""Asked of the brokers 1, 2 and 3 of a cluster."""

CLUSTER_SETTINGS = {
    **{name: value for name, value in SETTINGS.items() if not name.endswith(("broker.id", "replication.factor"))},
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "replica.fetch.max.bytes": "1",
    "transaction.state.log.replication.factor": "3",
}
"""What their Kafka had set, and `broker.rack` was rack1, rack2, rack3. Followers fetch one batch at a time, so that a
throttle can stop them before they have caught up."""


def answers_of(area: str, bootstrap: str, broker_id: int, prefix: str) -> Answers:
    """Ask one broker everything of one area; `prefix` must begin no topic that is there."""
    asking = Asking(bootstrap, broker_id, prefix)
    try:
        _make_coordinators(asking)
        {**AREAS, **KAFKA4_AREAS}[area](asking)
    finally:
        asking.close()
    return asking.answers


def answers_of_guarded(area: str, bootstrap: str, login_address: str, broker_id: int, prefix: str) -> Answers:
    """The same of a broker with GUARDED_SETTINGS; at the second address the super user logs in."""
    asking = GuardedAsking(bootstrap, login_address, broker_id, prefix)
    try:
        GUARDED_AREAS[area](asking)
    finally:
        asking.close()
    return asking.answers


def answers_of_cluster(area: str, nodes: Nodes, prefix: str) -> Answers:
    """The same of a cluster of three."""
    asking = ClusterAsking(nodes, prefix)
    try:
        _make_coordinators(asking)
        CLUSTER_AREAS[area](asking)
    finally:
        asking.close()
    return asking.answers


def _make_coordinators(asking: Asking) -> None:
    """The internal topics are there, and loaded, before anything is asked."""

    def ready(key_type: int) -> bool:
        body = {"key": "any", "key_type": key_type, "coordinator_keys": ["any"]}
        (found,) = asking.requests.ask(ApiKey.FIND_COORDINATOR, body, 4).coordinators
        if found.error_code is not ErrorCode.none:
            return False
        if isinstance(asking, ClusterAsking):
            asking.at(found.node_id)
        return True

    def gives_ids() -> bool:
        body = {"transactional_id": "any", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        return bool(asking.requests.ask(ApiKey.INIT_PRODUCER_ID, body, 4).error_code is ErrorCode.none)

    for key_type in (0, 1):
        eventually(lambda kind=key_type: ready(kind))  # type: ignore[misc]
    eventually(gives_ids)
