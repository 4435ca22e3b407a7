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
from types import TracebackType
from typing import Any, Final, Protocol

from broker.client.assignors import Member, assign_range
from broker.client.client_settings import ClientSettings
from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.topic_filter import TopicFilter
from broker.errors import ConfigError, ProtocolError, PykafkaError
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupRegistry", "ZooKeeperConsumer", "decode_threads", "encode_subscription", "owned_by", "thread_of"]

logger = logging.getLogger(__name__)

_STATIC, _WHITE_LIST, _BLACK_LIST = "static", "white_list", "black_list"
_VERSION: Final = 1


def encode_subscription(wanted: TopicFilter, now_ms: int) -> bytes:
    """What `/consumers/G/ids/C` holds, for one thread. Raises ConfigError for what the format has no word for."""
    if wanted.pattern is not None and wanted.exclude is not None and wanted.pattern.pattern != ".*":
        raise ConfigError("in a ZooKeeper group, subscribe to a pattern or exclude one, not both")
    if wanted.exclude is not None and not wanted.names:
        kind, topics = _BLACK_LIST, [wanted.exclude.pattern]
    elif wanted.pattern is not None:
        kind, topics = _WHITE_LIST, [wanted.pattern.pattern]
    else:
        kind, topics = _STATIC, wanted.of(())
    node = {
        "version": _VERSION,
        "subscription": dict.fromkeys(topics, 1),
        "pattern": kind,
        "timestamp": str(now_ms),
    }
    return json.dumps(node, separators=(",", ":")).encode()


def decode_threads(consumer_id: str, data: bytes, existing: Iterable[str]) -> dict[str, list[str]]:
    """Which topics each thread of a member wants. Raises ProtocolError for what no consumer writes."""
    try:
        node = json.loads(data)
        kind, threads = node.get("pattern", _STATIC), {str(topic): int(n) for topic, n in node["subscription"].items()}
        topics: dict[str, int] = {}
        for name, count in threads.items():
            if kind == _WHITE_LIST:
                named = TopicFilter.parse(None, name, None).of(existing)
            elif kind == _BLACK_LIST:
                named = TopicFilter.parse(None, None, name).of(existing)
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
    """How a thread of a member is called in `/owners`."""
    return f"{consumer_id}-{index}"


def owned_by(consumer_id: str, members: Mapping[str, bytes], partitions: Mapping[str, int]) -> list[TopicPartition]:
    """The share of our one thread, when `members` (id → what it wrote) have it to themselves; none for a stranger."""
    threads: dict[str, list[str]] = {}
    for member_id, data in members.items():
        threads |= decode_threads(member_id, data, partitions)
    shares = assign_range([Member(thread, topics) for thread, topics in threads.items()], partitions)
    return shares.get(thread_of(consumer_id), [])


_SLICE_S: Final = 0.1
"""Longest wait before looking whether members came or went."""


class GroupRegistry(Protocol):
    """Where groups are written down. What a member registers and claims vanishes with its session; all may block."""

    def register(self, group: str, consumer_id: str, subscription: bytes) -> None:
        """Be a member; again to change the subscription, or after the session was lost."""

    def deregister(self, group: str, consumer_id: str) -> None:
        """Be no member any more."""

    def members(self, group: str) -> Mapping[str, bytes]:
        """What each member registered."""

    def claim(self, group: str, tp: TopicPartition, owner: str) -> bool:
        """Become owner of a partition; False while somebody else is."""

    def release(self, group: str, tp: TopicPartition, owner: str) -> None:
        """Own it no more."""

    def offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """The next offset to read of every partition that has one."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], owner: str) -> None:
        """Set offsets of partitions that `owner` owns. Raises BrokerError when it does not."""

    def watch_members(self, group: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, from any thread, when members may have changed; the result ends that."""


class ZooKeeperConsumer:
    """One member with one thread. Not thread-safe. Close it, or use it as a context manager."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        registry: GroupRegistry,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Settings as for `Consumer`, of which `group.id` is needed; the session time-out is the registry's."""
        settings = ClientSettings.of(bootstrap, properties)
        if not settings.group_id:
            raise ConfigError("group.id is missing: partitions are shared under it")
        self.group = settings.group_id
        self.settings = settings
        self.consumer_id = f"{self.group}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
        self._owner = thread_of(self.consumer_id)
        self._registry = registry
        self._consumer = Consumer(dataclasses.replace(settings, group_id="", enable_auto_commit=False))
        self._wanted: TopicFilter | None = None
        self._unwatch: Callable[[], None] | None = None
        self._changed = threading.Event()
        self._look_at_topics = 0.0
        self._not_before = 0.0
        self._next_commit = 0.0
        self._closed = False

    def __enter__(self) -> ZooKeeperConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def subscribe(
        self, topics: Iterable[str] | None = None, *, pattern: str | None = None, exclude: str | None = None
    ) -> None:
        """Share `topics`, or all that match `pattern`, or all but those that `exclude` matches. Raises ConfigError."""
        wanted = TopicFilter.parse(topics, pattern, exclude)
        self._registry.register(self.group, self.consumer_id, encode_subscription(wanted, time.time_ns() // 1_000_000))
        self._wanted = wanted
        if self._unwatch is None:
            self._unwatch = self._registry.watch_members(self.group, self._changed.set)
        self._changed.set()

    def assignment(self) -> list[TopicPartition]:
        """The partitions owned now."""
        return self._consumer.assignment()

    def poll(self, timeout_s: float = 0.0) -> list[ConsumerRecord]:
        """Records of our partitions, waiting up to `timeout_s`. Raises as `Consumer.poll`."""
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
        """Write down the position of every partition. Raises BrokerError when one of them is not ours any more."""
        positions = {tp: self._consumer.position(tp) for tp in self.assignment()}
        if positions:
            self._registry.commit(self.group, positions, self._owner)

    def close(self) -> None:
        """Commit if that is automatic, let others have the partitions, hang up. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._unwatch is not None:
                self._unwatch()
            self._let_go()
            self._registry.deregister(self.group, self.consumer_id)
        except PykafkaError as error:
            logger.warning("leaving group %s: %s", self.group, error)
        finally:
            self._consumer.close()

    # --- inside --------------------------------------------------------------------------------

    def _rebalance_if_needed(self, wanted: TopicFilter) -> None:
        now = time.monotonic()
        if now < self._not_before or not (self._changed.is_set() or now >= self._look_at_topics):
            return
        self._changed.clear()  # what changes from here on, changes again
        self._look_at_topics = now + self.settings.metadata_max_age_ms / 1000
        partitions = {name: len(topic.partitions) for name, topic in self._consumer.cluster.topics().items()}
        members = self._registry.members(self.group)
        lost = self.consumer_id not in members
        if lost:  # the session ended, and what we owned with it
            self._registry.register(
                self.group, self.consumer_id, encode_subscription(wanted, time.time_ns() // 1_000_000)
            )
            members = self._registry.members(self.group)
        share = sorted(owned_by(self.consumer_id, members, partitions))
        if lost or share != self.assignment():
            self._let_go()
            self._take(share)

    def _take(self, share: list[TopicPartition]) -> None:
        """Own all of `share`, or nothing yet: those who had it may not have heard."""
        for number, tp in enumerate(share):
            if not self._registry.claim(self.group, tp, self._owner):
                for claimed in share[:number]:
                    self._registry.release(self.group, claimed, self._owner)
                self._not_before = time.monotonic() + self.settings.retry_backoff_ms / 1000
                self._changed.set()
                return
        offsets = self._registry.offsets(self.group)
        self._consumer.assign(share)
        for tp in share:
            if tp in offsets:
                self._consumer.seek(tp, offsets[tp])

    def _let_go(self) -> None:
        """Commit if that is automatic, then own nothing."""
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
