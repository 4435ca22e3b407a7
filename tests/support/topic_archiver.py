"""Archives closed segments of a running broker's topic, as a leader does, for the tests of those who read archives.

It takes the segments from the broker's disk and puts their objects and manifest entries into the store, and knows
nothing of what the broker does with them. Small marks, so that small segments have several.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from broker.archive.aux_file import AuxFile, encode_aux
from broker.archive.layout import TOPIC_FILE, new_object_name, topic_directory, topic_id_text
from broker.archive.manifest import Add, ArchivedSegment, EpochStart, Manifest, Mark, Start
from broker.archive.manifest_store import ManifestStore
from broker.client.cluster import Cluster
from broker.log.producer_snapshot import encode_snapshot
from broker.log.producer_state import ProducerStates
from broker.records.batch import walk_batches
from broker.records.control import read_end_marker
from broker.records.crc32c import crc32c
from broker.storage.storage import Storage


@dataclass
class TopicArchiver:
    """The archive of one topic of the broker whose logs are below `data`."""

    storage: Storage
    data: Path
    bootstrap: str
    topic: str
    mark_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        with Cluster(self.bootstrap) as cluster:
            cluster_id, topic = cluster.cluster_id(), cluster.topic(self.topic)
        assert cluster_id is not None
        assert topic.topic_id is not None
        self.cluster_id: str = cluster_id
        self.topic_id: uuid.UUID = topic.topic_id
        self.partitions = list(topic.partitions)
        self.write_topic(topic_directory(self.cluster_id, self.topic_id))

    def write_topic(self, directory: str) -> None:
        """What the controller keeps beside an archive."""
        known = {"topic_id": topic_id_text(self.topic_id), "name": self.topic, "partitions": len(self.partitions)}
        with self.storage.open_output(f"{directory}/{TOPIC_FILE}") as file:
            file.write(json.dumps({"version": 1, **known, "config": {}}).encode())

    def store(self, partition: int = 0) -> ManifestStore:
        return ManifestStore(self.storage, self.cluster_id, self.topic_id, partition)

    def archive(self, most: int | None = None) -> None:
        """Put the closed segments of all partitions that are not there yet; at most so many of each."""
        for partition in self.partitions:
            self.archive_partition(partition, most)

    def archive_partition(self, partition: int = 0, most: int | None = None) -> Manifest:
        store = self.store(partition)
        manifest = store.load()
        closed = sorted(self.data.glob(f"**/{self.topic}-{partition}/*.log"))[:-1]
        due = [path for path in closed if int(path.stem) >= manifest.end]
        for path in due[:most]:
            segment = self._put(store, path)
            manifest = store.commit(manifest, max(manifest.epoch, segment.epochs[-1].epoch), 0, Add(segment))
        return manifest

    def begin_at(self, start: int, partition: int = 0) -> Manifest:
        """What retention does."""
        store = self.store(partition)
        manifest = store.load()
        return store.commit(manifest, manifest.epoch, 0, Start(start))

    def remove_objects(self, partition: int = 0, *, below: int) -> None:
        """Delete the objects that end at or before an offset, which the manifest does not name any more."""
        named = {segment.name for segment in self.store(partition).load().segments}
        directory = self.store(partition).place.directory
        for name in self.storage.names(directory):
            stem = name.rpartition(".")[0]
            if stem and stem not in named and int(stem[:20]) < below:
                self.storage.remove(f"{directory}/{name}")

    def _put(self, store: ManifestStore, path: Path) -> ArchivedSegment:
        data = path.read_bytes()
        headers = list(walk_batches(data))
        marks: list[Mark] = []
        epochs: list[EpochStart] = []
        newest = -1
        for position, header in headers:
            if not marks or position - marks[-1].position >= self.mark_bytes:
                marks.append(Mark(header.base_offset, position, newest))
            if not epochs or epochs[-1].epoch != header.leader_epoch:
                epochs.append(EpochStart(header.leader_epoch, header.base_offset))
            newest = max(newest, header.max_timestamp)
        name = new_object_name(int(path.stem), epochs[-1].epoch)
        end = headers[-1][1].next_offset
        index = path.with_suffix(".txnindex")
        aborted, producers = index.read_bytes() if index.exists() else b"", _producers_before(path.parent, end)
        crc = crc32c(data)
        aux = encode_aux(
            AuxFile(int(path.stem), end, len(data), crc, bytes(3000), b"", aborted, producers, tuple(epochs))
        )
        for suffix_path, content in ((store.place.aux(name), aux), (store.place.segment(name), data)):
            with self.storage.open_output(suffix_path) as file:
                file.write(content)
        return ArchivedSegment(
            name=name,
            base=int(path.stem),
            end=end,
            size=len(data),
            aux_size=len(aux),
            crc=crc,
            min_timestamp=min(header.base_timestamp for _, header in headers),
            max_timestamp=newest,
            epochs=tuple(epochs),
            marks=tuple(marks),
            aborted=bool(aborted),
            transactional=any(header.is_transactional for _, header in headers),
        )


def _producers_before(directory: Path, end: int) -> bytes:
    """The snapshot of the producers after all records before `end`."""
    states = ProducerStates()
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for position, header in walk_batches(data):
            marker = read_end_marker(data, position, header) if header.is_control else None
            if header.base_offset >= end or header.producer_id < 0:
                continue
            if marker is None:
                states.record(header, header.base_offset, 0)
            else:
                states.end_transaction(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, 0)
    return encode_snapshot(states)
