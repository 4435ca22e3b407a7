"""Looks at a cluster again and again, once for all pages that are open.

One thread asks for metadata and log ends, for sizes and log starts, and for the groups with their offsets. Each of the
three has a shortest interval. Where a look takes much CPU time, as with thousands of partitions or groups, the interval
grows, so that the thread takes at most `CPU_SHARE` of a core. While nobody looks at a page, it looks once a minute, for
the history.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata
from broker.client.committed_offsets import CommittedOffset, GroupOffsets
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.errors import BrokerError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.history import History
from pykafka_ui.snapshot import Group, Partition, Snapshot, Topic

__all__ = ["Sampler"]

CPU_SHARE = 0.008
ENDS_S, SIZES_S, GROUPS_S = 2.0, 30.0, 5.0
"""The shortest intervals."""
IDLE_S = 60.0
LOOKED_AT_S = 30.0
"""So long after the last request of a page somebody looks at it."""
RETRY_S = 2.0
FIRST_S, A_MOMENT_S = 3.0, 0.3

logger = logging.getLogger("pykafka.ui")

Offsets = Mapping[TopicPartition, int]


class _Task:
    """One kind of look, and when it is due."""

    def __init__(self, look: Callable[[], None], interval_s: float) -> None:
        self._look = look
        self._shortest = interval_s
        self._interval = 0.0
        self._began = float("-inf")

    def due(self, *, watched: bool) -> float:
        """The monotonic time at which to look again."""
        return self._began + (self._interval if watched else max(self._interval, IDLE_S))

    def renew(self) -> None:
        """Be due at once."""
        self._began = float("-inf")

    def run(self, now: float) -> None:
        self._began, cpu = now, time.thread_time()
        self._interval = self._shortest
        self._look()
        self._interval = max(self._shortest, (time.thread_time() - cpu) / CPU_SHARE)


class Sampler:
    """The thread and what it has found: `snapshot` and `history`."""

    def __init__(self, settings: ClientSettings) -> None:
        self.snapshot = Snapshot(error="not looked yet")
        self.history = History()
        self._cluster = Cluster(settings, create_topics=False)
        self._admin = Admin(self._cluster)
        self._sizes: dict[TopicPartition, int] = {}
        self._starts: Offsets = {}
        self._tasks = [_Task(self._look_at_topics, ENDS_S), _Task(self._look_at_logs, SIZES_S)]
        self._tasks.append(_Task(self._look_at_groups, GROUPS_S))
        self._counters: Mapping[tuple[str, str], float] = {}
        self._totals = {"records": 0.0, "read": 0.0}
        """The growth of all counters: their sum would jump when a topic or group comes or goes."""
        self._wanted_at = float("-inf")
        self._wake = threading.Event()
        self._looked = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ui-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the connections."""
        self._stopped = True
        self._wake.set()
        self._cluster.close()
        self._thread.join(10)

    def watched(self) -> Snapshot:
        """The newest snapshot, for somebody who looks at it. The first one is waited for, a newer one a moment."""
        idle = time.monotonic() - self._wanted_at > LOOKED_AT_S
        self._wanted_at = time.monotonic()
        if idle:
            self._looked.clear()
            self._wake.set()
            self._looked.wait(A_MOMENT_S if self.snapshot.at_ms else FIRST_S)
        return self.snapshot

    def look_again(self) -> None:
        """Everything, now: something was changed."""
        for task in self._tasks:
            task.renew()
        self._looked.clear()
        self._wake.set()
        self._looked.wait(A_MOMENT_S)

    # --- the thread

    def _run(self) -> None:
        while not self._stopped:
            now = time.monotonic()
            watched = now - self._wanted_at <= LOOKED_AT_S
            due = [task for task in self._tasks if task.due(watched=watched) <= now]
            wait = self._look(due) if due else min(task.due(watched=watched) for task in self._tasks) - now
            if wait > 0:
                self._wake.wait(wait)
            self._wake.clear()

    def _look(self, tasks: list[_Task]) -> float:
        """How long to wait after it: after a failure a while."""
        try:
            for task in tasks:
                task.run(time.monotonic())
        except Exception as error:
            if self._stopped:
                return 0.0
            if not isinstance(error, PykafkaError | OSError):
                logger.exception("looking at the cluster failed")
            elif not self.snapshot.error:
                logger.warning("cannot look at the cluster, trying again: %s", error)
            self.snapshot = dataclasses.replace(self.snapshot, error=str(error) or type(error).__name__)
            return RETRY_S
        finally:
            self._looked.set()
        self._record()
        return 0.0

    def _look_at_topics(self) -> None:
        self._cluster.expire()
        topics = self._cluster.topics()
        led = [
            TopicPartition(name, index)
            for name, topic in topics.items()
            for index, one in topic.partitions.items()
            if one.leader >= 0
        ]
        ends = self._offsets(led, LATEST)
        if led and self._starts.keys() != set(led):
            self._starts = self._offsets(led, EARLIEST)
        found = {name: self._topic(topic, ends) for name, topic in sorted(topics.items())}
        self.snapshot = Snapshot(
            int(time.time() * 1000),
            self._cluster.cluster_id() or "",
            self._cluster.controller_id(),
            tuple(self._cluster.brokers()),
            found,
            {name: _with_lags(group, ends) for name, group in self.snapshot.groups.items()},
        )

    def _topic(self, topic: TopicMetadata, ends: Offsets) -> Topic:
        """Where a partition does not answer, its end is that of the look before."""
        before = self.snapshot.topics.get(topic.name)
        known = {one.index: one.end for one in before.partitions} if before else {}
        partitions = []
        for index, one in topic.partitions.items():
            tp = TopicPartition(topic.name, index)
            end = ends.get(tp, known.get(index, -1))
            start, size = self._starts.get(tp, -1), self._sizes.get(tp, -1)
            partitions.append(Partition(index, one.leader, one.replicas, one.isr, start, end, size))
        return Topic(topic.name, topic.internal, tuple(partitions))

    def _offsets(self, partitions: list[TopicPartition], timestamp: int) -> Offsets:
        """Of the partitions that answer: one without a leader must not hide the others."""
        try:
            found = list_offsets(self._cluster, dict.fromkeys(partitions, timestamp), timeout_s=5)
        except BrokerError as error:
            logger.debug("not all log ends: %s", error)
            self._cluster.expire()
            return self._offsets_of_each(partitions, timestamp)
        return {tp: one.offset for tp, one in found.items()}

    def _offsets_of_each(self, partitions: list[TopicPartition], timestamp: int) -> Offsets:
        """Topic by topic, without those that fail."""
        found: dict[TopicPartition, int] = {}
        for name in dict.fromkeys(tp.topic for tp in partitions):
            wanted = {tp: timestamp for tp in partitions if tp.topic == name}
            try:
                found |= {tp: one.offset for tp, one in list_offsets(self._cluster, wanted, timeout_s=1).items()}
            except BrokerError as error:
                logger.debug("no log ends of %s: %s", name, error)
        return found

    def _look_at_logs(self) -> None:
        sizes: dict[TopicPartition, int] = {}
        leaders = {
            TopicPartition(name, one.index): one.leader
            for name, topic in self.snapshot.topics.items()
            for one in topic.partitions
        }
        try:
            for found in self._admin.describe_log_dirs():
                for tp, replica in found.partitions.items():
                    if not replica.is_future and leaders.get(tp) == found.broker_id:
                        sizes[tp] = replica.size
        except BrokerError as error:  # it may be forbidden: then there are no sizes
            logger.debug("no sizes: %s", error)
        self._sizes = sizes
        self._starts = self._offsets(list(leaders), EARLIEST) if leaders else {}
        topics = {
            name: dataclasses.replace(
                topic,
                partitions=tuple(
                    dataclasses.replace(
                        one,
                        start=self._starts.get(TopicPartition(name, one.index), one.start),
                        size=sizes.get(TopicPartition(name, one.index), one.size),
                    )
                    for one in topic.partitions
                ),
            )
            for name, topic in self.snapshot.topics.items()
        }
        self.snapshot = dataclasses.replace(self.snapshot, topics=topics)

    def _look_at_groups(self) -> None:
        ends = {
            TopicPartition(name, one.index): one.end
            for name, topic in self.snapshot.topics.items()
            for one in topic.partitions
            if one.end >= 0
        }
        groups = {}
        try:
            listing = self._admin.list_groups()
        except BrokerError as error:  # it may be forbidden: then there are no groups
            logger.debug("no groups: %s", error)
            return
        for listed in listing:
            offsets = self._committed(listed.group_id)
            group = Group(listed.group_id, listed.state, listed.protocol_type, offsets)
            groups[group.id] = _with_lags(group, ends)
        self.snapshot = dataclasses.replace(self.snapshot, groups=groups)

    def _committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """If they cannot be had now, for instance because a transaction is committing them, those of before."""
        try:
            return GroupOffsets(self._cluster, group).committed(timeout_s=1)
        except PykafkaError as error:
            logger.debug("no offsets of %s: %s", group, error)
            before = self.snapshot.groups.get(group)
            return before.offsets if before else {}

    def _record(self) -> None:
        now, seen = time.time(), self.snapshot
        if not self.history.is_due(now):
            return
        values: dict[tuple[str, str], float] = {("lag", name): group.lag for name, group in seen.groups.items()}
        counters: dict[tuple[str, str], float] = {("records", name): topic.end for name, topic in seen.topics.items()}
        for name, group in seen.groups.items():
            counters["read", name] = sum(one.offset for one in group.offsets.values())
        for key, value in counters.items():
            kind, name = key
            is_internal = kind == "records" and seen.topics[name].internal
            self._totals[kind] += 0 if is_internal else max(value - self._counters.get(key, value), 0)
        self._counters = counters
        totals = {(kind, ""): total for kind, total in self._totals.items()}
        self.history.record(now, values | counters | totals)


def _with_lags(group: Group, ends: Offsets) -> Group:
    offsets = group.offsets if group.has_lag else {}
    lags = {tp: max(ends[tp] - one.offset, 0) for tp, one in offsets.items() if tp in ends}
    return dataclasses.replace(group, lags=lags)
