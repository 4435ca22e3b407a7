"""The cluster that tests marked `kafka` meet: whichever Kafka `PYKAFKA_TEST_KAFKA` names, else a broker of our own.

Such a test has nothing but an address, so what it proves of our broker is proved of any Kafka in the same words.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient

from broker.client.broker_connection import SOFTWARE
from broker.client.cluster import Cluster
from broker.client.partition_offsets import LATEST, list_offsets
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.support.waiting import eventually

VARIABLE = "PYKAFKA_TEST_KAFKA"

# In every name that a test of this run uses, so that runs do not meet and a cluster that stays can be tidied.
RUN = secrets.token_hex(3)


class Kafka(Protocol):
    """What a client knows of a cluster."""

    @property
    def bootstrap(self) -> str:
        """`host:port[,host:port…]`."""


@dataclass(frozen=True)
class ExternalKafka:
    """A cluster that somebody else started and keeps."""

    bootstrap: str


def external_kafka() -> ExternalKafka | None:
    """The cluster that the environment names."""
    bootstrap = os.environ.get(VARIABLE)
    return ExternalKafka(bootstrap) if bootstrap else None


def tidy(kafka: Kafka) -> None:
    """Delete the topics and groups that this run made there."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid if RUN in group.group_id]
    for future in admin.delete_consumer_groups(groups).values() if groups else ():
        future.exception(30)  # a member that was killed may still be counted as one
    topics = [topic for topic in admin.list_topics(timeout=30).topics if RUN in topic]
    for future in admin.delete_topics(topics).values() if topics else ():
        future.exception(30)


def await_topics(bootstrap: str, *topics: str, partitions: int = 1) -> None:
    """Return when every broker knows the topics with so many partitions (none: not at all), and each leader its part.

    A cluster answers CreateTopics and DeleteTopics before all its brokers have heard of it.
    """
    wanted = {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False}

    def has(topic: Any) -> int:
        return 0 if topic.error_code else sum(not one.error_code for one in topic.partitions)

    def known() -> bool:
        with Cluster(bootstrap) as cluster:
            answers = [cluster.connection(node).request(ApiKey.METADATA, wanted) for node in cluster.brokers()]
        found = [has(topic) for answer in answers for topic in answer.topics]
        return min(found) >= partitions if partitions else not any(found)

    if external_kafka() is None:
        return
    eventually(known)
    with Cluster(bootstrap) as cluster:
        made = [TopicPartition(topic, index) for topic in topics for index in range(partitions)]
        list_offsets(cluster, dict.fromkeys(made, LATEST))  # every leader knows by then that it is one


def await_markers(bootstrap: str, topic: str) -> None:
    """Return when no transaction is open in the topic: Kafka writes markers after the end of one is acknowledged, and
    so does our broker while its disk is slow."""

    def written() -> bool:
        with Cluster(bootstrap) as cluster:
            ends = dict.fromkeys((TopicPartition(topic, index) for index in cluster.partitions(topic)), LATEST)
            return list_offsets(cluster, ends, isolation_level="read_committed") == list_offsets(cluster, ends)

    eventually(written)


def await_end(bootstrap: str, tp: TopicPartition, offset: int) -> None:
    """Return when what lies before `offset` can be read: with acks=1 it is acknowledged before the replicas have it."""
    with Cluster(bootstrap) as cluster:
        eventually(lambda: list_offsets(cluster, {tp: LATEST})[tp].offset >= offset)


def need(bootstrap: str, api: ApiKey) -> None:
    """Skip the test on a Kafka that does not serve this API."""
    with Cluster(bootstrap) as cluster:
        served = cluster.any_connection().request(ApiKey.API_VERSIONS, SOFTWARE).api_keys
    if all(one.api_key != api for one in served):
        pytest.skip(f"this Kafka does not serve {api.title}")


def broker_ids(bootstrap: str) -> list[int]:
    """The ids of the cluster's brokers, in order."""
    with Cluster(bootstrap) as cluster:
        return sorted(node.id for node in cluster.brokers())
