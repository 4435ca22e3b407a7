"""The commit log of loads whose offsets are kept in ZooKeeper.

    /consumers/<group>/offsets/<topic>/<partition>   the offset store
    /consumers/<group>/loads/<number>                one node per load: its record, without the file list
    /consumers/<group>/loads/<number>/published      there once the data is in place
    /consumers/<group>/loads/<number>/pending        there while the offsets of a large load are still to be stored

A commit is one multi-op transaction: every offset is set under a version check and the load's node is created. Where
the offsets are too many for that (some 6,000 partitions), the transaction creates the node alone, which says what the
offsets are; they are stored, piece by piece, before the load counts as published. A large record is compressed; one
that ZooKeeper could not take all the same is refused before anything is written. Opened by load.py only when asked for,
for it needs kazoo.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadRecord, LoadTooLarge
from spark_connector.loads.state import Newest
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError, check_group
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

__all__ = ["ZooKeeperLoadLog"]

_PLAIN = 25  # a record this many times smaller than a request may be is left as text, for people


class ZooKeeperLoadLog:
    """Loads of one group under /consumers/<group>/loads. Owns the store it is given and closes it."""

    kind = "zookeeper"

    def __init__(self, store: ZooKeeperOffsetStore, group: str) -> None:
        self._store = store
        self._group = group
        self._root = f"/consumers/{check_group(group)}/loads"

    def newest(self) -> Newest:
        sequences = self.sequences()
        if not sequences:
            return Newest()
        record = self.record(sequences[-1])
        if record is None:
            raise OffsetStoreError(f"{self._node(sequences[-1])} has been deleted a moment ago; try again")
        return Newest(sequences[-1], record.load_id, self._store.get(self._mark(sequences[-1])) is not None)

    def offsets(self) -> dict[TopicPartition, int]:
        pending = self._pending()
        offsets = self._store.read(self._group)
        return offsets if pending is None else {**offsets, **pending.committed}

    def record(self, sequence: int) -> LoadRecord | None:
        data = self._store.get(self._node(sequence))
        if data is None:
            return None
        plain = data if data.startswith(b"{") else zlib.decompress(data)
        return LoadRecord.from_bytes(plain, self._node(sequence))

    def sequences(self) -> list[int]:
        return sorted(int(name) for name in self._store.children(self._root) if name.isdigit())

    def records(self) -> list[LoadRecord]:
        return [record for record in map(self.record, self.sequences()) if record is not None]

    def check(self, record: LoadRecord) -> None:
        counted = record.completed({range.tp: range.size for range in record.ranges}, {})
        size = len(self._packed(counted))
        if size > self._store.max_request:
            raise LoadTooLarge(
                f"load {record.load_id}: {len(record.ranges):,} partitions make a record of {size:,} bytes, "
                f"compressed, and ZooKeeper takes {self._store.max_request:,}: load fewer topics in one group, or keep "
                "the offsets in files"
            )

    def append(self, record: LoadRecord) -> None:
        """Also raises OffsetStoreError when the connection breaks and it cannot be found out what became of it."""
        self.check(record)
        number = record.id.sequence
        create = {self._node(number): self._packed(record)}
        # The offsets alone would not tell: a rewind may have brought them back to what a sleeper remembers, and
        # pruning may have freed its number. The number before it went first.
        before = [self._node(number - 1)] if number > 1 else []
        fits = self._store.fits(self._group, record.committed, record.expected, create)
        if not fits:
            create[self._mark(number, "pending")] = b""
        commit: Callable[..., None] = self._store.commit if fits else self._store.commit_ahead
        try:
            commit(self._group, record.committed, expected=record.expected, create=create, must_exist=before)
        except (OffsetConflict, OffsetStoreError):
            # Ours after all: a repair elsewhere has committed it, or the answer was lost on the way.
            winner = self.record(record.id.sequence)
            if winner is None or winner.load_id != record.load_id:
                raise

    def mark_published(self, record: LoadRecord) -> None:
        number = record.id.sequence
        if self._store.get(self._mark(number, "pending")) is not None:
            self._store.follow(self._group, record.committed, self._mark(number, "pending"))
        self._store.ensure(self._mark(number))

    def prune(self, keep: int) -> list[int]:
        pruned = self.sequences()[: -max(keep, 1)]
        for number in pruned:
            self._store.delete(self._node(number))
        return pruned

    def close(self) -> None:
        self._store.close()

    def _node(self, sequence: int) -> str:
        return f"{self._root}/{sequence:010d}"

    def _mark(self, sequence: int, name: str = "published") -> str:
        return f"{self._node(sequence)}/{name}"

    def _pending(self) -> LoadRecord | None:
        """The newest load, while its offsets are not all stored."""
        numbers = self.sequences()
        if not numbers or self._store.get(self._mark(numbers[-1], "pending")) is None:
            return None
        return self.record(numbers[-1])

    def _packed(self, record: LoadRecord) -> bytes:
        data = record.without_files().to_bytes()
        if len(data) <= self._store.max_request // _PLAIN:
            return data
        return zlib.compress(json.dumps(record.without_files().to_json(), separators=(",", ":")).encode())
