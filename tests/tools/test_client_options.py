"""Partitions as they are named on a command line."""

from __future__ import annotations

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import named_partitions
from tests.support.kafka import Kafka
from tests.support.metadata_requests import record_metadata_requests
from tests.support.topics import Topic


def test_all_topics_that_are_named_are_asked_about_at_once(
    broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, each would ask anew about all those before it: a minute for a thousand topics."""
    names = [Topic(broker.bootstrap, f"{topic}-{number}", 2).name for number in range(3)]
    asked = record_metadata_requests(monkeypatch)
    with Cluster(broker.bootstrap) as cluster:
        found = named_partitions(Admin(cluster), [*names[:2], f"{names[2]}:1"])
    assert found == [TopicPartition(name, index) for name in names[:2] for index in (0, 1)] + [(names[2], 1)]
    assert asked == [set(names)]
