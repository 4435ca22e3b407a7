"""Groups brought back from the records of one `__consumer_offsets` partition.

Called by the partition's shard when it is loaded. Only the last record of a key counts, so all others are dropped
before anything is decoded; records of transactions count once the marker of their producer is read. A record that
cannot be read is skipped with a warning: it must not take the other groups of the partition away.
"""

from __future__ import annotations

import logging
import sys

from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_effects import Now
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.pending_commits import PendingCommits
from broker.coordinator.record_store import RecordRun
from broker.coordinator.records import MalformedRecord, OffsetKey, decode_group, decode_key, decode_offset
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupReplay"]

logger = logging.getLogger(__name__)


class GroupReplay:
    """`add` every run of the log in order, then `build` (which may take seconds: in a worker thread)."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._latest: dict[bytes, bytes | None] = {}
        self._pending: PendingCommits[bytes, bytes] = PendingCommits()
        self.groups: dict[str, ClassicGroup] = {}
        self.open_transactions: dict[int, set[str]] = {}
        """Producer id → the groups whose offsets its open transaction moves."""

    def add(self, run: RecordRun) -> None:
        """The next records, or the next marker, of the log."""
        if run.commit is not None:
            self._latest.update(self._pending.end(run.producer_id, commit=run.commit))
        elif run.producer_id < 0:
            self._latest.update(run.records)
            if self._pending:
                for key, value in run.records:
                    if value is None:
                        self._pending.remove(key)
                    else:
                        self._pending.overtake(key)
        else:
            for key, value in run.records:
                if value is not None:
                    self._pending.add(run.producer_id, key, value)

    def build(self, now: Now) -> None:
        """Make `groups` and `open_transactions` of what was added."""
        for key, value in self._latest.items():
            if value is not None:
                self._apply(key, value, now, -1)
        for producer_id, key, value in self._pending.items():
            self._apply(key, value, now, producer_id)

    def _apply(self, raw_key: bytes, value: bytes, now: Now, producer_id: int) -> None:
        try:
            key = decode_key(raw_key)
            if key is None:
                return
            group = self.groups.get(key.group_id)
            if group is None:
                group = self.groups[key.group_id] = ClassicGroup(key.group_id, self._config, now.wall_ms)
            if not isinstance(key, OffsetKey):
                group.install(decode_group(value), now)
                return
            partition = TopicPartition(sys.intern(key.topic), key.partition)
            if producer_id < 0:
                group.offsets.apply(partition, decode_offset(value))
            else:
                group.offsets.add_pending(producer_id, partition, decode_offset(value))
                self.open_transactions.setdefault(producer_id, set()).add(key.group_id)
        except MalformedRecord as error:
            logger.warning("Skipped a record of the offsets topic that cannot be read: %s", error)
