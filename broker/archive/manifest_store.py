"""Reads and writes the manifest of one partition in the store.

The owner of a leader (copier.py), restores and readers call it. Every call blocks on the store and belongs in a thread;
an instance keeps no state, so several threads and processes may use the same partition.

The promises:

- **One lineage.** `commit` makes the entry with the number after those that the caller has seen, or raises CommitLost.
  So every entry was written by someone who knew all before it.
- **A lost answer is no lost commit.** When the store fails or says that the entry exists, it is read: if it is the
  caller's own, the commit was done. After an OSError it is not known whether the put is still under way; the caller
  commits the same change again, or reads the manifest.
- **Readers need no lock.** A snapshot at every hundredth number holds all before it. What is older than the last two
  snapshots is deleted; a reader whose entries vanish reads the list again.

A writer may sleep through more than two snapshots. Its number is then deleted, and the store lets it make the entry
anew, where nobody reads it. Therefore `commit` lists the entries afterwards: as long as no later snapshot is there,
none of this number was deleted.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor

from broker.archive.layout import PartitionPlace, number_of
from broker.archive.manifest import SNAPSHOT_EVERY, Add, BrokenManifest, Change, Entry, Manifest, from_snapshot
from broker.archive.manifest_json import decode_entry, encode_entry
from broker.errors import PykafkaError
from broker.storage.storage import Storage, TooLarge
from broker.storage.url_secrets import text_without_secrets

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 8
_LISTS = 5
"""Times that a reader lists again because an entry is gone. Each time a hundred entries were written in between."""


class CommitLost(PykafkaError):
    """Another entry has the number, or may have it. `manifest` is what the store says now.

    If its epoch is above the caller's, the caller leads no longer. Else an earlier put of its own may have come late.
    """

    def __init__(self, manifest: Manifest, reason: str) -> None:
        super().__init__(reason)
        self.manifest = manifest


class ManifestStore:
    def __init__(self, storage: Storage, cluster_id: str, topic_id: uuid.UUID, partition: int) -> None:
        self.storage = storage
        self.place = PartitionPlace(cluster_id, topic_id, partition)

    def load(self) -> Manifest:
        """The manifest as the store has it; empty if there is none. Raises BrokenManifest, OSError."""
        return self._read(Manifest())

    def refresh(self, manifest: Manifest) -> Manifest:
        """The same, reading only what is newer than `manifest`, which an earlier call gave."""
        return self._read(manifest)

    def commit(self, manifest: Manifest, epoch: int, broker: int, change: Change) -> Manifest:
        """Make `change` the next entry after `manifest`, and give the manifest with it.

        Writes the snapshot that is due before it. Raises CommitLost, OSError (perhaps committed: see above), and
        BrokenManifest for a change that does not fit what is archived.
        """
        if epoch < manifest.epoch:
            raise CommitLost(manifest, f"leader epoch {epoch} is over: {self.place.manifest} is at {manifest.epoch}")
        if manifest.snapshot_is_due:
            manifest = self._put(manifest, Entry(manifest.next_number, epoch, broker, manifest.snapshot()))
            self._delete_before(manifest.next_number - 1 - SNAPSHOT_EVERY)
        return self._put(manifest, Entry(manifest.next_number, epoch, broker, change))

    def _put(self, manifest: Manifest, entry: Entry) -> Manifest:
        after = manifest.apply(entry)
        path = self.place.entry(entry.number)
        try:
            self.storage.create(path, encode_entry(entry))
        except OSError as error:
            if not self._is_own(entry):
                if not isinstance(error, FileExistsError) and not self.storage.exists(path):
                    raise
                raise self._lost(manifest, f"another writer has entry {entry.number} of {path}") from error
        numbers = self._numbers()
        if _last_snapshot(numbers) > entry.number:
            return self._slept(manifest, entry)
        before = entry.number - 1
        if before >= 0 and before not in numbers and not self.storage.exists(self.place.entry(before)):
            raise OSError(f"{self.place.manifest} has entry {before} no more: is the archive mounted?")
        return after

    def _is_own(self, entry: Entry) -> bool:
        try:
            return self._entry(entry.number) == entry
        except (FileNotFoundError, BrokenManifest):
            return False

    def _lost(self, manifest: Manifest, reason: str) -> CommitLost:
        return CommitLost(self._read(manifest), reason)

    def _slept(self, manifest: Manifest, entry: Entry) -> Manifest:
        """After our put there is a later snapshot: it has our change, or nobody will ever read our entry."""
        now = self.load()
        if isinstance(entry.change, Add) and entry.change.segment.name in {segment.name for segment in now.segments}:
            return now
        raise CommitLost(now, f"entry {entry.number} of {self.place.manifest} is older than the last snapshot")

    def _read(self, known: Manifest) -> Manifest:
        for _ in range(_LISTS):
            numbers = self._numbers()
            with contextlib.suppress(FileNotFoundError):
                return self._fold(known, numbers)
        raise BrokenManifest(f"{self.place.manifest} has a gap: entries that must be there cannot be read")

    def _fold(self, known: Manifest, numbers: list[int]) -> Manifest:
        """Entries are read by their numbers: a list that is made while others write may lack some in the middle."""
        newest = numbers[-1] if numbers else -1
        if newest < known.next_number - 1:
            raise BrokenManifest(
                f"{self.place.manifest} had entry {known.next_number - 1}, and has none after {newest}"
            )
        if newest < known.next_number:
            return known
        snapshot = _last_snapshot(numbers)
        first = snapshot if snapshot >= known.next_number else known.next_number
        entries = self._entries(range(first, numbers[-1] + 1))
        if first == snapshot and first > 0:
            manifest, entries = from_snapshot(entries[0]), entries[1:]
        else:
            manifest = known
        for entry in entries:
            manifest = manifest.apply(entry)
        return manifest

    def _entries(self, numbers: range) -> list[Entry]:
        if len(numbers) == 1:
            return [self._entry(numbers[0])]
        with ThreadPoolExecutor(min(_READ_AT_ONCE, len(numbers))) as pool:
            return list(pool.map(self._entry, numbers))

    def _entry(self, number: int) -> Entry:
        path = self.place.entry(number)
        try:
            entry = decode_entry(self.storage.read(path))
        except (BrokenManifest, TooLarge) as error:
            raise BrokenManifest(f"{path}: {error}") from None
        if entry.number != number:
            raise BrokenManifest(f"{path} says that it is entry {entry.number}")
        return entry

    def _numbers(self) -> list[int]:
        numbers = (number_of(name) for name in self.storage.names(self.place.manifest))
        return sorted(number for number in numbers if number is not None)

    def _delete_before(self, end: int) -> None:
        """Delete the entries below number `end`. What fails is deleted after a later snapshot."""
        try:
            for number in self._numbers():
                if number < end:
                    self.storage.remove(self.place.entry(number))
        except OSError as error:
            reason = text_without_secrets(str(error))
            logger.warning("old entries of %s are not deleted yet: %s", self.place.manifest, reason)


def _last_snapshot(numbers: list[int]) -> int:
    """The number of the newest snapshot; 0, where there is none, if there is none."""
    return numbers[-1] // SNAPSHOT_EVERY * SNAPSHOT_EVERY if numbers else 0
