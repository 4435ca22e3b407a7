"""Applies changes that other brokers make in ZooKeeper: topics, brokers, controller, settings.

ZooKeeper's callbacks run on a thread of its client. They only note on the event loop what must be read again; `run`
then reads it, once for any number of changes that come meanwhile. This broker's own changes are in the metadata by
then, and cost nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper.cluster_store import ClusterStore, on_loop
from broker.zookeeper.metadata_store import Watch

logger = logging.getLogger(__name__)

RETRY_S = 5.0

OnConfig = Callable[[str], Awaitable[None]]


class ClusterWatch:
    """Call `start`, then `run` as a task until the broker stops, then cancel the watches, from any thread."""

    def __init__(self, store: ClusterStore, topics: MetadataCache, configs: BrokerConfigs) -> None:
        self._registry = store.registry
        self._may_delete = configs.dynamic.static.delete_topic_enable
        self._notifications = store.changes
        self._topics = topics
        self._on_config: dict[str, list[OnConfig]] = {"brokers": [lambda _: configs.refresh()]}
        self._due = asyncio.Event()
        self._read_all = False
        self._read_topic_list = False
        self._altered: set[tuple[str, str]] = set()
        """(kind of entity, name) of what must be read again."""
        self._brokers_seen = False

    def add_config_listener(self, kind: str, on_change: OnConfig) -> None:
        """Await `on_change(name)` when the settings of an entity of this kind (`users`, `clients`, …) have changed, and
        `on_change("")` when those of any may have changed."""
        self._on_config.setdefault(kind, []).append(on_change)

    def start(self) -> list[Watch]:
        """Start the watches. Call it on the event loop."""
        return [
            self._registry.watch_topics(on_loop(self._note_topics)),
            self._registry.watch_brokers(on_loop(self._note_brokers)),
            self._registry.controller.watch(on_loop(self._topics.set_controller)),
            self._registry.deletions.watch(self._delete_marked),
            self._notifications.watch_config_changes(on_loop(self.note_altered)),
            self._notifications.watch_isr_changes(on_loop(self._note_leaders)),
        ]

    async def run(self) -> None:
        """Apply changes for ever. After a failure, read everything again."""
        logged = ""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._apply_changes()
                logged = ""
                continue
            except PykafkaError as error:
                if str(error) != logged:
                    logger.warning("cannot apply a change of the cluster, trying again: %s", error)
                logged = str(error)
            except Exception:
                logger.exception("applying a change of the cluster failed")
            self._read_all = True
            asyncio.get_running_loop().call_later(RETRY_S, self._due.set)

    async def _apply_changes(self) -> None:
        read_all, read_topic_list = self._read_all, self._read_topic_list
        altered, self._altered = self._altered, set()
        self._read_all = self._read_topic_list = False
        if read_all:
            await self._topics.refresh()
            for on_change in itertools.chain(*self._on_config.values()):
                await on_change("")
        elif read_topic_list:
            await self._topics.catch_up()
        names = {name for kind, name in altered if kind == "topics"}
        if names and not read_all:
            await self._topics.refresh(names)
        for kind, name in altered:
            for on_change in self._on_config.get(kind, ()):
                await on_change(name)

    # --- callbacks, on the event loop but for `_delete_marked`

    def _note_topics(self, names: frozenset[str]) -> None:
        if self._topics.topics_listed(names):
            self._read_topic_list = True
            self._due.set()

    def _note_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """A broker came or went, or this client was disconnected and may have missed any change."""
        first, self._brokers_seen = not self._brokers_seen, True
        if not first or brokers != self._topics.metadata.brokers:
            self._read_all = True
            self._due.set()

    def note_altered(self, entities: Iterable[str]) -> None:
        """Read these (`kind/name`) again; `kind/` stands for all of a kind. Call it on the event loop."""
        for entity in entities:
            kind, _, name = entity.partition("/")
            self._altered.add((kind, name))
        self._due.set()

    def _note_leaders(self, partitions: list[TopicPartition]) -> None:
        """These partitions have another leader or a new leader epoch."""
        self._altered |= {("topics", tp.topic) for tp in partitions}
        self._due.set()

    def _delete_marked(self, names: list[str]) -> None:
        """Delete topics that Kafka's tools have marked, on ZooKeeper's thread. The watch on topics does the rest."""
        if names:
            self._registry.deletions.resume(allowed=self._may_delete)
