"""Looks at a cluster again and again, once for all pages that are open.

One thread asks for metadata and log ends, for sizes and log starts, and for the groups with their offsets. Each of the
three looks has a shortest interval. Where a look takes much CPU time, as with thousands of partitions or groups, its
interval grows, so that the thread takes at most `CPU_SHARE` of a core. While nobody looks at a page, it looks once a
minute, for the history. A look that fails leaves what was seen before, and does not end the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker.client.admin import Admin
from broker.client.admin_types import LogDir
from broker.client.archive_status import archives_of_leaders
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata
from broker.client.committed_offsets import CommittedOffset, offsets_of_groups
from broker.client.denials import DENIED
from broker.client.group_descriptions import offsets_of_share_groups
from broker.client.partition_offsets import EARLIEST, LATEST, known_newest, known_offsets
from broker.errors import BrokerError, PykafkaError, UnsupportedVersion
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.history import Growth, History, Point
from pykafka_ui.seen.snapshot import Group, Partition, Snapshot, Topic

CPU_SHARE = 0.008
ENDS_S, SIZES_S, GROUPS_S = 2.0, 30.0, 5.0
"""The shortest intervals."""
IDLE_S = 60.0
LOOKED_AT_S = 30.0
"""So long after the last request of a page somebody looks at it."""
RETRY_S = 2.0
FIRST_S, A_MOMENT_S = 3.0, 0.3
MOST_PARTITIONS = 1_000
"""Of groups, whose lags and offsets are kept for an hour: 2 MB."""
_LOOKED_AT = 20
"""Groups, whose partitions come first."""

logger = logging.getLogger("pykafka.ui")


class _Look:
    """One of the three, and when it is due. `error`: why it failed last; "" if it did not."""

    def __init__(self, what: str, look: Callable[[], None], interval_s: float) -> None:
        self.what = what
        self.error = ""
        self.count = 0
        """How often it was tried."""
        self._look = look
        self._shortest = interval_s
        self._interval = 0.0
        self._began = float("-inf")

    def due_at(self, *, watched: bool) -> float:
        """The monotonic time at which to look again."""
        return self._began + (self._interval if watched else max(self._interval, IDLE_S))

    def renew(self, older_than_s: float = 0.0) -> bool:
        """Be due at once, if the last look began so long ago; whether it did."""
        is_old = time.monotonic() - self._began >= older_than_s
        if is_old:
            self._began = float("-inf")
        return is_old

    def run(self, share: float) -> None:
        """Look. It is due again after an interval of which this took `share` in CPU time."""
        self._began, cpu, shortest = time.monotonic(), time.thread_time(), RETRY_S
        try:
            self._look()
            self.error, shortest = "", self._shortest
        finally:
            self._interval = max(shortest, (time.thread_time() - cpu) / share)


class Sampler:
    """The thread and what it has found: `snapshot`, and the history of topics and of groups."""

    def __init__(self, settings: ClientSettings) -> None:
        self.snapshot = Snapshot()
        self._cluster = Cluster(settings, create_topics=False)
        self._admin = Admin(self._cluster)
        self._sizes: Mapping[TopicPartition, int] = {}
        self._archived: Mapping[TopicPartition, int | None] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._unseen = {what: f"{what} are not known yet" for what in ("groups", "sizes")}
        self._topics = _Look("topics", self._look_at_topics, ENDS_S)
        self._logs = _Look("sizes", self._look_at_logs, SIZES_S)
        self._groups = _Look("groups", self._look_at_groups, GROUPS_S)
        self._looks = (self._topics, self._groups, self._logs)
        self._written, self._read, self._by_partition = History(), History(), History()
        self._groups_looked_at: deque[str] = deque(maxlen=_LOOKED_AT)
        self._ends_grown, self._offsets_grown = Growth(), Growth()
        self._wanted_at = float("-inf")
        self._wake = threading.Event()
        self._looked = threading.Condition()
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

    def history(self, kind: str) -> History:
        """`records`: counters of what was written, by topic. `read` and `lag`: by group."""
        return self._written if kind == "records" else self._read

    def of_partition(self, kind: str, group: str, tp: TopicPartition) -> list[Point]:
        """The last hour of the `lag` of a group in a partition, or of `read`: the committed offset.

        Kept are the partitions of groups that were looked at, and then of those with the largest lag.
        """
        return self._by_partition.values(kind, _series(group, tp))

    def looked_at(self, group: str) -> None:
        """Somebody looks at a group: keep the history of its partitions before that of others."""
        if group not in self._groups_looked_at:
            self._groups_looked_at.append(group)

    def last_rate(self, kind: str, name: str = "") -> float | None:
        """Records per second, at last; see `history`. None while it is not known."""
        return self.history(kind).last_rate(kind, name)

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The largest timestamp (ms) in each, -1 in an empty one; those whose leader does not answer are left out."""
        return known_newest(self._cluster, partitions)

    def watch(self, *, groups: bool = False) -> Snapshot:
        """The newest snapshot, for somebody who looks at a page: it is renewed in short intervals for a while.

        The first one is waited for, with `groups` until the groups are known, too; a newer one only a moment.
        """
        idle = time.monotonic() - self._wanted_at > LOOKED_AT_S
        self._wanted_at = time.monotonic()
        if idle:
            self._wake.set()
        self._wait_for_first(groups)
        if idle:
            self._wait_for([self._topics], A_MOMENT_S)
        return self.snapshot

    def at_most_old(self, seconds: float) -> Snapshot:
        """A snapshot that is hardly older than that, for a program that asks now and then: nobody looks at a page."""
        with self._looked:
            renewed = [look for look in (self._topics, self._groups) if look.renew(seconds)]
            self._wake.set()
            self._wait_for(renewed, FIRST_S)
        return self.snapshot

    def look_again(self) -> None:
        """Everything, now: something was changed. Waits a moment for it."""
        with self._looked:
            for look in self._looks:
                look.renew()
            self._wake.set()
            self._wait_for([self._topics, self._groups], A_MOMENT_S)

    def wait_until(self, condition: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """Whether the snapshot fulfils the condition in time. Looks again and again meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not condition(self.snapshot):
            if time.monotonic() > deadline:
                return False
            with self._looked:
                self._topics.renew()
                self._wake.set()
                self._wait_for([self._topics], A_MOMENT_S)
        return True

    def _wait_for_first(self, groups: bool) -> None:
        def is_there() -> bool:
            return self._groups.count > 0 if groups else bool(self.snapshot.at_ms or self._topics.count)

        with self._looked:
            self._looked.wait_for(is_there, FIRST_S)

    def _wait_for(self, looks: list[_Look], timeout_s: float) -> None:
        counts = [one.count for one in looks]
        with self._looked:
            self._looked.wait_for(lambda: all(one.count > n for one, n in zip(looks, counts, strict=True)), timeout_s)

    # --- the thread

    def _run(self) -> None:
        while not self._stopped:
            watched = time.monotonic() - self._wanted_at <= LOOKED_AT_S
            look = min(self._looks, key=lambda one: one.due_at(watched=watched))
            wait = look.due_at(watched=watched) - time.monotonic()
            if wait > 0:
                self._wake.wait(wait)
                self._wake.clear()
            else:
                self._take(look)

    def _take(self, look: _Look) -> None:
        try:
            look.run(CPU_SHARE / len(self._looks))
        except Exception as error:
            if self._stopped:
                return
            if not isinstance(error, PykafkaError | OSError):
                logger.exception("looking at the %s failed", look.what)
            elif not look.error:
                logger.warning("cannot look at the %s, trying again: %s", look.what, error)
            look.error = str(error) or type(error).__name__
        finally:
            others = tuple(f"{one.what}: {one.error}" for one in self._looks[1:] if one.error)
            with self._looked:
                look.count += 1
                self._change(error=self._topics.error, others=others, unseen=dict(self._unseen))
                self._looked.notify_all()

    def _change(self, **changes: Any) -> None:
        self.snapshot = dataclasses.replace(self.snapshot, **changes)

    def _look_at_topics(self) -> None:
        self._cluster.expire()
        topics = self._cluster.topics()
        if not self.snapshot.at_ms:
            self._show(topics, {})  # the ends take longer, and somebody looks at an empty page
        led = [
            TopicPartition(name, index)
            for name, topic in topics.items()
            for index, one in topic.partitions.items()
            if one.leader >= 0
        ]
        ends = known_offsets(self._cluster, led, LATEST)
        if self._logs.count and (new := [tp for tp in led if tp not in self._starts]):
            self._starts.update(known_offsets(self._cluster, new, EARLIEST))  # else the other look asks for all
        self._show(topics, ends)
        if self._written.is_due(time.time()):
            self._record_topics(self.snapshot.topics)

    def _show(self, topics: Mapping[str, TopicMetadata], ends: Mapping[TopicPartition, int]) -> None:
        seen = dataclasses.replace(
            self.snapshot,
            at_ms=int(time.time() * 1000),
            cluster_id=self._cluster.cluster_id() or "",
            controller=self._cluster.controller_id(),
            brokers=tuple(self._cluster.brokers()),
            topics={name: self._topic(topic, ends) for name, topic in sorted(topics.items())},
        )
        with self._looked:
            self.snapshot = dataclasses.replace(seen, groups=_with_lags(seen.groups, seen.partitions, ends))
            self._looked.notify_all()

    def _topic(self, topic: TopicMetadata, ends: Mapping[TopicPartition, int]) -> Topic:
        """Where a partition does not answer, its end is that of the look before."""
        before = self.snapshot.topics.get(topic.name)
        known = {one.index: one.end for one in before.partitions} if before else {}
        partitions = []
        for index, one in topic.partitions.items():
            tp = TopicPartition(topic.name, index)
            end = ends.get(tp, known.get(index, -1))
            start, size, archived = self._starts.get(tp, -1), self._sizes.get(tp, -1), self._archived.get(tp, 0)
            partitions.append(Partition(index, one.leader, one.replicas, one.isr, start, end, size, archived))
        return Topic(topic.name, topic.internal, tuple(partitions))

    def _record_topics(self, topics: Mapping[str, Topic]) -> None:
        ends = {
            (name, TopicPartition(name, one.index)): one.end
            for name, topic in topics.items()
            for one in topic.partitions
            if one.end >= 0
        }
        grown = self._ends_grown.add(ends, lambda name: not topics[name].internal)
        self._written.record(time.time(), {("records", name): value for name, value in grown.items()})

    def _look_at_logs(self) -> None:
        leaders = {tp: one.leader for tp, one in self.snapshot.partitions.items() if one.leader >= 0}
        disks: tuple[LogDir, ...] = ()
        try:
            described = self._admin.describe_log_dirs()
            disks = tuple(one._replace(partitions={}) for one in described)
            self._sizes = {
                tp: replica.size
                for found in described
                for tp, replica in found.partitions.items()
                if not replica.is_future and leaders.get(tp) == found.broker_id
            }
        except (BrokerError, UnsupportedVersion) as error:
            _refuse_all_but_forbidden(error)
            self._unseen["sizes"] = f"sizes and disks are not known: {error}"
            self._sizes = {}
        else:
            self._unseen.pop("sizes", None)
        refused: list[str] = []
        archives = archives_of_leaders(self._admin, refused)
        self._unseen.pop("archives", None)
        if refused:
            self._unseen["archives"] = f"archives are not known: {refused[0]}"
        self._archived = {tp: one.archived_bytes for tp, one in archives.items()}
        self._change(archives=tuple(archives.values()), certificates=self._certificates())
        known = {tp: start for tp, start in self._starts.items() if tp in self.snapshot.partitions}
        self._starts = known | known_offsets(self._cluster, leaders, EARLIEST)
        measured = {name: self._measured(topic) for name, topic in self.snapshot.topics.items()}
        self._change(topics=measured, disks=disks)

    def _certificates(self) -> dict[int, float]:
        """By the connections that are there."""
        known = ((one.id, self._cluster.known_connection(one)) for one in self._cluster.brokers())
        ends = ((id_, one.certificate_ends_s) for id_, one in known if one is not None)
        return {id_: at for id_, at in ends if at is not None}

    def _measured(self, topic: Topic) -> Topic:
        def measured(one: Partition) -> Partition:
            tp = TopicPartition(topic.name, one.index)
            size, archived = self._sizes.get(tp, -1), self._archived.get(tp, 0)
            return dataclasses.replace(one, start=self._starts.get(tp, one.start), size=size, archived=archived)

        return dataclasses.replace(topic, partitions=tuple(map(measured, topic.partitions)))

    def _look_at_groups(self) -> None:
        groups: dict[str, Group] = {}
        try:
            coordinators = self._admin.groups_by_coordinator()
        except (BrokerError, UnsupportedVersion) as error:
            _refuse_all_but_forbidden(error)
            self._unseen["groups"] = f"groups are not known: {error}"
            coordinators = {}
        else:
            self._unseen.pop("groups", None)
        for node, listed in coordinators.items():
            connection = self._cluster.connection(node)
            shares = [one.group_id for one in listed if one.group_type.lower() == "share"]
            shared = offsets_of_share_groups(connection, shares) if shares else {}
            offsets = offsets_of_groups(connection, [one.group_id for one in listed if one.group_id not in shares])
            offsets |= {
                name: {tp: CommittedOffset(one.start, "") for tp, one in of.items()} for name, of in shared.items()
            }
            active = {one.group_id for one in listed if one.state not in ("Empty", "Dead")}
            members = self._admin.members_of_groups(node, [one for one in listed if one.group_id in active])
            for one in listed:
                before = self.snapshot.groups.get(one.group_id)
                known = offsets.get(one.group_id, before.offsets if before else {})
                told = {tp: at.lag for tp, at in shared.get(one.group_id, {}).items()} or (
                    before.told if before else {}
                )
                its = members.get(one.group_id, ())
                is_known = one.group_id in members or one.group_id not in active
                groups[one.group_id] = Group(
                    one.group_id,
                    one.state,
                    one.protocol_type,
                    known,
                    type=one.group_type,
                    members=len(its) if is_known else -1,
                    assigned=frozenset(tp for member in its for tp in member.partitions),
                    beyond=before.beyond if before else frozenset(),
                    told=told,
                )
        self._change(groups=_with_lags(groups, self.snapshot.partitions))
        if self._read.is_due(time.time()):
            self._record_groups(self.snapshot.groups)

    def _record_groups(self, groups: Mapping[str, Group]) -> None:
        offsets = {
            (name, tp): one.offset
            for name, group in groups.items()
            if group.has_lag
            for tp, one in group.offsets.items()
        }
        values = {("read", name): value for name, value in self._offsets_grown.add(offsets).items()}
        behind = {name: group.behind for name, group in groups.items() if group.has_lag}
        lags = {("lag", name): float(one.total) for name, one in behind.items() if one.total is not None}
        if lags or not groups:
            lags["lag", ""] = sum(lags.values())
        now = time.time()
        self._read.record(now, values | lags)
        self._by_partition.record(now, self._of_partitions(groups))

    def _of_partitions(self, groups: Mapping[str, Group]) -> dict[tuple[str, str], float]:
        known = [group for group in groups.values() if group.has_lag]
        known.sort(key=lambda group: (group.id not in self._groups_looked_at, -(group.behind.total or 0)))
        found: dict[tuple[str, str], float] = {}
        for one, tp in itertools.islice(((group, tp) for group in known for tp in group.offsets), MOST_PARTITIONS):
            found["read", _series(one.id, tp)] = one.offsets[tp].offset
            if tp in one.lags:
                found["lag", _series(one.id, tp)] = one.lags[tp]
        return found


def _series(group: str, tp: TopicPartition) -> str:
    return f"{tp}@{group}"  # a topic has no @ in its name


def _with_lags(
    groups: Mapping[str, Group],
    partitions: Mapping[TopicPartition, Partition],
    newer: Mapping[TopicPartition, int] | None = None,
) -> dict[str, Group]:
    """`newer`: the partitions whose ends are newer than the groups' offsets. Only such an end tells that an offset lies
    beyond it: one that is older than the offset may just have been passed."""
    ends = newer or {}
    return {
        name: dataclasses.replace(
            group,
            lags=_lags(group, partitions),
            unread=_unread(group, partitions),
            beyond=frozenset(
                tp
                for tp, at in (group.offsets.items() if group.has_lag else ())
                if (tp in ends or tp in group.beyond) and tp in partitions and 0 <= partitions[tp].end < at.offset
            ),
        )
        for name, group in groups.items()
    }


def _lags(group: Group, partitions: Mapping[TopicPartition, Partition]) -> dict[TopicPartition, int]:
    if not group.has_lag:
        return {}
    found = {}
    for tp, at in group.offsets.items():
        known = partitions.get(tp)
        if known is not None and known.end >= 0:
            lag = group.told.get(tp) if group.is_share else max(0, known.end - at.offset)
            if lag is not None:
                found[tp] = lag
    return found


def _unread(group: Group, partitions: Mapping[TopicPartition, Partition]) -> dict[TopicPartition, int]:
    if group.is_share:  # what its members begin with is the group's own setting, share.auto.offset.reset
        return {}
    known = ((tp, partitions[tp].records) for tp in group.uncommitted if tp in partitions)
    return {tp: records for tp, records in known if records is not None}


def _refuse_all_but_forbidden(error: BrokerError | UnsupportedVersion) -> None:
    """What this client may not see, or the brokers do not know, is not there. Any other error is one."""
    if isinstance(error, BrokerError) and error.code not in DENIED:
        raise error
