"""A consumer whose group is kept in ZooKeeper, as in Kafka's first clients: registries instead of a coordinator.

For applications that share offsets with loads that keep theirs in ZooKeeper. Members, owners and offsets are in
`/consumers/G/{ids,owners,offsets}`; records are fetched with the ordinary protocol. This layer does not import
ZooKeeper: the caller passes a `GroupRegistry`, for instance `broker.zookeeper.consumer_registry.ConsumerRegistry`.

    with ZooKeeper("localhost:2181") as zk:
        with ZooKeeperConsumer("localhost:9092", ConsumerRegistry(zk), {"group.id": "g"}) as consumer:
            consumer.subscribe(["flights"])
            records = consumer.poll(1.0)

The format and the assignment are those of Kafka's `ZookeeperConsumerConnector`: a member has threads, named after it,
and the partitions of each topic are assigned in ranges to the sorted threads. Every member computes the assignment
from the same registries.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from broker.client.assignors import Member, assign_range
from broker.client.auto_closeable import AutoCloseable
from broker.client.client_settings import ClientSettings
from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.topic_filter import TopicFilter, java_pattern
from broker.errors import ConfigError, ProtocolError, PykafkaError
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_STATIC, _WHITE_LIST, _BLACK_LIST = "static", "white_list", "black_list"
_VERSION: Final = 1


def encode_subscription(wanted: TopicFilter, now_ms: int) -> bytes:
    """The content of `/consumers/G/ids/C`, for one thread. Raises ConfigError for what the format cannot express."""
    if wanted.pattern is not None and wanted.exclude is not None and wanted.pattern.pattern != ".*":
        raise ConfigError("in a ZooKeeper group, subscribe to a pattern or exclude one, not both")
    if wanted.exclude is not None and not wanted.names:
        kind, topics = _BLACK_LIST, [wanted.exclude.pattern]
    elif wanted.pattern is not None:
        kind, topics = _WHITE_LIST, [wanted.pattern.pattern]
    else:
        kind, topics = _STATIC, wanted.of(())
    node = {"version": _VERSION, "subscription": dict.fromkeys(topics, 1), "pattern": kind, "timestamp": str(now_ms)}
    return json.dumps(node, separators=(",", ":")).encode()


def decode_threads(consumer_id: str, data: bytes, existing: Iterable[str]) -> dict[str, list[str]]:
    """Thread → the topics it subscribes to. Raises ProtocolError if `data` is malformed."""
    try:
        node = json.loads(data)
        kind, threads = node.get("pattern", _STATIC), {str(topic): int(n) for topic, n in node["subscription"].items()}
        topics: dict[str, int] = {}
        for name, count in threads.items():
            if kind == _WHITE_LIST:
                named = TopicFilter.parse(None, java_pattern(name), None).of(existing)
            elif kind == _BLACK_LIST:
                named = TopicFilter.parse(None, None, java_pattern(name)).of(existing)
            else:
                named = [name]
            topics.update(dict.fromkeys(named, count))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ProtocolError(f"the subscription of consumer {consumer_id!r} cannot be read: {error}") from error
    wanted: dict[str, list[str]] = {}
    for topic, count in topics.items():
        for index in range(count):
            wanted.setdefault(thread_of(consumer_id, index), []).append(topic)
    return wanted


def thread_of(consumer_id: str, index: int = 0) -> str:
    """The name of a member's thread in `/owners`."""
    return f"{consumer_id}-{index}"


def owned_by(consumer_id: str, members: Mapping[str, bytes], partitions: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions of our one thread, given all `members` (id → its subscription). Empty if we are not a member."""
    threads: dict[str, list[str]] = {}
    for member_id, data in members.items():
        threads |= decode_threads(member_id, data, partitions)
    shares = assign_range([Member(thread, topics) for thread, topics in threads.items()], partitions)
    return shares.get(thread_of(consumer_id), [])


_SLICE_S: Final = 0.1
"""Longest wait between two checks for changed members."""


class GroupRegistry(Protocol):
    """Stores groups. What a member registers and claims is deleted with its session. Every method may block."""

    def register(self, group: str, consumer_id: str, subscription: bytes) -> None:
        """Join the group, change the subscription, or join again after the session was lost."""

    def deregister(self, group: str, consumer_id: str) -> None:
        """Leave the group."""

    def members(self, group: str) -> Mapping[str, bytes]:
        """Member id → its subscription."""

    def claim(self, group: str, tp: TopicPartition, owner: str) -> bool:
        """Become the owner of a partition. False if another member is."""

    def release(self, group: str, tp: TopicPartition, owner: str) -> None:
        """Give the partition up."""

    def offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """The committed offsets: the next offset to read of each partition."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], owner: str) -> None:
        """Commit offsets of partitions that `owner` owns. Raises BrokerError if it does not own one."""

    def watch_members(self, group: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, when members may have changed. Returns the function that stops it."""


class ZooKeeperConsumer(AutoCloseable):
    """One member with one thread. Not thread-safe. Close it, or use it as a context manager."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        registry: GroupRegistry,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Settings are those of `Consumer`; `group.id` is required. The registry has the session time-out."""
        settings = ClientSettings.of(bootstrap, properties)
        if not settings.group_id:
            raise ConfigError("group.id is missing: set it to the name of the group")
        self.group = settings.group_id
        self.settings = settings
        self.consumer_id = f"{self.group}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
        self._owner = thread_of(self.consumer_id)
        self._registry = registry
        self._consumer = Consumer(dataclasses.replace(settings, group_id="", enable_auto_commit=False))
        self._wanted: TopicFilter | None = None
        self._unwatch: Callable[[], None] | None = None
        self._changed = threading.Event()
        self._topics_refresh_at = 0.0
        self._retry_at = 0.0
        self._next_commit = 0.0
        self._closed = False

    def subscribe(
        self, topics: Iterable[str] | None = None, *, pattern: str | None = None, exclude: str | None = None
    ) -> None:
        """Subscribe to `topics`, or to those that match `pattern`, or to those that `exclude` does not match.

        Patterns are Java's, because Java's members of the group read them too. Raises ConfigError.
        """
        wanted = TopicFilter.parse(topics, java_pattern(pattern), java_pattern(exclude))
        self._registry.register(self.group, self.consumer_id, encode_subscription(wanted, time.time_ns() // 1_000_000))
        self._wanted = wanted
        if self._unwatch is None:
            self._unwatch = self._registry.watch_members(self.group, self._changed.set)
        self._changed.set()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member owns."""
        return self._consumer.assignment()

    def poll(self, timeout_s: float = 0.0) -> list[ConsumerRecord]:
        """Records of the owned partitions; waits up to `timeout_s`. Raises what `Consumer.poll` raises."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._wanted is None or self._closed:
                raise PykafkaError("subscribe() comes before poll()" if self._wanted is None else "closed")
            self._rebalance_if_needed(self._wanted)
            self._auto_commit()
            left = max(deadline - time.monotonic(), 0.0)
            if self.assignment():
                records = self._consumer.poll(min(left, _SLICE_S))
                if records:
                    return records
            else:
                self._changed.wait(min(left, _SLICE_S))
            if time.monotonic() >= deadline:
                return []

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record `poll` returns of `tp`."""
        return self._consumer.position(tp)

    def commit(self) -> None:
        """Commit the position of every partition. Raises BrokerError if one of them has another owner now."""
        positions = {tp: self._consumer.position(tp) for tp in self.assignment()}
        if positions:
            self._registry.commit(self.group, positions, self._owner)

    def close(self) -> None:
        """Commit if enable.auto.commit is set, release the partitions and disconnect. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._unwatch is not None:
                self._unwatch()
            self._release_all()
            self._registry.deregister(self.group, self.consumer_id)
        except PykafkaError as error:
            logger.warning("leaving group %s: %s", self.group, error)
        finally:
            self._consumer.close()

    # --- inside --------------------------------------------------------------------------------

    def _rebalance_if_needed(self, wanted: TopicFilter) -> None:
        now = time.monotonic()
        if now < self._retry_at or not (self._changed.is_set() or now >= self._topics_refresh_at):
            return
        self._changed.clear()  # a later change sets it again
        self._topics_refresh_at = now + self.settings.metadata_max_age_ms / 1000
        partitions = {name: len(topic.partitions) for name, topic in self._consumer.cluster.topics().items()}
        members = self._registry.members(self.group)
        lost = self.consumer_id not in members
        if lost:  # the session expired, and the ownership with it
            self._registry.register(
                self.group, self.consumer_id, encode_subscription(wanted, time.time_ns() // 1_000_000)
            )
            members = self._registry.members(self.group)
        share = sorted(owned_by(self.consumer_id, members, partitions))
        if lost or share != self.assignment():
            self._release_all()
            self._take(share)

    def _take(self, share: list[TopicPartition]) -> None:
        """Claim all of `share`, or none of it until the next try: the previous owners may not have released it yet."""
        for number, tp in enumerate(share):
            if not self._registry.claim(self.group, tp, self._owner):
                for claimed in share[:number]:
                    self._registry.release(self.group, claimed, self._owner)
                self._retry_at = time.monotonic() + self.settings.retry_backoff_ms / 1000
                self._changed.set()
                return
        offsets = self._registry.offsets(self.group)
        self._consumer.assign(share)
        for tp in share:
            if tp in offsets:
                self._consumer.seek(tp, offsets[tp])

    def _release_all(self) -> None:
        """Commit if enable.auto.commit is set, then release all partitions."""
        owned = self.assignment()
        if self.settings.enable_auto_commit:
            self._commit_quietly()
        self._consumer.assign([])
        for tp in owned:
            self._registry.release(self.group, tp, self._owner)

    def _auto_commit(self) -> None:
        now = time.monotonic()
        if self.settings.enable_auto_commit and now >= self._next_commit:
            if self._next_commit:
                self._commit_quietly()
            self._next_commit = now + self.settings.auto_commit_interval_ms / 1000

    def _commit_quietly(self) -> None:
        try:
            self.commit()
        except PykafkaError as error:
            logger.warning("group %s: automatic commit failed: %s", self.group, error)
