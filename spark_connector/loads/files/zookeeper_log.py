"""The commit log of loads whose offsets are kept in ZooKeeper.

    /consumers/<group>/offsets/<topic>/<partition>   the offset store
    /consumers/<group>/loads/<number>                one node per load: its record, without the file list
    /consumers/<group>/loads/<number>/published      exists when the data is in place
    /consumers/<group>/loads/<number>/pending        exists while the offsets of a large load are not all stored

A commit is one multi-op transaction: it sets every offset under a version check and creates the load's node. Too many
offsets for one transaction (about 6,000 partitions) are stored afterwards, in pieces, before the load counts as
published; the node, which is created first, names them. A large record is compressed. A record that is still too large
for ZooKeeper is refused before anything is written. Imported only when it is used, because it needs kazoo.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection

from broker.protocol.topic_partition import TopicPartition
from broker.stored_names import number_named
from spark_connector.loads.commit import CommitLog, Newest
from spark_connector.loads.record import LoadError, LoadRecord, LoadTooLarge
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError, check_group
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

_MOST_INFLATED = 64 << 20  # bytes of a record; a node has at most 1 MB, which JSON compresses to a tenth or so
_PLAIN = 25  # records below 1/25 of the request limit stay text, for people to read


class ZooKeeperCommitLog(CommitLog):
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
            raise OffsetStoreError(f"{self._node(sequences[-1])} was deleted a moment ago; try again")
        return Newest(sequences[-1], record.load_id, self._store.get(self._mark(sequences[-1])) is not None)

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        """Those of the newest load come from its record, as long as they are not all stored."""
        numbers = self.sequences()
        is_pending = numbers and self._store.get(self._mark(numbers[-1], "pending")) is not None
        pending = self.record(numbers[-1]) if is_pending else None
        return {**self._store.read(self._group), **(pending.committed if pending else {})}

    def record(self, sequence: int) -> LoadRecord | None:
        data = self._store.get(self._node(sequence))
        if data is None:
            return None
        where = self._node(sequence)
        record = LoadRecord.from_bytes(data if data.startswith(b"{") else _inflated(data, where), where)
        record.refuse_unless(self._group, sequence, where)
        return record

    def sequences(self) -> list[int]:
        numbers = map(number_named, self._store.children(self._root))
        return sorted(number for number in numbers if number is not None)

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
        """Also raises OffsetStoreError when the connection breaks and the outcome cannot be found out."""
        self.check(record)
        number = record.id.sequence
        create = {self._node(number): self._packed(record)}
        # Checking the offsets alone is not enough for a process that has slept: a rewind may have set them back, and
        # pruning may have freed its number. But pruning removes the number before it first.
        before = [self._node(number - 1)] if number > 1 else []
        fits = self._store.fits(self._group, record.committed, record.expected, create)
        if not fits:
            create[self._mark(number, "pending")] = b""
        commit: Callable[..., None] = self._store.commit if fits else self._store.commit_ahead
        try:
            given = {} if not fits else {"topic_ids": record.topic_ids}
            commit(self._group, record.committed, expected=record.expected, create=create, must_exist=before, **given)
        except (OffsetConflict, OffsetStoreError):
            # Committed after all: by a repair in another process, or the answer was lost.
            if not self.has(record):
                raise

    def mark_published(self, record: LoadRecord) -> None:
        number = record.id.sequence
        if self._store.get(self._mark(number, "pending")) is not None:
            self._store.follow(self._group, record.committed, self._mark(number, "pending"), record.topic_ids)
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

    def _packed(self, record: LoadRecord) -> bytes:
        data = record.without_files().to_bytes()
        if len(data) <= self._store.max_request // _PLAIN:
            return data
        return zlib.compress(json.dumps(record.without_files().to_json(), separators=(",", ":")).encode())


def _inflated(data: bytes, where: str) -> bytes:
    """Raises LoadError for what is not compressed, or grows as no record does."""
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(data, _MOST_INFLATED)
    except zlib.error as error:
        raise LoadError(f"{where} is not the record of a load: {error}") from error
    if not inflate.eof:
        raise LoadError(f"{where} is not the record of a load: it is cut off, or grows beyond {_MOST_INFLATED:,} bytes")
    return plain
