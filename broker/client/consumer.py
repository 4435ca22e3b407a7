"""Consume records: `Consumer`, Kafka's `KafkaConsumer` in small.

For callers that want Python objects; Spark reads bytes with fetcher.py instead. Either `assign` partitions, or
`subscribe` to topics and share them with the group `group.id`. The caller's thread polls; a second thread sends
heartbeats.

    with Consumer("localhost:9092", {"group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["flights"])
        for record in consumer.poll(1.0):
            print(record.offset, record.value)
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from broker.client.auto_closeable import AutoCloseable
from broker.client.client_settings import ClientSettings
from broker.client.client_stats import ClientStats, OnStats, Statistics, StatsReporter
from broker.client.cluster import Cluster
from broker.client.committed_offsets import NO_MEMBER, GroupMetadata, GroupOffsets
from broker.client.consumer_coordinator import GroupSubscription
from broker.client.consumer_positions import Positions
from broker.client.fetch_protocol import FetchFrom, FetchLimits
from broker.client.fetcher import measure_batches
from broker.client.leader_fetches import LeaderFetches
from broker.client.partition_offsets import EARLIEST, LATEST, OffsetAndTimestamp, Position, list_offsets, offsets_at
from broker.client.topic_filter import Pattern, TopicFilter
from broker.errors import BrokerError, ConfigError, CorruptBatch, ErrorCode, PykafkaError
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition
from broker.records.record import Header, Record, decode_records

__all__ = ["Consumer", "ConsumerRecord"]

logger = logging.getLogger(__name__)

_SLICE_S = 0.1
"""Longest wait before it checks whether the group rebalances."""

_new_tuple = tuple.__new__


class ConsumerRecord(NamedTuple):
    """A record and its place; `timestamp` in ms, `timestamp_type` 0 for create time, 1 for log append time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_type: int


class CompletedFetch:
    """The records of one partition in a fetch response, decoded piece by piece."""

    def __init__(self, asked: FetchFrom, fetched: FetchedPartition, *, check_crcs: bool) -> None:
        self.tp = asked.tp
        self.leader_epoch = asked.leader_epoch
        """The epoch of the leader that responded."""
        self.position = offset = asked.offset
        """Offset of the next record. Continue only while it is the consumer's position."""
        self._end, self._batches = measure_batches(fetched.records, offset)
        self._size = len(fetched.records)
        self._error: CorruptBatch | None = None
        self._records: Iterator[Record] = decode_records(
            fetched.records, low=offset, check_crcs=check_crcs, aborted=fetched.aborted
        )

    def read(self, limit: int) -> list[Record]:
        """The next records, up to `limit`; fewer only at the end, then `position` is after everything fetched.

        Raises CorruptBatch when the batch at `position` cannot be read.
        """
        records: list[Record] = []
        try:
            if self._error is not None:
                raise self._error
            records.extend(itertools.islice(self._records, limit))
        except CorruptBatch as error:
            if not records:
                raise
            self._error = error
        if self._error is not None or len(records) == limit:
            self.position = records[-1].offset + 1
        else:
            self.position = self._end
        return records

    def count(self, statistics: Statistics, records: int) -> None:
        """Count records that were returned; the first call counts the bytes and batches of the fetch too."""
        size, batches = self._size, self._batches
        self._size = self._batches = 0
        statistics.batches(self.tp.topic, time.monotonic(), records=records, size=size, batches=batches)

    @property
    def exhausted(self) -> bool:
        return self.position >= self._end


class Consumer(AutoCloseable):
    """Reads records. Not thread-safe. Close it or use it as a context manager, so that it leaves the group."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        properties: Mapping[str, Any] | None = None,
        *,
        on_stats: OnStats | None = None,
    ) -> None:
        """`bootstrap`: "host:port,…" or properties with `bootstrap.servers`. Connects at the first use.

        `on_stats` is called with `stats()` every `statistics.interval.ms`, from `poll`.
        """
        self.settings = settings = ClientSettings.of(bootstrap, properties)
        self.cluster = Cluster(settings)
        self._offsets = GroupOffsets(self.cluster, settings.group_id) if settings.group_id else None
        self._positions = Positions(self.cluster, self._offsets)
        now = time.monotonic()
        self._statistics = Statistics(settings.client_id, now)
        self._reporter = StatsReporter(on_stats, settings.statistics_interval_ms, now)
        self._fetches = LeaderFetches(self.cluster, FetchLimits.of(settings), self._keep, statistics=self._statistics)
        self._completed: deque[CompletedFetch] = deque()
        """What was fetched and is not returned yet: at most `fetch.max.bytes` of each broker."""
        self._failures: dict[TopicPartition, BrokerError] = {}
        self._subscription: GroupSubscription | None = None
        self._next_commit = 0.0
        self._closed = False

    # --- subscription --------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions without joining a group; replaces the earlier assignment."""
        self._refuse_when("assign", subscribed=True)
        self._commit_quietly()
        self._positions.assign(partitions)

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | Pattern | None = None,
        exclude: str | Pattern | None = None,
        on_assign: Callable[[list[TopicPartition]], object] | None = None,
        on_revoke: Callable[[list[TopicPartition]], object] | None = None,
    ) -> None:
        """Share `topics`, or all topics whose name fully matches the regular expression `pattern`, with the group.

        Topics that match `exclude` are left out; alone it means all other topics. New topics are found after
        `metadata.max.age.ms`. `poll` calls `on_assign` after it got partitions, and `on_revoke` before it loses them,
        when their offsets can still be committed. With cooperative assignors both get only the partitions that move.
        Raises ConfigError.
        """
        wanted = TopicFilter.parse(topics, pattern, exclude)
        if self._offsets is None:
            raise ConfigError("group.id is missing: set it, or use assign() instead of subscribe()")
        self._refuse_when("subscribe", assigned=True)
        if self._subscription is None:
            self._subscription = GroupSubscription(
                self.cluster, self.settings.group_id, self._positions, self._commit_quietly
            )
        self._subscription.want(wanted, on_assign, on_revoke)

    def unsubscribe(self) -> None:
        """Leave the group or drop the assignment. With `enable.auto.commit` it commits first."""
        try:
            if self._subscription is None:
                self._commit_quietly()
            else:
                self._subscription.close()
        finally:
            self._subscription = None
            self._positions.assign([])

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._positions.partitions

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self._positions.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self._positions.resume(partitions)

    # --- reading -------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.0) -> list[ConsumerRecord]:
        """Records of the assigned partitions, at most `max.poll.records`, waiting up to `timeout_s` for the first.

        While the cluster cannot be reached it may wait up to `default.api.timeout.ms`, and then raises. With
        `enable.auto.commit` it commits what earlier polls returned. Raises BrokerError (`offset_out_of_range` with
        `auto.offset.reset=none`, …), UnknownTopic, and CorruptBatch at every call until a `seek` past the batch.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            left = max(deadline - now, 0.0)
            self._reporter.report(now, self.stats)
            if self._closed:
                raise PykafkaError("this consumer was closed")
            if self._subscription is None or self._subscription.advance(min(left, _SLICE_S)):
                self._auto_commit()
                self._positions.resolve()
                records = self._take(self.settings.max_poll_records)
                self._check_truncation()
                unread = {fetch.tp for fetch in self._completed}
                missing = self._fetches.send(self._positions.fetchable(), unread)  # also before it returns, to prefetch
                self._note_failures(missing)
                if records:
                    return records
                left = max(deadline - time.monotonic(), 0.0)
                self._fetches.receive(min(left, _SLICE_S))
                failures, self._failures = self._failures, {}
                self._note_failures(failures)
                records = self._take(self.settings.max_poll_records)
                if records:
                    return records
            if time.monotonic() >= deadline:
                return []

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at `offset`."""
        self._positions.seek(tp, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first record of these partitions, or of all."""
        for tp in self.assignment() if partitions is None else partitions:
            self._positions.seek_to(tp, EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue after the last record of these partitions, or of all."""
        for tp in self.assignment() if partitions is None else partitions:
            self._positions.seek_to(tp, LATEST)

    def seek_to_times(self, timestamps: Mapping[TopicPartition, int]) -> None:
        """Continue at the first record since each timestamp (ms), or at the end if there is none."""
        for tp, timestamp in timestamps.items():
            self._positions.seek_to(tp, timestamp)

    def rewind(self, offsets: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go back by `offsets` in these partitions or in all, but not before the first record."""
        chosen = list(self.assignment() if partitions is None else partitions)
        for tp, first in self.beginning_offsets(chosen).items():
            self._positions.seek(tp, max(self.position(tp) - offsets, first))

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record of `tp` that `poll` returns."""
        if self._positions.get(tp) is None:
            self._positions.resolve()
        offset = self._positions.get(tp)
        assert offset is not None
        return offset

    # --- offsets -------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, metadata: str = "") -> None:
        """Commit `offsets` (each the next offset to read), or the position of every partition. Raises BrokerError."""
        positions = self._positions.known() if offsets is None else offsets
        deadline = time.monotonic() + self.settings.default_api_timeout_ms / 1000
        while True:
            try:
                return self._group_offsets().commit(positions, metadata, member=self.group_metadata().member)
            except BrokerError as error:  # a heartbeat's answer that is under way has the new epoch (KIP-848)
                if error.code is not ErrorCode.stale_member_epoch or time.monotonic() >= deadline:
                    raise
                time.sleep(self.settings.retry_backoff_ms / 1000)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        return self._group_offsets().fetch(partitions)

    def group_metadata(self) -> GroupMetadata:
        """For `Producer.send_offsets_to_transaction`. Call it for every transaction, because it changes."""
        member = self._subscription.membership if self._subscription is not None else NO_MEMBER
        return GroupMetadata(self._group_offsets().group, member)

    def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Offsets between the position and the end (with read_committed, the last stable offset)."""
        chosen = list(self.assignment() if partitions is None else partitions)
        return {tp: max(end - self.position(tp), 0) for tp, end in self.end_offsets(chosen).items()}

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return offsets_at(self.cluster, partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition gets (with read_committed, the last stable offset)."""
        return offsets_at(self.cluster, partitions, LATEST)

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first record since each timestamp (ms); (-1, -1) if there is none."""
        return list_offsets(self.cluster, timestamps)

    def stats(self) -> ClientStats:
        """What was read so far, by topic and by broker."""
        return self._statistics.snapshot(time.monotonic())

    def close(self) -> None:
        """Commit with `enable.auto.commit`, leave the group, close the connections. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            self.unsubscribe()
        except PykafkaError as error:
            logger.warning("leaving group %s: %s", self.settings.group_id, error)
        finally:
            self._fetches.close()
            self._completed.clear()
            self.cluster.close()

    # --- inside --------------------------------------------------------------------------------

    def _group_offsets(self) -> GroupOffsets:
        if self._offsets is None:
            raise ConfigError("group.id is missing: offsets are committed under it")
        return self._offsets

    def _keep(self, asked: FetchFrom, fetched: FetchedPartition, error: BrokerError | None) -> None:
        if error is not None:
            if not error.retriable:
                self._failures[asked.tp] = error
        elif fetched.records:
            self._completed.append(CompletedFetch(asked, fetched, check_crcs=self.settings.check_crcs))
        else:
            self._positions.reached(asked.tp, Position(asked.offset, asked.leader_epoch))

    def _take(self, limit: int) -> list[ConsumerRecord]:
        """Take up to `limit` fetched records and advance the positions."""
        out: list[ConsumerRecord] = []
        completed, fetchable = self._completed, self._positions.fetchable()
        kept: list[CompletedFetch] = []
        while completed and len(out) < limit:
            fetch = completed[0]
            position = fetchable.get(fetch.tp)
            if position is None or position.offset != fetch.position:  # revoked, paused, or sought elsewhere meanwhile
                completed.popleft()
                if self._positions.paused_at(fetch.tp, fetch.position):
                    kept.append(fetch)  # until it is resumed
                continue
            topic, partition = fetch.tp
            try:
                records = fetch.read(limit - len(out))
            except CorruptBatch:
                if out:
                    break  # return the good records first; the next poll raises
                completed.popleft()
                raise
            fetch.count(self._statistics, len(records))
            out += (_new_tuple(ConsumerRecord, (topic, partition, r[0], r[1], r[2], r[3], r[4], r[5])) for r in records)
            fetchable[fetch.tp] = Position(fetch.position, fetch.leader_epoch)
            self._positions.seek(fetch.tp, fetch.position, fetch.leader_epoch)
            if fetch.exhausted:
                completed.popleft()
        completed.extend(kept)
        return out

    def _check_truncation(self) -> None:
        doubtful, self._fetches.doubtful = self._fetches.doubtful, set()
        if doubtful:
            self._positions.check_truncation(doubtful)

    def _note_failures(self, failures: Mapping[TopicPartition, BrokerError]) -> None:
        for tp, error in failures.items():
            if error.code is not ErrorCode.offset_out_of_range:
                raise error
            self._positions.out_of_range(tp, error)

    def _auto_commit(self) -> None:
        if not self.settings.enable_auto_commit or time.monotonic() < self._next_commit:
            return
        if self._subscription is not None and not self._subscription.settled:
            return  # the coordinator refuses commits during a rebalance
        if self._next_commit:
            self._commit_quietly()
        self._next_commit = time.monotonic() + self.settings.auto_commit_interval_ms / 1000

    def _commit_quietly(self) -> None:
        """Commit positions with `enable.auto.commit`. A failure is only logged: records may be read twice."""
        if not self.settings.enable_auto_commit or self._offsets is None:
            return
        try:
            self.commit()
        except PykafkaError as error:
            logger.warning("group %s: automatic commit failed: %s", self.settings.group_id, error)

    def _refuse_when(self, what: str, *, subscribed: bool = False, assigned: bool = False) -> None:
        if subscribed and self._subscription is not None:
            raise ConfigError(f"{what}() after subscribe(): unsubscribe() first")
        if assigned and self._subscription is None and self._positions.partitions:
            raise ConfigError(f"{what}() after assign(): unsubscribe() first")
