"""The commit log of loads whose offsets are kept in ZooKeeper.

    /consumers/<group>/offsets/<topic>/<partition>   the offset store
    /consumers/<group>/loads/<number>                one node per load: its record, without the file list
    /consumers/<group>/loads/<number>/published      there once the data is in place

A commit is one multi-op transaction: every offset is set under a version check and the load's node is created. Opened
by load.py only when asked for, for it needs kazoo.
"""

from __future__ import annotations

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.state import Newest
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError, check_group
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

__all__ = ["ZooKeeperLoadLog"]


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
        return self._store.read(self._group)

    def record(self, sequence: int) -> LoadRecord | None:
        data = self._store.get(self._node(sequence))
        return None if data is None else LoadRecord.from_bytes(data, self._node(sequence))

    def sequences(self) -> list[int]:
        return sorted(int(name) for name in self._store.children(self._root) if name.isdigit())

    def records(self) -> list[LoadRecord]:
        return [record for record in map(self.record, self.sequences()) if record is not None]

    def append(self, record: LoadRecord) -> None:
        """Also raises OffsetStoreError when the connection breaks and it cannot be found out what became of it."""
        number = record.id.sequence
        node = self._node(number)
        data = record.without_files().to_bytes()
        # The offsets alone would not tell: a rewind may have brought them back to what a sleeper remembers, and
        # pruning may have freed its number. The number before it went first.
        before = [self._node(number - 1)] if number > 1 else []
        try:
            self._store.commit(
                self._group, record.committed, expected=record.expected, create={node: data}, must_exist=before
            )
        except (OffsetConflict, OffsetStoreError):
            # Ours after all: a repair elsewhere has committed it, or the answer was lost on the way.
            winner = self.record(record.id.sequence)
            if winner is None or winner.load_id != record.load_id:
                raise

    def mark_published(self, record: LoadRecord) -> None:
        self._store.ensure(self._mark(record.id.sequence))

    def prune(self, keep: int) -> list[int]:
        pruned = self.sequences()[: -max(keep, 1)]
        for number in pruned:
            self._store.delete(self._node(number))
        return pruned

    def close(self) -> None:
        self._store.close()

    def _node(self, sequence: int) -> str:
        return f"{self._root}/{sequence:010d}"

    def _mark(self, sequence: int) -> str:
        return f"{self._node(sequence)}/published"
