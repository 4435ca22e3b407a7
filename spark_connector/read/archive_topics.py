"""The lookups of a read of the archive alone (`archive=only`): no broker is asked, so it needs none.

Topics are found by the `topic.json` that the controller keeps beside each archive, and end where their archives do. For
readers of committed records a partition ends before the first transaction whose end is not archived: nobody knows here
whether it was aborted. Times are looked up in the records themselves, as a broker does: a batch is found by the marks
of the manifest.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.archive.aux_file import PRODUCER_SNAPSHOT
from broker.archive.layout import DELETED_FILE, MOST_TOPIC, TOPIC_FILE, PartitionPlace, parse_topic_id
from broker.archive.manifest import Manifest
from broker.archive.open_transactions import first_open_offset
from broker.client.cluster_metadata import PartitionMetadata, TopicMetadata, UnknownTopic
from broker.client.partition_offsets import EARLIEST, LATEST, OffsetAndTimestamp, Truncation
from broker.client.partition_offsets import Position as ReachedPosition
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.columns import decode_columns
from broker.storage.storage import Storage, TooLarge
from spark_connector.broker_needs import Feature
from spark_connector.errors import ConnectorError, report_data_loss
from spark_connector.offset_store.base import Offsets
from spark_connector.options.archive_options import ArchiveOptions
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.selection import Subscribe, SubscribePattern
from spark_connector.read.archive_lookup import Aborted, ArchiveLookup
from spark_connector.read.archive_plan import Manifests, bytes_per_offset
from spark_connector.read.archive_reader import open_store, read_section, store_errors, whole_batches
from spark_connector.read.offset_reader import OffsetReader
from spark_connector.read.planning import OffsetRange
from spark_connector.read.size_estimator import BytesPerOffset
from spark_connector.stored_json import mapping, parsed, text, whole
from spark_connector.stored_json import topic as topic_name

_AT_ONCE: Final = 16
_MOST_PARTITIONS: Final = 1_000_000
_NOBODY: Final = PartitionMetadata(-1, -1, (), ())


@dataclass(frozen=True)
class ArchivedTopic:
    """What `topic.json` says. `archive_id` is the id by which its archive lies below that of the cluster."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    cluster_id: str
    archive_id: uuid.UUID

    def place(self, partition: int) -> PartitionPlace:
        return PartitionPlace(self.cluster_id, self.archive_id, partition)


class ArchiveTopics:
    """The topics of an archive, listed once; `deleted` ones are left out."""

    def __init__(self, archive: ArchiveOptions) -> None:
        assert archive.url is not None, "parse_archive checks it"
        self._url = archive.url
        self._cluster = archive.cluster_id
        self.storage = open_store(archive.url, archive)
        self._found: dict[str, list[ArchivedTopic]] | None = None

    def names(self) -> list[str]:
        return sorted(self._topics())

    def get(self, name: str) -> ArchivedTopic | None:
        """None for a topic that is not there. Raises ConfigError where several archives have one of the name."""
        found = self._topics().get(name, [])
        if len(found) > 1:
            where = ", ".join(sorted(f"{one.cluster_id}/{one.archive_id}" for one in found))
            raise ConfigError(
                f"Option 'archive.url': several archives there have a topic '{name}': {where}. Name the cluster by "
                "option 'archive.cluster'"
            )
        return found[0] if found else None

    def list_again(self) -> None:
        self._found = None

    def url(self) -> str:
        return self._url

    def place(self, tp: TopicPartition, topic_id: uuid.UUID) -> PartitionPlace | None:
        """None where the topic has another id now."""
        topic = self.get(tp.topic)
        if topic is None or topic.topic_id != topic_id:
            return None
        return topic.place(tp.partition)

    def cut_by(self, tp: TopicPartition, end: int) -> Aborted:
        """None: what the archive's end cuts is not read."""
        return ()

    def _topics(self) -> dict[str, list[ArchivedTopic]]:
        if self._found is None:
            self._found = {}
            with store_errors(self._url), ThreadPoolExecutor(_AT_ONCE) as pool:
                clusters = [one for one in self.storage.names("") if self._cluster in (None, one)]
                listed = pool.map(self.storage.names, clusters)
                places = [(one, name) for one, names in zip(clusters, listed, strict=True) for name in names]
                for topic in pool.map(lambda place: self._read(*place), places):
                    if topic is not None:
                        self._found.setdefault(topic.name, []).append(topic)
        return self._found

    def _read(self, cluster_id: str, directory: str) -> ArchivedTopic | None:
        archive_id = parse_topic_id(directory)
        root = f"{cluster_id}/{directory}"
        if archive_id is None or self.storage.exists(f"{root}/{DELETED_FILE}"):
            return None
        try:
            found = mapping(parsed(self.storage.read(f"{root}/{TOPIC_FILE}", MOST_TOPIC)), TOPIC_FILE)
            name, topic_id = topic_name(found["name"], "name"), parse_topic_id(text(found["topic_id"], "topic_id"))
            count = whole(found["partitions"], "partitions", 0, _MOST_PARTITIONS)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TooLarge) as error:
            raise ConnectorError("PYKAFKA_ARCHIVE_BROKEN", f"{root}/{TOPIC_FILE} cannot be read: {error}") from None
        return ArchivedTopic(name, topic_id or archive_id, count, cluster_id, archive_id)


class ArchiveOffsetReader(OffsetReader):
    """The lookups of one query in the archive; the calls are those of its base."""

    def __init__(self, options: SourceOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(options, sleep)
        assert options.archive is not None, "open_offset_reader checks it"
        self._store = options.archive
        self._archived = ArchiveTopics(options.archive)
        self._lookup = ArchiveLookup(options, options.archive, self._archived)
        self._markers: set[tuple[TopicPartition, int]] = set()

    @functools.cached_property
    def archive(self) -> ArchiveLookup:
        return self._lookup

    @functools.cached_property
    def sizes(self) -> BytesPerOffset:
        return ManifestSizes(self._manifests)

    def truncations(self, reached: Mapping[TopicPartition, ReachedPosition]) -> dict[TopicPartition, Truncation]:
        """None: no broker says so."""
        return {}

    def _split_by_bytes(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """None of what is not in the archive. Raises DataLoss, or logs what is missing."""
        manifests = self._manifests({one.tp for one in ranges})
        for one in ranges:
            held = manifests[one.tp]
            reason = (
                f"Could not read records in offset {one}. The archive has offsets [{held.start}, {held.end}) of it, "
                "and option 'archive'=only reads nothing else."
            )
            report_data_loss("COULD_NOT_READ_OFFSET_RANGE", reason, fail=self._options.fail_on_data_loss)
        return []

    def _cluster_id(self) -> str | None:
        return None

    def _need(self, *features: Feature) -> None:
        """Nothing of brokers: none is asked."""

    def _at_records(self, ends: Offsets) -> dict[TopicPartition, int]:
        return {tp: offset for tp, offset in ends.items() if (tp, offset) not in self._markers}

    def _topics(self, optional: Collection[str]) -> dict[str, TopicMetadata]:
        subscription = self._options.subscription
        self._archived.list_again()
        if isinstance(subscription, SubscribePattern):
            names = [name for name in self._archived.names() if subscription.matches(name)]
        elif isinstance(subscription, Subscribe):
            names = list(subscription.topics)
        else:
            names = sorted({tp.topic for tp in subscription.partitions})
        topics = {}
        for name in names:
            found = self._archived.get(name)
            if found is not None:
                parts = dict.fromkeys(range(found.partitions), _NOBODY)
                topics[name] = TopicMetadata(name, found.topic_id, False, parts)
            elif name not in optional:
                raise UnknownTopic(f"topic {name!r} is not in the archive, or was deleted")
        return topics

    def _ask(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        manifests = self._manifests(timestamps)
        return {tp: self._offset_at(tp, manifests[tp], place) for tp, place in timestamps.items()}

    def _manifests(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Manifest]:
        """As they are now. Raises UnknownTopic."""
        ids = {}
        for name in {tp.topic for tp in partitions}:
            found = self._archived.get(name)
            if found is None:
                raise UnknownTopic(f"topic {name!r} is not in the archive any more")
            ids[name] = str(found.topic_id)
        places = self._lookup.places(partitions, ids)
        return self._lookup.manifests(places, dict.fromkeys(places, -1))

    def _offset_at(self, tp: TopicPartition, manifest: Manifest, wanted: int) -> OffsetAndTimestamp:
        if wanted == EARLIEST:
            return OffsetAndTimestamp(manifest.start, -1)
        end = self._end(tp, manifest)
        if wanted == LATEST:
            return OffsetAndTimestamp(end, -1)
        with store_errors(self._archived.url()):
            found = find_time(self._archived.storage, self._place(tp), manifest, wanted)
        if found is None or found.offset >= end:
            return OffsetAndTimestamp(-1, -1)
        if found.is_marker:
            self._markers.add((tp, found.offset))
        return OffsetAndTimestamp(found.offset, -1)

    def _end(self, tp: TopicPartition, manifest: Manifest) -> int:
        """The archive's end, or for readers of committed records the last offset before which all is decided."""
        if self._options.client.isolation_level != "read_committed":
            return manifest.end
        with store_errors(self._archived.url()):
            return stable_end(self._archived.storage, self._place(tp), manifest)

    def _place(self, tp: TopicPartition) -> PartitionPlace:
        topic = self._archived.get(tp.topic)
        assert topic is not None, "its manifest was read"
        return topic.place(tp.partition)


class ManifestSizes:
    """Bytes per offset by the manifests; in place of SizeEstimator."""

    def __init__(self, manifests: Callable[[Collection[TopicPartition]], Manifests]) -> None:
        self._manifests = manifests

    def estimate(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        backlog = [OffsetRange(tp, offset, end[tp]) for tp, offset in start.items() if end.get(tp, 0) > offset]
        manifests = self._manifests({one.tp for one in backlog})
        return bytes_per_offset([one for one in backlog if manifests[one.tp].segments], manifests)


def stable_end(storage: Storage, place: PartitionPlace, manifest: Manifest) -> int:
    """The offset before which every archived record is known to be committed or aborted. Raises OSError, BrokenAux.

    It is where the oldest transaction begins that was open at the archive's end. Where a segment does not say that,
    because its copier did not know or a truncation has cut it, the end of the segment before counts.
    """
    if not any(segment.transactional for segment in manifest.segments):
        return manifest.end
    for segment in reversed(manifest.segments):
        footer, producers = read_section(storage, place, segment, PRODUCER_SNAPSHOT)
        if footer.end == segment.end and producers:
            first = first_open_offset(producers)
            return max(segment.end if first is None else first, manifest.start)
    return manifest.start


class FoundTime(NamedTuple):
    """The first record, or marker of a transaction, of a time or later."""

    offset: int
    is_marker: bool


def find_time(storage: Storage, place: PartitionPlace, manifest: Manifest, ms: int) -> FoundTime | None:
    """Where a partition reaches a time, as a broker finds it. Raises OSError, CorruptBatch."""
    for segment in manifest.segments:
        if segment.max_timestamp < ms:
            continue
        positions = [mark.position for mark in segment.marks[1:] if mark.max_timestamp < ms]
        read = functools.partial(storage.read_range, place.segment(segment.name))
        for batches in whole_batches(read, positions[-1] if positions else 0, segment.size):
            for position, header in walk_batches(batches):
                if header.next_offset <= manifest.start or header.max_timestamp < ms:
                    continue
                if header.base_offset >= segment.end:
                    break
                if header.is_control:
                    return FoundTime(header.base_offset, True)
                batch = batches[position : position + header.size]
                columns = decode_columns(batch, fields={"offset", "timestamp"}, low=manifest.start, high=segment.end)
                for offset, time_ms in zip(columns.offset.to_pylist(), columns.timestamp.to_pylist(), strict=True):
                    if time_ms >= ms:
                        return FoundTime(offset, False)
    return None
