"""Notifies brokers of changed configs and ISRs, by Kafka's nodes (kafka.common.ZkNodeChangeNotificationListener).

A broker that changes a config or an ISR writes a sequence node. Every broker reads the nodes it has not seen, and
deletes those older than 15 minutes. `notify_*` block: call them from worker threads. Callbacks run on ZooKeeper's event
thread, first with the nodes that exist, then for each change.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import NoNode, ZooKeeperError

logger = logging.getLogger(__name__)

_PARTITIONS_A_NODE = 2000
"""A topic name has up to 249 characters, a node up to 1 MiB."""
_KEPT_MS = 15 * 60 * 1000
_NUMBERED = re.compile(r"[0-9]{10}\Z")

T = TypeVar("T")


class ChangeNotifications:
    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    def notify_config_change(self, entity_path: str) -> None:
        """Notify brokers that the config of `topics/T`, `brokers/N`, `clients/C` or `users/U` was written."""
        change = znodes.encode_config_change(entity_path)
        self._zk.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequence=True, parents=True)

    def notify_isr_change(self, partitions: Iterable[TopicPartition]) -> None:
        """Notify brokers that leader or ISR of these partitions were written."""
        changed = list(partitions)
        for start in range(0, len(changed), _PARTITIONS_A_NODE):
            change = znodes.encode_isr_change(changed[start : start + _PARTITIONS_A_NODE])
            self._zk.create(f"{znodes.ISR_CHANGES}/isr_change_", change, sequence=True, parents=True)

    def watch_config_changes(self, callback: Callable[[list[str]], None]) -> Watch:
        """Call back with the entity paths of configs that were written, oldest first."""

        def decode(path: str, data: bytes) -> list[str]:
            return [znodes.decode_config_change(path, data)]

        return NodeChanges(self._zk, znodes.CONFIG_CHANGES, decode).watch(callback)

    def watch_isr_changes(self, callback: Callable[[list[TopicPartition]], None]) -> Watch:
        """Call back with the partitions whose leader or ISR were written, oldest first."""
        return NodeChanges(self._zk, znodes.ISR_CHANGES, znodes.decode_isr_change).watch(callback)


class NodeChanges(Generic[T]):
    """The sequence nodes below one root: each is read once, and deleted when it is old."""

    def __init__(self, zk: MetadataStore, root: str, decode: Callable[[str, bytes], list[T]]) -> None:
        self._zk = zk
        self._root = root
        self._decode = decode
        self._last_number = -1
        """Names end in ten digits, the number of the node."""
        self._created_ms: dict[str, int] = {}
        """Of the nodes that were read and are still there."""
        self._is_first = True
        self._missed = False

    def watch(self, callback: Callable[[list[T]], None], on_missed: Callable[[], None] = lambda: None) -> Watch:
        """Call back with what the nodes say, oldest first: those that exist, then each new one.

        `on_missed` is called where it is not known what a node said: one that was deleted before this client read it,
        as after a long time without the store, or that cannot be read.
        """

        def read_new(names: list[str]) -> None:
            news = self._read(names)
            if self._missed:
                self._missed = False
                on_missed()
            if news:
                callback(news)
            self._delete_old()

        return self._zk.watch_children(self._root, read_new)

    def _read(self, names: list[str]) -> list[T]:
        numbers = {name: int(name[-10:]) for name in names if _NUMBERED.search(name)}  # others are another program's
        new = sorted((name for name, number in numbers.items() if number > self._last_number), key=numbers.__getitem__)
        news: list[T] = []
        for name, node in zip(new, self._zk.get_each([f"{self._root}/{name}" for name in new]), strict=True):
            if not self._is_first and numbers[name] != self._last_number + 1:
                self._missed = True
            self._last_number = numbers[name]
            if node is None or isinstance(node, ZooKeeperError):
                self._missed = True
                continue
            data, stat = node
            self._created_ms[name] = stat.created_ms
            try:
                news += self._decode(f"{self._root}/{name}", data)
            except znodes.MalformedNode as error:  # another program wrote it; the others still count
                logger.warning("ignored a notification: %s", error)
                self._missed = True
        self._is_first = False
        self._created_ms = {name: at for name, at in self._created_ms.items() if name in numbers}
        return news

    def _delete_old(self) -> None:
        # By ZooKeeper's clock. By a clock of ours that is fast, others would lose what they have not read yet.
        newest_ms = max(self._created_ms.values(), default=0)
        for name, created_ms in self._created_ms.items():
            if created_ms < newest_ms - _KEPT_MS:
                with contextlib.suppress(NoNode):  # another broker was faster
                    self._zk.delete(f"{self._root}/{name}")
