"""Copies records from one cluster to another, exactly once; Kafka's MirrorMaker 2 (KIP-382, KIP-618) without Connect.

Records, progress and offset syncs of a while are written to the target in one transaction. So whatever ends the mirror,
its next run continues behind the last record that was committed. The transactional id is made of the aliases of the two
clusters: a second mirror with the same aliases fences the first.

A `_Session` is one epoch of the transactional id. When something fails in it that may pass, the mirror begins another
one, which reads again how far the target really is.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.client.admin import Admin
from broker.client.auto_closeable import AutoCloseable
from broker.client.batch_producer import BatchProducer
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata, UnknownTopic
from broker.client.partition_offsets import EARLIEST, LATEST, NO_EPOCH, Position, find_truncations, list_offsets
from broker.client.producer_batch import ProducerBatch
from broker.client.transaction_errors import ProducerFenced, TransactionError
from broker.client.transaction_requests import (
    TransactionHandle,
    add_partitions,
    end_transaction,
    init_transactional_id,
    transaction_version,
)
from broker.errors import ConfigError, CorruptBatch, ErrorCode, PykafkaError, RequestTimedOut
from broker.mirror.batch_copy import copy_batches
from broker.mirror.group_sync import GroupSync, checkpoints_topic
from broker.mirror.mirror_settings import MirrorSettings
from broker.mirror.offset_syncs import OffsetSyncs
from broker.mirror.source_fetcher import FetchedBatches, SourceFetcher
from broker.mirror.sync_topic import (
    Progress,
    ensure_compacted_topic,
    is_sync_topic,
    read_progress,
    record_batches,
    sync_topic,
)
from broker.mirror.topic_sync import MirroredTopic, TopicSync
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger("pykafka.mirror")

_POLL_S: Final = 0.2
"""Longest wait for records; the commit interval is kept to this."""
_PATIENCE_S: Final = 60.0
"""How long `once` tries without progress."""
_ANOTHER_EPOCH_HELPS: Final = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_txn_state,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.transaction_abortable,
    ErrorCode.unknown_producer_id,
    ErrorCode.unknown_server_error,
)
"""Errors of a transaction that do not lie in what was sent."""


@dataclasses.dataclass
class MirrorStats:
    """What a mirror has done. `lag`: committed records of the source that are not copied yet, as far as is known."""

    topics: int = 0
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    transactions: int = 0
    groups: int = 0
    lag: int = 0


class Mirror:
    """Mirrors `source` to `target`. Its clusters belong to the caller."""

    def __init__(self, source: Cluster, target: Cluster, settings: MirrorSettings) -> None:
        self.source = source
        self.target = target
        self.settings = settings
        self.stats = MirrorStats()
        self.topic_sync = TopicSync(Admin(source), Admin(target), settings)
        self.handle: TransactionHandle | None = None
        """Of the newest session."""
        self.ends: dict[TopicPartition, int] | None = None
        """With `once`: where each partition ended when the mirror began."""

    def run(self, stopping: Callable[[], bool], *, once: bool = False) -> None:
        """Mirror until `stopping()`, or with `once` what is there now.

        Raises ProducerFenced when another mirror takes over, ConfigError for clusters that cannot be mirrored, and
        errors that another attempt cannot help. With `once` it gives up when nothing succeeds for a minute.
        """
        self._check_clusters()
        failures, committed, since = 0, 0, time.monotonic()
        while True:
            try:
                with _Session(self) as session:
                    session.run(stopping, once=once)
                return
            except PykafkaError as error:
                if isinstance(error, ProducerFenced) and not self._timed_out():
                    raise self._fenced(error) from error
                if not (isinstance(error, ProducerFenced) or _may_pass(error)):
                    raise
                if self.stats.transactions > committed:
                    failures, committed, since = 0, self.stats.transactions, time.monotonic()
                if stopping() or (once and time.monotonic() - since > _PATIENCE_S):
                    raise
                failures += 1
                logger.warning("%s; beginning again behind what is committed", error)
                time.sleep(self.target.backoff_s(failures))

    def _timed_out(self) -> bool:
        """Whether it was the coordinator that has raised the epoch, when a transaction was open for too long."""
        if self.handle is None:
            return False
        try:
            now = Admin(self.target).describe_transaction(self.handle.transactional_id)
            return now.aborted_by_broker(self.handle.identity, transaction_version(self.target))
        except PykafkaError:
            return False

    def _fenced(self, error: ProducerFenced) -> ProducerFenced:
        settings = self.settings
        return ProducerFenced(
            error.code,
            f"another mirror from {settings.source_cluster_alias} to {settings.target_cluster_alias} took over "
            f"(transactional id {settings.transactional_id!r}); give each mirror its own --source-alias",
        )

    def _check_clusters(self) -> None:
        """Raise ConfigError when records would be mirrored in a circle."""
        if self.settings.policy.prefix:
            return
        target_id = self.target.cluster_id()
        if target_id is not None and target_id == self.source.cluster_id():
            raise ConfigError(
                "--from and --to are the same cluster, and its topics would be mirrored to themselves; "
                "--replication-policy default gives the copies another name"
            )
        for name in self.source.topics():
            if not is_sync_topic(name):
                continue
            for progress in read_progress(self.source, name).values():
                topic = progress.target.topic
                from_target = progress.source_cluster == target_id is not None
                if from_target and self.settings.topic_filter.accepts(topic):
                    raise ConfigError(
                        f"topic {topic!r} of the source is itself mirrored from the target, so its records would go in "
                        "a circle; name it in --topics-exclude, or use --replication-policy default in both mirrors"
                    )


class _Partition:
    def __init__(self, progress: Progress, *, stored: bool) -> None:
        """`stored`: whether the target has this progress."""
        self.source = progress.source
        self.target = progress.target
        self.progress = progress
        self._stored = stored
        self.position = Position(progress.offset, progress.leader_epoch)
        self.syncs = OffsetSyncs(progress.syncs)
        """Of what was committed, and in `commit` of what is about to be."""
        self.end = -1
        """Where the committed records of the source end, if known."""
        self._sent: list[tuple[ProducerBatch, list[tuple[int, int]]]] = []

    @property
    def dirty(self) -> bool:
        """Whether the target does not know the position."""
        return not self._stored or self.position != (self.progress.offset, self.progress.leader_epoch)

    @property
    def committed(self) -> Progress | None:
        """The progress that the target has."""
        return self.progress if self._stored else None

    def sent(self, batch: ProducerBatch, runs: list[tuple[int, int]]) -> None:
        self._sent.append((batch, runs))

    def acknowledged(self) -> Progress:
        """The progress to commit, now that all batches are written."""
        for batch, runs in self._sent:
            self._note(_written(batch), runs)
        self._sent.clear()
        self._stored = True
        self.progress = dataclasses.replace(
            self.progress, offset=self.position.offset, leader_epoch=self.position.leader_epoch, syncs=list(self.syncs)
        )
        return self.progress

    def _note(self, written: Iterable[tuple[int, int]], runs: Iterable[tuple[int, int]]) -> None:
        """Add syncs for a batch: `written` and `runs` are the same records on the target and on the source."""
        rest = deque(runs)
        for target, count in written:
            while count:
                source, length = rest.popleft()
                if length > count:
                    rest.appendleft((source + count, length - count))
                    length = count
                if target >= 0:  # -1: the broker knew the batch from an earlier attempt, and did not say where it is
                    self.syncs.append(source, target, length)
                    target += length
                count -= length


def _written(batch: ProducerBatch) -> Iterator[tuple[int, int]]:
    """(base offset on the target, number of records) of a batch, or of its parts if it was split."""
    if batch.halves is None:
        yield batch.base_offset, batch.record_count
    else:
        for half in batch.halves:
            yield from _written(half)


class _Session(AutoCloseable):
    """One epoch of the mirror's transactional id."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._source, self._target = mirror.source, mirror.target
        self._settings = settings = mirror.settings
        self._stats = mirror.stats
        self._handle = mirror.handle = init_transactional_id(
            self._target,
            settings.transactional_id,
            timeout_ms=self._target.settings.transaction_timeout_ms,
        )
        admin = Admin(self._target)
        self._group_sync = GroupSync(Admin(self._source), admin, settings)
        self._sync_tp = TopicPartition(sync_topic(settings.source_cluster_alias), 0)
        self._checkpoints_tp = TopicPartition(checkpoints_topic(settings.source_cluster_alias), 0)
        for tp in (self._sync_tp, self._checkpoints_tp):
            ensure_compacted_topic(admin, tp.topic, settings.replication_factor)
        self._known = read_progress(self._target, self._sync_tp.topic)
        self._first_refresh = True
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._in_transaction: set[TopicPartition] = set()
        self._copied_records = self._copied_bytes = 0  # in the open transaction
        self._producer = BatchProducer(self._target, transaction=self._handle)
        self._fetcher = SourceFetcher(self._source)
        self._commit_at = self._refresh_at = self._groups_at = 0.0
        self._moved_at = time.monotonic()

    def close(self) -> None:
        self._producer.close()
        self._fetcher.close()

    def run(self, stopping: Callable[[], bool], *, once: bool) -> None:
        """Mirror until `stopping()`, or until the ends that `once` began with are reached."""
        try:
            while not stopping():
                self._step(once)
                if once and self._at_end():
                    break
            self._commit()
            self._sync_groups()
        except BaseException:
            self._abort()  # raises ProducerFenced instead, if that is the cause
            raise

    def _step(self, once: bool) -> None:
        now = time.monotonic()
        if not self._in_transaction and now >= self._refresh_at:
            self._refresh(once)
            self._refresh_at = time.monotonic() + self._settings.refresh_topics_interval_s
        if not self._in_transaction and now >= self._groups_at and not once:
            self._sync_groups()
            self._groups_at = time.monotonic() + self._settings.emit_checkpoints_interval_s
        found = self._fetcher.poll(_POLL_S)
        self._copy(found)
        self._seek_lost()
        now = time.monotonic()
        dirty = any(partition.dirty for partition in self._partitions.values())
        if not dirty:
            self._commit_at = now + self._settings.commit_interval_s
        elif now >= self._commit_at:
            self._commit()
            self._commit_at = time.monotonic() + self._settings.commit_interval_s
        if once:
            self._check_progress(now, moved=any(fetched.next.offset > fetched.start for fetched in found))

    # --- which partitions ------------------------------------------------------------------------

    def _refresh(self, once: bool) -> None:
        """Make topics and partitions on the target, and begin with partitions that are new to this session."""
        topics = self._mirror.topic_sync.refresh()
        pairs = {source: (target, topic) for topic in topics.values() for source, target in topic.partitions()}
        if not pairs and once:
            raise ConfigError(
                f"--topics {','.join(self._settings.topics)}: the source has no such topic; it has "
                f"{', '.join(Admin(self._source).list_topics()) or 'none'}"
            )
        for tp in self._partitions.keys() - pairs.keys():
            logger.warning("the source has no %s any more; its copy is kept", tp)
            self._forget(tp)
        for tp, partition in list(self._partitions.items()):
            topic, known = pairs[tp][1], partition.progress
            if (_id(topic.source), _id(topic.target)) != (known.source_topic_id, known.target_topic_id):
                self._forget(tp)  # it was deleted and made again
        new = {tp: pair for tp, pair in pairs.items() if tp not in self._partitions}
        for partition in self._begin(new):
            self._partitions[partition.source] = partition
            self._fetcher.seek(partition.source, partition.position)
        self._stats.topics, self._stats.partitions = len(topics), len(pairs)
        if once and self._mirror.ends is None:
            ends = list_offsets(self._source, dict.fromkeys(pairs, LATEST), isolation_level="read_committed")
            self._mirror.ends = {tp: end.offset for tp, end in ends.items()}
        self._first_refresh = False

    def _forget(self, tp: TopicPartition) -> None:
        """Mirror a partition no more. If the same topic is seen again, its mirror goes on where it was.

        One answer of the source may lack a topic: its user may not describe it, or a broker has old metadata.
        """
        self._fetcher.forget(tp)
        progress = self._partitions.pop(tp).committed
        if progress is not None and progress.source_topic_id is not None:
            self._known[tp] = progress
        else:
            self._known.pop(tp, None)

    def _begin(self, new: dict[TopicPartition, tuple[TopicPartition, MirroredTopic]]) -> list[_Partition]:
        """Begin with each partition where the target says, or else at one end of the log."""
        found: list[_Partition] = []
        fresh: dict[TopicPartition, TopicPartition] = {}
        latest: set[TopicPartition] = set()
        for tp, (target, topic) in new.items():
            known = self._known.get(tp)
            same = known is not None and known.source_topic_id == _id(topic.source)
            if known is not None and same and (known.target, known.target_topic_id) == (target, _id(topic.target)):
                found.append(_Partition(known, stored=True))
                continue
            fresh[tp] = target
            whole = not any(other.topic == tp.topic for other in self._known)
            if whole and self._first_refresh and self._settings.auto_offset_reset == "latest":
                latest.add(tp)
        if fresh:
            asked = {tp: LATEST if tp in latest else EARLIEST for tp in fresh}
            starts = list_offsets(self._source, asked, isolation_level="read_committed")
            ends = list_offsets(self._target, dict.fromkeys(fresh.values(), LATEST), isolation_level="read_uncommitted")
            cluster_id = self._source.cluster_id()
            for tp, target in fresh.items():
                topic, start = new[tp][1], starts[tp].offset
                ids = _id(topic.source), _id(topic.target)
                syncs = [(start, ends[target].offset, 0)]
                progress = Progress(tp, target, cluster_id, *ids, start, NO_EPOCH, syncs)
                found.append(_Partition(progress, stored=False))
        return found

    def _seek_lost(self) -> None:
        """Continue where the source has no longer, or never had, what was asked for."""
        for tp, error in list(self._fetcher.lost.items()):
            if error.code is not ErrorCode.offset_out_of_range:
                self._refresh_at = 0.0  # the topic may have been deleted; if it was not, try again then
                if not self._in_transaction:
                    self._fetcher.seek(tp, self._partitions[tp].position)
                continue
            position = self._partitions[tp].position
            starts = list_offsets(self._source, {tp: EARLIEST})[tp]
            if position.offset < starts.offset:
                logger.warning(
                    "%s: offsets %d to %d were deleted on the source before they were mirrored",
                    tp,
                    position.offset,
                    starts.offset - 1,
                )
                self._move(tp, Position(starts.offset, NO_EPOCH))
            else:
                end = list_offsets(self._source, {tp: LATEST}, isolation_level="read_uncommitted")[tp]
                self._truncated(tp, min(end.offset, position.offset))
        if self._fetcher.doubtful:
            asked = dict(self._fetcher.doubtful)
            truncations = find_truncations(self._source, asked)
            for tp, position in asked.items():
                if tp in truncations and truncations[tp].end >= 0:
                    self._truncated(tp, truncations[tp].end)
                else:
                    self._fetcher.seek(tp, Position(position.offset, NO_EPOCH))

    def _truncated(self, tp: TopicPartition, end: int) -> None:
        logger.warning(
            "%s: the source lost its records from offset %d on (unclean leader election?); the target keeps them",
            tp,
            end,
        )
        self._partitions[tp].syncs.truncate(end)
        self._move(tp, Position(end, NO_EPOCH))

    def _move(self, tp: TopicPartition, position: Position) -> None:
        self._partitions[tp].position = position
        self._fetcher.seek(tp, position)

    # --- records -----------------------------------------------------------------------------------

    def _copy(self, found: list[FetchedBatches]) -> None:
        self._add_partitions(self._partitions[fetched.tp].target for fetched in found if fetched.partition.records)
        for fetched in found:
            try:
                self._copy_partition(fetched, self._partitions[fetched.tp])
            except CorruptBatch as error:
                raise CorruptBatch(f"{fetched.tp} of the source: {error}") from error
        self._stats.lag = sum(max(0, known.end - known.position.offset) for known in self._partitions.values())

    def _copy_partition(self, fetched: FetchedBatches, partition: _Partition) -> None:
        copies = copy_batches(
            fetched.partition.records,
            low=fetched.start,
            aborted=fetched.partition.aborted,
            stamp=lambda: self._producer.stamp(partition.target),
            max_bytes=self._producer.largest_batch(partition.target.topic),
            check_crcs=self._source.settings.check_crcs,
        )
        for copy in copies:
            partition.sent(self._producer.send(partition.target, copy.batch), copy.runs)
            self._copied_bytes += len(copy.batch)
            self._copied_records += sum(count for _, count in copy.runs)
        partition.end = fetched.partition.last_stable_offset
        if fetched.next.offset > fetched.start:
            partition.position = fetched.next

    def _add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        new = set(partitions) - self._in_transaction
        if not new:
            return
        if not self._in_transaction:
            new.add(self._sync_tp)
        self._in_transaction |= new  # even if it fails: then the transaction is aborted
        add_partitions(self._target, self._handle, new)

    def _commit(self) -> None:
        dirty = [partition for partition in self._partitions.values() if partition.dirty]
        if not dirty:
            return
        self._producer.flush()
        self._add_partitions([self._sync_tp])
        self._write(self._sync_tp, ((p.key(), p.value()) for p in [partition.acknowledged() for partition in dirty]))
        self._end()

    def _write(self, tp: TopicPartition, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        for batch in record_batches(pairs, lambda: self._producer.stamp(tp)):
            self._producer.send(tp, batch)
        self._producer.flush()

    def _end(self) -> None:
        end_transaction(self._target, self._handle, commit=True)
        self._in_transaction.clear()
        self._stats.transactions += 1
        self._stats.records += self._copied_records
        self._stats.bytes += self._copied_bytes
        self._copied_records = self._copied_bytes = 0

    def _abort(self) -> None:
        """Abort what is open, so that readers of the target need not wait for its time-out. Raises ProducerFenced."""
        if not self._in_transaction:
            return
        try:
            end_transaction(self._target, self._handle, commit=False, timeout_s=1.0)
        except ProducerFenced:
            raise
        except PykafkaError as error:
            logger.debug("aborting: %s", error)

    # --- groups --------------------------------------------------------------------------------------

    def _sync_groups(self) -> None:
        """Write checkpoints, and move the groups without members on the target."""
        checkpoints = self._group_sync.checkpoints(self._translate)
        if checkpoints:
            self._add_partitions([self._checkpoints_tp])
            self._write(self._checkpoints_tp, ((checkpoint.key(), checkpoint.value()) for checkpoint in checkpoints))
            self._end()
        if self._settings.sync_group_offsets:
            self._stats.groups += self._group_sync.commit()

    def _translate(self, tp: TopicPartition, offset: int) -> tuple[TopicPartition, int] | None:
        partition = self._partitions.get(tp)
        return None if partition is None else (partition.target, partition.syncs.translate(offset))

    # --- once --------------------------------------------------------------------------------------

    def _at_end(self) -> bool:
        ends = self._mirror.ends
        return ends is not None and all(
            partition.position.offset >= ends.get(tp, 0) for tp, partition in self._partitions.items()
        )

    def _check_progress(self, now: float, *, moved: bool) -> None:
        """Raise RequestTimedOut when nothing has come for a long time."""
        if moved or self._at_end():
            self._moved_at = now
        if now - self._moved_at > _PATIENCE_S:
            ends = self._mirror.ends or {}
            behind = [
                f"{tp} at offset {partition.position.offset} of {ends[tp]}"
                for tp, partition in self._partitions.items()
                if partition.position.offset < ends.get(tp, 0)
            ]
            raise RequestTimedOut(f"nothing came from the source for {_PATIENCE_S:g} s: {', '.join(sorted(behind))}")


def _may_pass(error: PykafkaError) -> bool:
    """Whether another session may succeed. A topic that is missing may have been deleted, and is looked for again."""
    if isinstance(error, TransactionError):
        return error.code in _ANOTHER_EPOCH_HELPS
    return error.retriable or isinstance(error, UnknownTopic)


def _id(topic: TopicMetadata) -> str | None:
    return None if topic.topic_id is None else str(topic.topic_id)
