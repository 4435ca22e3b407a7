"""The driver's lookups at the brokers: which partitions there are, their first and last offsets, offsets at timestamps.

Used by both readers and by loads (Spark's counterpart is `KafkaOffsetReaderAdmin`). OffsetReader holds a `Cluster`, so
it is created where it is used and never pickled. One round of planning costs a metadata request and one ListOffsets
request per broker.

The client itself retries during an outage, for `default.api.timeout.ms` (one minute). Each lookup is retried
`fetchOffset.numRetries` times at intervals of `fetchOffset.retryIntervalMs`. A cluster that was never reached is tried
once, for as long as first_contact.py says.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata, UnknownTopic
from broker.client.partition_offsets import NO_EPOCH, OffsetAndTimestamp, Truncation, find_truncations, list_offsets
from broker.client.partition_offsets import Position as ReachedPosition
from broker.errors import BrokerError, ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.broker_needs import ARCHIVE, GROUP_STORE, IDEMPOTENT, NO_TIMES, READ, WRITE, Feature, check
from spark_connector.errors import ConnectorError, report_data_loss
from spark_connector.first_contact import note_reached, patience_s
from spark_connector.offset_store.base import Offsets, OffsetStore, TopicIds, open_store
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.selection import (
    EARLIEST,
    LATEST,
    Assign,
    OffsetRangeLimit,
    Position,
    SpecificOffsets,
    Subscribe,
    SubscribePattern,
    Timestamps,
    format_partitions,
)
from spark_connector.options.value_sets import LOWEST, NO_END
from spark_connector.read.planning import OffsetRange, share_tasks, split_ranges
from spark_connector.read.size_estimator import BytesPerOffset, SizeEstimator
from spark_connector.read.stream_offset import StreamOffset
from spark_connector.read.time_ends import at_records

if TYPE_CHECKING:
    from spark_connector.read.archive_lookup import ArchiveLookup  # a store's library behind it

logger = logging.getLogger("pykafka.spark")

T = TypeVar("T")

_SHORTEST_WAIT = 0.02  # seconds between two tries


@dataclass(frozen=True)
class Assigned:
    """The partitions that the options select now, sorted, with topic ids and cluster id if the brokers have them.

    `left_out`: those in which nothing can pass `where` and the filters. `counts`: how many partitions each topic has.
    """

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, str]
    cluster_id: str | None = None
    left_out: tuple[TopicPartition, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """Start and end of a batch query, for the same partitions."""

    start: Offsets
    end: Offsets
    topic_ids: Mapping[str, str]


class OffsetReader:
    """The lookups of one query. Not thread-safe; call `close()` at the end. `committed` is the query's offset store."""

    def __init__(self, options: SourceOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self.committed = CommittedOffsets(options)
        self._options = options
        self._sleep = sleep
        patience = patience_s(options.client)
        self._cluster = Cluster(options.client, create_topics=False, first_contact_s=patience)
        self._bad_records_topic_found = False
        self._needed: set[str] = set()

    @functools.cached_property
    def sizes(self) -> BytesPerOffset:
        limited = (self._options.max_bytes_per_trigger, self._options.max_bytes_per_partition) != (None, None)
        return SizeEstimator(self._cluster, only_to_share=not limited)

    @functools.cached_property
    def archive(self) -> ArchiveLookup | None:
        """The archive, if records are read from its store."""
        if self._options.archive is None:
            return None
        from spark_connector.read.archive_lookup import ArchiveLookup, BrokersArchive

        if self._options.archive.url is None:
            self._need(ARCHIVE)
        source = BrokersArchive(self._cluster, self._options.archive, self._options.poll_timeout_ms / 1000)
        return ArchiveLookup(self._options, self._options.archive, source)

    def close(self) -> None:
        """May be called again."""
        self._cluster.close()
        self.committed.close()

    def batch_bounds(self) -> Bounds:
        """Where a batch query reads. Raises ConnectorError, ConfigError, PykafkaError."""
        assigned = self.assigned()
        start = self.resolve(self._options.starting, assigned, which="start")
        end = self._existing(start, self.resolve(self._options.ending, assigned, which="end"))
        return Bounds(*self._filtered(start, end), assigned.topic_ids)

    def initial(self) -> StreamOffset:
        assigned = self.assigned()
        return StreamOffset(self.resolve(self._options.starting, assigned, which="start"), assigned.topic_ids)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The end of each partition, with its leader epoch."""
        return self._ask(dict.fromkeys(partitions, LATEST))

    def truncations(self, reached: Mapping[TopicPartition, ReachedPosition]) -> dict[TopicPartition, Truncation]:
        """The partitions whose logs were truncated below the given offset and leader epoch (KIP-320)."""
        return self._with_retries(lambda: find_truncations(self._cluster, reached)) if reached else {}

    def starts_of_new_topics(
        self, created: Collection[TopicPartition], selected: Collection[TopicPartition], ends: StreamOffset
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where a running stream starts, by the starting options, in topics that it did not know when it began.

        Returns the starts of all partitions, and of those that start at their beginning.

        `latest` means the time when the query began. So a topic `created` since then is read from its beginning (S4),
        and one that new options have `selected` starts at its end, which is in `ends`. A partition that the options do
        not name starts at its beginning, and one without a record at or after the timestamp at its end.
        """
        limit, now = self._options.starting, ends.offsets
        found, timestamps = dict.fromkeys([*created, *selected], EARLIEST), dict[TopicPartition, int]()
        if limit is Position.LATEST:
            found |= {tp: now[tp] for tp in selected}
        elif limit is Position.COMMITTED and found:
            committed, _ = self.committed.read(ends.topic_ids)
            found |= {tp: offset for tp, offset in committed.items() if tp in found}
        elif isinstance(limit, SpecificOffsets):
            found |= {tp: offset for tp, offset in limit.offsets.items() if tp in found and offset != LATEST}
            found |= {tp: now[tp] for tp in selected if limit.offsets.get(tp) == LATEST}
        elif isinstance(limit, Timestamps):
            timestamps = limit.of(found)
        earliest = self.earliest(tp for tp, offset in found.items() if offset == EARLIEST and tp not in timestamps)
        at_times = {tp: offset if offset >= 0 else now[tp] for tp, offset in self._at_times(timestamps).items()}
        return {**found, **earliest, **at_times}, earliest

    def split(self, ranges: Sequence[OffsetRange], ids: Mapping[str, str]) -> list[OffsetRange]:
        """Split the ranges by the options. Asks brokers for sizes only if `maxBytesPerPartition` is set.

        With an archive, what tasks read from its store is a StoredRange. `ids`: the ids of the topics.
        """
        if self.archive is not None:
            return self.archive.split(ranges, ids, self._split_by_bytes)
        return split_ranges(
            self._split_by_bytes(ranges),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def _split_by_bytes(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        limit = self._options.max_bytes_per_partition
        estimate = {} if limit is None else self._bytes_per_offset(ranges)
        return split_ranges(ranges, most_of={tp: max((limit or 0) // size, 1) for tp, size in estimate.items()})

    def tasks(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """The ranges of each task. Asks brokers for sizes, unless every range has its own task anyway."""
        if len(ranges) <= max(self._options.min_partitions or 1, 1) or not self._options.min_bytes_per_partition:
            return [(one,) for one in ranges]
        if self.archive is None:
            return self._shared(ranges, self._bytes_per_offset(ranges))
        from spark_connector.read.archive_plan import StoredRange, stored_bytes_per_offset

        stored = [one for one in ranges if isinstance(one, StoredRange)]
        live = [one for one in ranges if not isinstance(one, StoredRange)]
        return self._shared(stored, stored_bytes_per_offset(stored)) + self._shared(live, self._bytes_per_offset(live))

    def _shared(
        self, ranges: Sequence[OffsetRange], bytes_per_offset: Mapping[TopicPartition, int]
    ) -> list[tuple[OffsetRange, ...]]:
        return share_tasks(
            ranges,
            bytes_per_offset,
            least_bytes=self._options.min_bytes_per_partition,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def _bytes_per_offset(self, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, int]:
        start: dict[TopicPartition, int] = {}
        end: dict[TopicPartition, int] = {}
        for one in ranges:
            start[one.tp] = min(start.get(one.tp, one.from_offset), one.from_offset)
            end[one.tp] = max(end.get(one.tp, 0), one.until_offset)
        return self.sizes.estimate(start, end)

    def ends(self, known: StreamOffset, assigned: Assigned | None = None) -> StreamOffset:
        """The current ends (with read_committed: the last stable offsets) of the selected partitions, or of these that
        were `assigned`, and leader epochs.

        Looked up again while they contradict what the stream or load has read already. A broker that was just elected
        or started may for a moment report a lower end (KAFKA-7703) or not know a topic yet. A leader with a lower epoch
        was deposed and has not heard of it. After the last try the answer is returned as it is, and the caller reports
        data loss.
        """
        for attempt in range(1, self._options.num_retries + 1):
            selected = assigned or self.assigned(optional={tp.topic for tp in known.offsets})
            self._need_store()
            found = self.log_ends(selected.partitions)
            ends = StreamOffset(
                {tp: end.offset for tp, end in found.items()},
                selected.topic_ids,
                epochs={tp: end.leader_epoch for tp, end in found.items() if end.leader_epoch != NO_EPOCH},
            )
            suspect = {
                tp
                for tp, offset in known.offsets.items()
                if not _recreated(tp.topic, known.topic_ids, ends.topic_ids)
                and (
                    ends.offsets.get(tp, -1) < offset or ends.epochs.get(tp, NO_EPOCH) < known.epochs.get(tp, NO_EPOCH)
                )
            }
            if not suspect or attempt == self._options.num_retries:
                break
            logger.warning("Partitions %s are gone or end too early, looking again", format_partitions(suspect))
            self._cluster.invalidate()
            self._sleep(self._options.retry_interval_ms / 1000)
        return ends

    def assigned(self, *, optional: Collection[str] = ()) -> Assigned:
        """The selected partitions, from fresh metadata. A missing topic raises UnknownTopic unless it is in
        `optional`."""
        topics = self._with_retries(lambda: self._topics(optional))
        self._need(READ)
        self._find_bad_records_topic()
        selection = self._options.selection
        if isinstance(selection.subscription, Assign):
            every = [tp for tp in selection.subscription.partitions if _exists(tp, topics, optional)]
        else:
            every = sorted(TopicPartition(name, index) for name, topic in topics.items() for index in topic.partitions)
        kept = [tp for tp in every if selection.keeps(tp)]
        if every and not kept and not optional:
            raise ConfigError(f"Option 'filterPartitions' excludes all of {format_partitions(set(every))}")
        may_hold = self._options.filters.may_hold
        partitions = tuple(tp for tp in kept if selection.passes(tp) and may_hold(tp, len(topics[tp.topic].partitions)))
        ids = {tp.topic: topics[tp.topic].topic_id for tp in partitions}
        return Assigned(
            partitions,
            {name: str(value) for name, value in sorted(ids.items()) if value is not None},
            self._cluster_id(),
            tuple(sorted({*kept} - {*partitions})),
            {name: max(topic.partitions, default=-1) + 1 for name, topic in topics.items()},
        )

    def resolve(self, limit: OffsetRangeLimit, assigned: Assigned, *, which: str) -> dict[TopicPartition, int]:
        """Resolve `limit` to an offset for each assigned partition; `which` (start or end) is for messages."""
        partitions = assigned.partitions
        if limit is Position.COMMITTED:
            self._need_store()
            committed, recreated = self.committed.read(assigned.topic_ids)
            if recreated:
                reason = (
                    f"Topic {', '.join(recreated)} was deleted and recreated after the offsets of group "
                    f"'{self._options.group}' were committed; the new one would be read from its beginning."
                )
                report_data_loss("TOPIC_RECREATED", reason, fail=self._options.fail_on_data_loss)
            wanted = {tp: committed.get(tp, EARLIEST) for tp in partitions}
        elif isinstance(limit, SpecificOffsets):
            condition = f"KAFKA_{which.upper()}_OFFSET_DOES_NOT_MATCH_ASSIGNED"
            _check_named(limit.offsets, assigned, f"{which} offsets", condition)
            wanted = {tp: limit.offsets[tp] for tp in partitions}
        elif isinstance(limit, Timestamps):
            wanted = self._at_timestamps(limit, assigned, which)
        else:
            wanted = dict.fromkeys(partitions, EARLIEST if limit is Position.EARLIEST else LATEST)
        named = {tp: offset for tp, offset in wanted.items() if offset < 0}
        return {**wanted, **self._list(named)}

    def _existing(self, start: Offsets, end: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """`end`, or with failOnDataLoss=false at most the current end, so that no task waits for records in vain.

        Brokers report no end that is too low: a new leader refuses until it knows the end (KIP-207).
        """
        if self._options.fail_on_data_loss or not isinstance(self._options.ending, SpecificOffsets):
            return end
        latest = self._list(dict.fromkeys(end, LATEST))
        found = {tp: min(offset, max(latest[tp], start[tp])) for tp, offset in end.items()}
        for tp in sorted(end):
            if found[tp] < end[tp]:
                reason = (
                    f"Could not read records in offset [{found[tp]}, {end[tp]}) for topic partition {tp}, which option "
                    f"'endingOffsets' asks for: the partition ends at {latest[tp]}."
                )
                report_data_loss("COULD_NOT_READ_OFFSET_RANGE", reason, fail=False)
        return found

    def _filtered(
        self, start: dict[TopicPartition, int], end: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """`start` moved to the first record that is young enough to pass, or after all that brokers looked at if there
        is none, and, with `timestampsGrow`, `end` to the first that is too young.

        Looked up after `end`, because later records are not read. The rows are filtered all the same: other timestamps
        need not grow.
        """
        filters = self._options.filters
        first, until = filters.timestamps.bounds if filters.timestamps is not None else (LOWEST, NO_END)
        if first >= 0:
            backlog = _backlog(start, end)
            seen = self._looked_at(backlog, end)
            found = self._narrowing(dict.fromkeys(backlog, first))
            after = {tp: seen[tp] if at < 0 else at for tp, at in found.items()}
            start = {**start, **{tp: min(max(start[tp], at), end[tp]) for tp, at in after.items()}}
        if 0 <= until < NO_END and filters.timestamps_grow:
            found = self._narrowing(dict.fromkeys(_backlog(start, end), until))
            ends = {tp: max(start[tp], at) for tp, at in found.items() if 0 <= at < end[tp]}
            end = {**end, **self._at_records(ends)}
        return start, end

    def _looked_at(self, partitions: Iterable[TopicPartition], end: Offsets) -> Offsets:
        """Up to where brokers look for a timestamp, at least. An end by `endingOffsets` may lie behind records that are
        still to come, or, with read_committed, behind transactions that are still open."""
        if not isinstance(self._options.ending, SpecificOffsets):
            return end
        return self._list(dict.fromkeys(partitions, LATEST))

    def _at_timestamps(self, limit: Timestamps, assigned: Assigned, which: str) -> dict[TopicPartition, int]:
        if not isinstance(limit.timestamps, int):
            condition = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
            _check_named(limit.timestamps, assigned, f"timestamp based {which} offsets", condition)
        timestamps = limit.of(assigned.partitions)
        found = self._at_times(timestamps)
        for tp in sorted(found):
            if found[tp] < 0 and not limit.latest_if_none:
                raise ConfigError(
                    f"No offset matched from request of topic-partition {tp} and timestamp {timestamps[tp]}. "
                    "Set startingOffsetsByTimestampStrategy to latest to start such a partition at its end."
                )
        return {tp: offset if offset >= 0 else LATEST for tp, offset in found.items()}

    def _at_records(self, ends: Offsets) -> dict[TopicPartition, int]:
        """Those that were found by a time and are no marker of a transaction; see time_ends.py."""
        return at_records(self._cluster, ends)

    def _cluster_id(self) -> str | None:
        return self._cluster.cluster_id()

    def _topics(self, optional: Collection[str]) -> dict[str, TopicMetadata]:
        subscription = self._options.subscription
        if isinstance(subscription, SubscribePattern):
            return {
                name: topic
                for name, topic in self._cluster.topics().items()
                if not topic.internal and subscription.matches(name)
            }
        named = () if isinstance(subscription, Subscribe) else subscription.partitions
        names = subscription.topics if isinstance(subscription, Subscribe) else {tp.topic for tp in named}
        self._cluster.include(names)
        self._cluster.expire()
        topics = {}
        for name in sorted(names):
            try:
                topics[name] = self._topic(name, () if name in optional else named)
            except UnknownTopic:
                if name not in optional:
                    raise
        return topics

    def _topic(self, name: str, named: Collection[TopicPartition]) -> TopicMetadata:
        """One topic, if possible from a broker that knows all the partitions in `named`."""
        wanted = {tp.partition for tp in named if tp.topic == name}
        return self._cluster.topic(name, lambda found: wanted.issubset(found.partitions))

    def _find_bad_records_topic(self) -> None:
        """Tell the user once, here, what else each task would run into. Raises ConfigError."""
        name = self._options.formats.bad_records_topic
        if name is not None and not self._bad_records_topic_found:
            from spark_connector.formats.bad_records import BadRecordsTopic

            BadRecordsTopic(self._cluster, name)
            self._bad_records_topic_found = True
            self._need(WRITE, *([IDEMPOTENT] if self._options.client.enable_idempotence else []))

    def _need(self, *features: Feature) -> None:
        """Look once whether the brokers serve what these need. Raises ConfigError."""
        new = [one for one in features if one.name not in self._needed]
        if new:
            check(self._cluster, *new)
            self._needed |= {one.name for one in new}

    def _need_store(self) -> None:
        if self._options.offset_store == "group":
            self._need(GROUP_STORE)

    def _list(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets at timestamps (or EARLIEST, LATEST); -1 where no record is at or after the timestamp."""
        return {tp: answer.offset for tp, answer in self._ask(timestamps).items()}

    def _at_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As `_list`, for options that name a time. Raises ConfigError where brokers find no offsets by time."""
        try:
            return self._list(timestamps)
        except BrokerError as error:
            if error.code not in NO_TIMES:
                raise
            raise ConfigError(
                "the brokers find no offsets by time, which startingTimestamp, endingTimestamp and "
                f"…OffsetsByTimestamp need (ListOffsets: {error}). Set startingOffsets and endingOffsets instead, and "
                "leave out the rows of other times by option 'where' or a filter on the column timestamp"
            ) from error

    def _narrowing(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As `_list`, to read less; empty where brokers find no offsets by time, so that all is read and filtered."""
        try:
            return self._list(timestamps)
        except BrokerError as error:
            if error.code not in NO_TIMES:
                raise
            logger.info("the brokers find no offsets by time, so a filter by time saves no reads: %s", error)
            return {}

    def _ask(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._with_retries(lambda: list_offsets(self._cluster, timestamps)) if timestamps else {}

    def _with_retries(self, ask: Callable[[], T]) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = ask()
                note_reached(self._options.client)
                return answer
            except PykafkaError as error:
                if not (error.retriable and self._cluster.reached) or attempt >= self._options.num_retries:
                    raise
                logger.warning("Error in attempt %d of getting Kafka offsets: %s", attempt, error)
                self._sleep(max(self._options.retry_interval_ms / 1000, _SHORTEST_WAIT))


def _backlog(start: Offsets, end: Offsets) -> list[TopicPartition]:
    return [tp for tp in start if start[tp] < end[tp]]


def _recreated(topic: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return topic in before and topic in now and before[topic] != now[topic]


def _exists(tp: TopicPartition, topics: Mapping[str, TopicMetadata], optional: Collection[str]) -> bool:
    topic = topics.get(tp.topic)
    if topic is not None and tp.partition in topic.partitions:
        return True
    if tp.topic in optional:
        return False
    count = 0 if topic is None else len(topic.partitions)
    # Spark's own source silently leaves out such a partition.
    raise UnknownTopic(f"topic {tp.topic!r} has {count} partitions, option 'assign' names partition {tp.partition}")


def _check_named(named: Offsets, assigned: Assigned, what: str, condition: str) -> None:
    if set(named) - {*assigned.left_out} != set(assigned.partitions):
        hint = "" if "timestamp" in what else " Use -1 for latest, -2 for earliest."
        raise ConnectorError(
            condition,
            f"Partitions specified for Kafka {what} don't match what are assigned. Maybe topic partitions are created "
            f"or deleted while the query is running, or you didn't specify all of them.{hint} "
            f"Specified: {format_partitions(named)} Assigned: {format_partitions(set(assigned.partitions))}",
        )


class CommittedOffsets:
    """The committed offsets of `group` in `offsetStore`, for a start at `committed` and to publish progress.

    The store is opened when it is first needed; without a store nothing is published. The checkpoint of a stream is the
    truth, and the store only informs people and other queries. So an unreachable store never stops a stream (S8): the
    commit is logged as a warning and repeated with the next one.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._group = options.group or ""  # not empty if there is a store: parse_options checks it
        self._store: OffsetStore | None = None
        self._published: tuple[Offsets, TopicIds] | None = None

    def read(self, topic_ids: TopicIds) -> tuple[dict[TopicPartition, int], list[str]]:
        """Next offsets by partition, and which of the topics with these ids had another one when they were committed:
        without their offsets. Empty when nothing was committed. Raises the store's errors."""
        store = self._open()
        before, offsets = store.topic_ids(self._group), store.read(self._group)
        recreated = sorted({tp.topic for tp in offsets if _recreated(tp.topic, before, topic_ids)})
        return {tp: offset for tp, offset in offsets.items() if tp.topic not in recreated}, recreated

    def publish(self, offsets: Offsets, topic_ids: TopicIds) -> None:
        """Commit the position of the stream when it has changed. Raises ConfigError only."""
        if self._options.offset_store is None or not offsets or (offsets, topic_ids) == self._published:
            return
        try:
            self._open().commit(self._group, offsets, topic_ids=topic_ids)
            self._published = dict(offsets), dict(topic_ids)
        except ConfigError:
            raise
        except (PykafkaError, OSError) as error:
            logger.warning("Offsets of group '%s' were not published, the next commit retries: %s", self._group, error)
            self.close()

    def close(self) -> None:
        """Close connections. May be called again; the next use opens the store again."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _open(self) -> OffsetStore:
        if self._store is None:
            assert self._options.offset_store is not None, "parse_options checks it"
            self._store = open_store(self._options.offset_store, self._options.store_options)
        return self._store
