"""The features of the cluster: versions of protocols that every broker has, so that clients may use them (KIP-584).

Each broker names in its registration what it supports. The controller finalizes a version when all brokers have it, and
takes it back when a broker joins that does not: in a rolling upgrade that is after the last broker, in a rolling
downgrade before the first. ApiVersions tells clients both. No broker is upgraded by a command, as Kafka's are by
`kafka-features.sh upgrade`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.cluster.metadata_cache import MetadataCache
from broker.zookeeper import znodes
from broker.zookeeper.cluster_store import ClusterStore, on_loop
from broker.zookeeper.feature_node import FinalizedFeatures, decode_features, read_features, write_features
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import NodeStat

SUPPORTED: Final[Mapping[str, int]] = {"transaction.version": 2}
"""The highest version of each feature in this release. Version 0 is its absence."""


class Features:
    """Lives on the event loop. Call `load` and `start`, and `finalize` while this broker is the controller."""

    def __init__(self, store: MetadataStore, calls: ClusterStore, topics: MetadataCache) -> None:
        self._store = store
        self._calls = calls
        self._topics = topics
        self.finalized = FinalizedFeatures()
        self._on_lower: Callable[[], None] = lambda: None

    async def load(self) -> None:
        """Read what is finalized. Raises BrokerError."""
        self.finalized = await self._calls(read_features, self._store)

    def start(self, on_change: Callable[[], None], on_lower: Callable[[], None]) -> Watch:
        """Follow what is finalized. `on_change` is called when that has changed, `on_lower` when one is taken back."""
        self._on_lower = on_lower

        def note(data: bytes | None, stat: NodeStat | None) -> None:
            self._adopt(decode_features(data, stat))
            on_change()

        return self._store.watch_data(znodes.FEATURE, on_loop(note))

    def _adopt(self, finalized: FinalizedFeatures) -> None:
        before, self.finalized = self.finalized.versions, finalized
        if any(finalized.versions.get(name, 0) < level for name, level in before.items()):
            self._on_lower()

    @property
    def is_due(self) -> bool:
        """Whether the controller should finalize other versions."""
        return self._wanted() != self.finalized.versions

    async def finalize(self, controller_version: int) -> None:
        """Finalize what all brokers support. Raises BrokerError `not_controller`, `request_timed_out`."""
        if self.is_due:
            versions, epoch = self._wanted(), self.finalized.epoch
            if await self._calls(write_features, self._store, versions, epoch, controller_version=controller_version):
                self._adopt(FinalizedFeatures(versions, epoch + 1))

    def _wanted(self) -> dict[str, int]:
        """A version is raised only while no broker with replicas is down: it may come back with an earlier release."""
        metadata, now = self._topics.metadata, self.finalized.versions
        brokers = metadata.brokers.values()
        levels = {name: min((one.features.get(name, 0) for one in brokers), default=0) for name in SUPPORTED}
        if any(level > now.get(name, 0) for name, level in levels.items()):
            partitions = (info for topic in metadata.topics.values() for info in topic.partitions.values())
            if any(not metadata.brokers.keys() >= set(info.replicas) for info in partitions):
                levels = {name: min(level, now.get(name, 0)) for name, level in levels.items()}
        return {name: level for name, level in levels.items() if level}
