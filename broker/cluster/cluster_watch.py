"""Hears of what others change in ZooKeeper, and has it taken over: topics, brokers, controller, settings.

Owned by the server. ZooKeeper's callbacks come on a thread of its client's; here they become notes of what is due, and
`run`, on the event loop, has it read: however many changes come meanwhile, one reading follows, of what has changed.
What this broker changed itself is known by then, and costs nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.topics import Topics
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import Watch
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import BrokerInfo

__all__ = ["ClusterWatch"]

logger = logging.getLogger(__name__)

AGAIN_S = 5.0

OnConfig = Callable[[str], Awaitable[None]]


class ClusterWatch:
    """`start`, then `run` as a task until the broker stops, then `stop`, which may come from another thread."""

    def __init__(
        self, registry: Registry, changes: ChangeNotifications, topics: Topics, configs: BrokerConfigs
    ) -> None:
        self._registry = registry
        self._notifications = changes
        self._topics = topics
        self._on_config: dict[str, OnConfig] = {"brokers": lambda _: configs.refresh()}
        self._due = asyncio.Event()
        self._everything = False
        self._listing = False
        self._altered: set[tuple[str, str]] = set()
        self._brokers_seen = False
        self._watches: list[Watch] = []

    def add_config_listener(self, kind: str, told: OnConfig) -> None:
        """Await `told(name)` when the settings of an entity were written: `kind` is `users`, `clients`, …; `told("")`
        when those of any may have been."""
        self._on_config[kind] = told

    def start(self) -> None:
        """Begin to listen. Called on the event loop."""
        loop = asyncio.get_running_loop()

        def on_loop(note: Callable[..., None]) -> Callable[..., None]:
            def told(news: object) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(note, news)

            return told

        self._watches = [
            self._registry.watch_topics(on_loop(self._note_topics)),
            self._registry.watch_brokers(on_loop(self._note_brokers)),
            self._registry.watch_controller(on_loop(self._topics.set_controller)),
            self._registry.watch_deletions(self._delete_marked),
            self._notifications.watch_config_changes(on_loop(self._note_configs)),
            self._notifications.watch_isr_changes(on_loop(self._note_leaders)),
        ]

    def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()

    async def run(self) -> None:
        """Take over what is noted, for ever; what failed is tried again."""
        told = ""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._take_over()
                told = ""
                continue
            except PykafkaError as error:
                if str(error) != told:
                    logger.warning("cannot take over a change of the cluster: %s", error)
                told = str(error)
            except Exception:
                logger.exception("taking over a change of the cluster failed")
            self._everything = True
            asyncio.get_running_loop().call_later(AGAIN_S, self._due.set)

    async def _take_over(self) -> None:
        everything, listing = self._everything, self._listing
        altered, self._altered = self._altered, set()
        self._everything = self._listing = False
        if everything:
            await self._topics.refresh()
            for told in self._on_config.values():
                await told("")
        elif listing:
            await self._topics.catch_up()
        names = {name for kind, name in altered if kind == "topics"}
        if names and not everything:
            await self._topics.refresh(names)
        for kind, name in altered:
            if kind in self._on_config:
                await self._on_config[kind](name)

    # --- notes, on the event loop

    def _note_topics(self, names: frozenset[str]) -> None:
        if self._topics.topics_listed(names):
            self._listing = True
            self._due.set()

    def _note_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """A broker came or went, or we were disconnected for a while and may have missed anything."""
        first, self._brokers_seen = not self._brokers_seen, True
        if not first or brokers != self._topics.metadata.brokers:
            self._everything = True
            self._due.set()

    def _note_configs(self, entities: list[str]) -> None:
        for entity in entities:
            kind, _, name = entity.partition("/")
            self._altered.add((kind, name))
        self._due.set()

    def _note_leaders(self, partitions: list[TopicPartition]) -> None:
        """Another broker leads these, or leads them under a new epoch."""
        self._altered |= {("topics", tp.topic) for tp in partitions}
        self._due.set()

    def _delete_marked(self, names: list[str]) -> None:
        """Marks that Kafka's tools leave; done at once on ZooKeeper's thread, and the list of topics tells the rest."""
        if names:
            self._registry.resume_deletions()
