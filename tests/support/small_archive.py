"""A small archive of one partition, made of real segments by the real copier, for tests of what reads archives."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

from broker.archive.copier import Copier, SegmentFiles, Throttle
from broker.archive.layout import topic_directory
from broker.archive.manifest import Add, ArchivedSegment, Change, Manifest
from broker.archive.manifest_store import ManifestStore
from broker.records.batch import patch_base_offset
from broker.storage.storage import Storage
from tests.support.batches import batch

CLUSTER, TOPIC_ID = "cluster-1", uuid.UUID(int=5)
UNLIMITED = 1 << 40


class SmallArchive:
    """Partition 0 of the topic `flights`. Each segment has ten records, in batches of two."""

    def __init__(self, storage: Storage, scratch: Path) -> None:
        self.storage = storage
        self.store = ManifestStore(storage, CLUSTER, TOPIC_ID, 0)
        self.place = self.store.place
        self.manifest = Manifest()
        self.copier = Copier(storage, Throttle(lambda: UNLIMITED, threading.Event()))
        self._scratch = scratch
        storage.create(f"{topic_directory(CLUSTER, TOPIC_ID)}/topic.json", b'{"version": 1, "name": "flights"}')

    def copy(self, base: int, epoch: int = 0) -> ArchivedSegment:
        """Put the objects of a segment, which no manifest names yet. Its values tell offset and epoch."""
        data = b""
        for offset in range(base, base + 10, 2):
            one = bytearray(batch(*(b"value %d of epoch %d" % (each, epoch) for each in (offset, offset + 1))))
            patch_base_offset(one, 0, offset, epoch)
            data += one
        path = self._scratch / f"{base:020}.log"
        path.write_bytes(data)
        files = SegmentFiles(path, len(data), base, base + 10, 100, lambda: b"")
        return self.copier.copy(files, self.place, epoch)

    def commit(self, change: Change, epoch: int = 0) -> None:
        self.manifest = self.store.commit(self.manifest, epoch, 0, change)

    def add(self, epoch: int = 0) -> ArchivedSegment:
        """Archive the next segment."""
        segment = self.copy(self.manifest.end, epoch)
        self.commit(Add(segment), epoch)
        return segment

    def replace(self, path: str, data: bytes) -> None:
        self.storage.remove(path)
        self.storage.create(path, data)
