"""The driver's lookups in the archive: where a partition's objects are, its manifest, what a plan reads from there.

Used by offset_reader.py for reads with `archive=direct`. The brokers tell where the archive is (`archive.url`) and
under which id a topic is in it; the manifest says what is there. A manifest is read again for every plan that reads
from the store. Where a stream has passed the archive's end, the store is asked at most once a minute.

A transaction that was aborted after the archive's end may have records before it, and its marker is in the live log
only. So for readers of committed records the partition's leader is asked for such transactions, by a fetch of the last
archived batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from broker.archive.layout import PartitionPlace, parse_topic_id
from broker.archive.manifest import Manifest
from broker.archive.manifest_store import ManifestStore
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher, FetchStream
from broker.errors import ConfigError
from broker.protocol.described_config import ResourceType
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.archive_options import ArchiveOptions
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.archive_plan import Manifests, at_marks, bytes_per_offset, divide, keep_times, stored_range
from spark_connector.read.archive_reader import open_store, store_errors
from spark_connector.read.planning import OffsetRange, split_ranges

_URL: Final = "archive.url"
_ARCHIVE_ID: Final = "archive.topic.id"
_REFRESH_S: Final = 60.0
_AT_ONCE: Final = 16
TASK_BYTES: Final = 128 << 20
"""About how much of the store a task reads at most, unless `maxBytesPerPartition` says otherwise. The history of a
partition may be of any size; Spark's own readers of files have the same default."""

Aborted = tuple[tuple[int, int], ...]
Places = Mapping[TopicPartition, PartitionPlace]
TopicIds = Mapping[str, str]
Split = Callable[[Sequence[OffsetRange]], list[OffsetRange]]


class ArchiveSource(Protocol):
    """Where the archive is, and what is known of it elsewhere."""

    def url(self) -> str: ...

    def place(self, tp: TopicPartition, topic_id: uuid.UUID) -> PartitionPlace | None:
        """None for a partition of a topic that is not archived."""

    def cut_by(self, tp: TopicPartition, end: int) -> Aborted:
        """(producer id, first offset) of the aborted transactions that have begun before `end` and ended after it."""


class ArchiveLookup:
    """The archive of one query; not thread-safe. It keeps manifests, and nothing that has to be closed."""

    def __init__(
        self,
        options: SourceOptions,
        archive: ArchiveOptions,
        source: ArchiveSource,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._archive = archive
        self._source = source
        self._monotonic = monotonic
        self._known: dict[PartitionPlace, tuple[Manifest, float]] = {}

    def split(self, ranges: Sequence[OffsetRange], ids: TopicIds, split_live: Split) -> list[OffsetRange]:
        """The ranges cut by the options, those in the archive as StoredRange. `split_live` cuts the others by bytes.

        Raises ConfigError, ConnectorError, BrokenManifest and the client's errors.
        """
        needed: dict[TopicPartition, int] = {}
        for one in ranges:
            if one.size > 0:
                needed[one.tp] = min(needed.get(one.tp, one.from_offset), one.from_offset)
        places = self.places(needed, ids)
        manifests = self.manifests(places, needed)
        parts = divide(ranges, manifests)
        stored = keep_times(parts.stored, manifests, self._options.filters.timestamps)
        most = self._options.max_bytes_per_partition or TASK_BYTES
        sizes = bytes_per_offset(stored, manifests)
        stored = split_ranges(stored, most_of={tp: max(most // size, 1) for tp, size in sizes.items()})
        most_records = self._options.max_records_per_partition
        every = split_ranges(
            sorted([*stored, *split_live(parts.live)]),
            min_partitions=self._options.min_partitions,
            max_records=most_records,
        )
        if most_records is None:
            every = at_marks(every, manifests)
        cut = self._cut_by_the_end(every, manifests)
        return [self._stored(one, places, manifests, cut) for one in every]

    def places(self, partitions: Iterable[TopicPartition], ids: TopicIds) -> dict[TopicPartition, PartitionPlace]:
        """Where the partitions are in the archive; those that cannot be there are left out."""
        found = {tp: self._source.place(tp, uuid.UUID(ids[tp.topic])) for tp in partitions if tp.topic in ids}
        return {tp: place for tp, place in found.items() if place is not None}

    def manifests(self, places: Places, needed: Mapping[TopicPartition, int]) -> dict[TopicPartition, Manifest]:
        """The manifest at each place; `needed` says from which offset on the partition is read."""
        now = self._monotonic()
        due = [place for tp, place in places.items() if self._is_due(place, needed[tp], now)]
        if due:
            url = self._source.url()
            with store_errors(url), ThreadPoolExecutor(min(_AT_ONCE, len(due))) as pool:
                loaded = pool.map(lambda place: self._load(url, place), due)
                self._known.update((place, (manifest, now)) for place, manifest in zip(due, loaded, strict=True))
        return {tp: self._known[place][0] for tp, place in places.items()}

    def _is_due(self, place: PartitionPlace, offset: int, now: float) -> bool:
        if place not in self._known:
            return True
        manifest, at = self._known[place]
        return offset < manifest.end or now - at >= _REFRESH_S

    def _load(self, url: str, place: PartitionPlace) -> Manifest:
        storage = open_store(url, self._archive)
        store = ManifestStore(storage, place.cluster_id, place.topic_id, place.partition)
        return store.refresh(self._known[place][0]) if place in self._known else store.load()

    def _cut_by_the_end(self, ranges: Sequence[OffsetRange], manifests: Manifests) -> dict[TopicPartition, Aborted]:
        if self._options.client.isolation_level != "read_committed":
            return {}
        asked: dict[TopicPartition, Aborted] = {}
        for one in ranges:
            manifest = manifests.get(one.tp)
            if one.tp in asked or manifest is None:
                continue
            if any(part.transactional for part in manifest.segments_between(one.from_offset, one.until_offset)):
                asked[one.tp] = self._source.cut_by(one.tp, manifest.end)
        return asked

    def _stored(
        self, one: OffsetRange, places: Places, manifests: Manifests, cut: Mapping[TopicPartition, Aborted]
    ) -> OffsetRange:
        manifest = manifests.get(one.tp)
        if manifest is None or not manifest.start <= one.from_offset < manifest.end:
            return one
        return stored_range(one, manifest, self._source.url(), places[one.tp], cut.get(one.tp, ()))


class BrokersArchive:
    """What the brokers say. Keeps it: none of it changes while a topic has its id."""

    def __init__(self, cluster: Cluster, archive: ArchiveOptions, stall_s: float) -> None:
        self._cluster = cluster
        self._stall_s = stall_s
        self._url = archive.url
        self._archive_ids: dict[uuid.UUID, uuid.UUID | None] = {}

    def url(self) -> str:
        """Raises ConfigError where the brokers have no archive, and BrokerError without the right to ask."""
        if self._url is None:
            broker = str(self._cluster.brokers()[0].id)
            found = Admin(self._cluster).describe_configs(ResourceType.BROKER, broker, [_URL]).get(_URL)
            self._url = found.value if found is not None else None
            if not self._url:
                raise ConfigError(
                    "Option 'archive'=direct: the brokers have no archive (their setting archive.url is not set). "
                    "Leave the option out, or say where the archive is by option 'archive.url'"
                )
        return self._url

    def place(self, tp: TopicPartition, topic_id: uuid.UUID) -> PartitionPlace | None:
        if topic_id not in self._archive_ids:
            self._archive_ids[topic_id] = self._archive_id(tp.topic, topic_id)
        cluster_id, archive_id = self._cluster.cluster_id(), self._archive_ids[topic_id]
        return (
            None if cluster_id is None or archive_id is None else PartitionPlace(cluster_id, archive_id, tp.partition)
        )

    def cut_by(self, tp: TopicPartition, end: int) -> Aborted:
        """By a fetch of the last batch before `end`: the answer names all transactions that reach beyond it."""
        with Fetcher(self._cluster, tp, max_bytes=1, isolation_level="read_committed") as fetcher:
            fetched = next(iter(FetchStream(fetcher, end - 1, end, stall_s=self._stall_s)))
        return tuple(sorted({(producer_id, first) for producer_id, first in fetched.aborted if first < end}))

    def _archive_id(self, topic: str, topic_id: uuid.UUID) -> uuid.UUID | None:
        """Whose archive the topic continues: its own id unless it was restored."""
        settings = Admin(self._cluster).describe_configs(ResourceType.TOPIC, topic, [_ARCHIVE_ID])
        given = settings[_ARCHIVE_ID].value if _ARCHIVE_ID in settings else None
        return parse_topic_id(given) if given else topic_id
