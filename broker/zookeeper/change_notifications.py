"""Telling other brokers what has changed: Kafka's notification nodes (kafka.common.ZkNodeChangeNotificationListener).

Whoever alters a config or an ISR writes a sequence node; every broker reads those it has not seen. Used by the
server. `notify_*` block and are called from worker threads; callbacks come on ZooKeeper's event thread: once at
first, with whatever lies there from the last quarter of an hour, then for each change. Old nodes are deleted by
whoever sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.clock import Clock, SystemClock
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import Watch, ZooKeeper
from broker.zookeeper.operations import NoNode

__all__ = ["ChangeNotifications"]

_PARTITIONS_A_NODE = 2000
"""A topic's name has up to 249 characters, a node up to 1 MiB."""
_KEPT_MS = 15 * 60 * 1000

T = TypeVar("T")


class ChangeNotifications:
    """Writes and watches `/config/changes` and `/isr_change_notification`."""

    def __init__(self, zk: ZooKeeper, clock: Clock | None = None) -> None:
        self._zk = zk
        self._clock = clock or SystemClock()

    def notify_config_change(self, entity_path: str) -> None:
        """Tell that the config of `topics/T`, `brokers/N`, `clients/C` or `users/U` has been written."""
        change = znodes.encode_config_change(entity_path)
        self._zk.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequence=True, parents=True)

    def notify_isr_change(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell that leader or ISR of these partitions have been written."""
        told = list(partitions)
        for start in range(0, len(told), _PARTITIONS_A_NODE):
            change = znodes.encode_isr_change(told[start : start + _PARTITIONS_A_NODE])
            self._zk.create(f"{znodes.ISR_CHANGES}/isr_change_", change, sequence=True, parents=True)

    def watch_config_changes(self, callback: Callable[[list[str]], None]) -> Watch:
        """Call back with the entity paths of configs that have been written, oldest first."""
        return self._watch(
            znodes.CONFIG_CHANGES, lambda path, data: [znodes.decode_config_change(path, data)], callback
        )

    def watch_isr_changes(self, callback: Callable[[list[TopicPartition]], None]) -> Watch:
        """Call back with the partitions whose leader or ISR have been written, oldest first."""
        return self._watch(znodes.ISR_CHANGES, znodes.decode_isr_change, callback)

    def _watch(self, root: str, decode: Callable[[str, bytes], list[T]], callback: Callable[[list[T]], None]) -> Watch:
        last_seen = ""  # names end in ten digits that only grow, so they sort by age

        def look(names: list[str]) -> None:
            nonlocal last_seen
            paths = [f"{root}/{name}" for name in names]
            news: list[T] = []
            for name, path, node in zip(names, paths, self._zk.get_many(paths), strict=True):
                if node is None:
                    continue
                data, stat = node
                if name > last_seen:
                    news += decode(path, data)
                if stat.created_ms < self._clock.now_ms() - _KEPT_MS:
                    self._forget(path)
            last_seen = max([last_seen, *names])
            if news:
                callback(news)

        return self._zk.watch_children(root, look)

    def _forget(self, path: str) -> None:
        try:
            self._zk.delete(path)
        except NoNode:
            pass  # another broker was faster
