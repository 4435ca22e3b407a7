"""A source and a target for the mirror's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from broker.client.cluster import Cluster
from broker.mirror.mirror import Mirror, MirrorStats
from broker.mirror.mirror_settings import MirrorSettings
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka, external_kafka


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    """The broker that is mirrored to, shared by the session."""
    data_dir = tmp_path_factory.mktemp("target") / "data"
    with BrokerProcess(data_dir, SESSION_SETTINGS, zookeeper=f"{zookeeper}/target") as process:
        yield process
    assert "Traceback" not in process.output, process.output


class Route(NamedTuple):
    """From where to where the test mirrors, in its own name."""

    source: str
    target: str
    alias: str

    def settings(self, topic: str, **others: object) -> MirrorSettings:
        return MirrorSettings(topics=(topic,), source_cluster_alias=self.alias, **others)  # type: ignore[arg-type]

    def once(self, topic: str, **others: object) -> MirrorStats:
        """Mirror what there is."""
        with Cluster(self.source) as source, Cluster(self.target) as target:
            mirror = Mirror(source, target, self.settings(topic, **others))
            mirror.run(lambda: False, once=True)
        return mirror.stats


@pytest.fixture(params=["to ours"] if external_kafka() is None else ["to ours", "from ours"])
def route(request: pytest.FixtureRequest, broker: Kafka, target: BrokerProcess, group: str) -> Route:
    """From any Kafka to ours, and where that is another one also the other way."""
    ends = broker.bootstrap, target.bootstrap
    return Route(*(ends if request.param == "to ours" else ends[::-1]), group)
