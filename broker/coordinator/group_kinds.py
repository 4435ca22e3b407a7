"""Makes the groups of each kind, new ones and those that are read back from the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator import modern_group_records, share_group_records
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group import Group, Now
from broker.coordinator.group_offsets import GroupOffsets, PendingCommits
from broker.coordinator.group_records import OffsetKey, decode_group, decode_key, decode_offset
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.modern_group import ModernGroup
from broker.coordinator.modern_group_messages import Topics
from broker.coordinator.modern_group_records import ConsumerGroupKey
from broker.coordinator.record_format import MalformedRecord
from broker.coordinator.record_store import RecordRun
from broker.coordinator.share_group_records import ShareGroupKey
from broker.coordinator.share_group_state import ShareGroup
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class GroupKinds:
    """Makes groups with the topics and the settings of the moment."""

    def __init__(
        self, config: GroupSettings, topics: Callable[[], Topics], config_of: Callable[[str], GroupConfig]
    ) -> None:
        """`config_of` gives the settings in force of a group."""
        self._config = config
        self._config_of = config_of
        self.topics = topics

    def classic(self, group_id: str, wall_ms: int, offsets: GroupOffsets | None = None) -> ClassicGroup:
        return ClassicGroup(group_id, self._config, wall_ms, offsets)

    def consumer(self, group_id: str, offsets: GroupOffsets | None = None) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._config, self.topics(), partial(self._config_of, group_id), offsets)

    def share(self, group_id: str, offsets: GroupOffsets | None = None) -> ShareGroup:
        return ShareGroup(group_id, self._config, offsets, partial(self._config_of, group_id), self.topics())


class GroupReplay:
    """Groups read back from the records of one partition: `add` every run of the log in order, then `build`.

    Only the last record of a key counts, so all others are dropped before any record is decoded. Records of a
    transaction count once its marker is read. `build` may take seconds and belongs in a worker thread.
    """

    def __init__(self, kinds: GroupKinds) -> None:
        self._kinds = kinds
        self._latest: dict[bytes, bytes | None] = {}
        self._pending: PendingCommits[bytes, bytes] = PendingCommits()
        # Group id → the records of its membership, if the coordinator assigns.
        self._modern: dict[str, list[tuple[ConsumerGroupKey | ShareGroupKey, bytes]]] = {}
        self.groups: dict[str, Group] = {}
        self.open_transactions: dict[int, set[str]] = {}
        """Producer id → the groups in whose offsets its open transaction takes part."""

    def add(self, run: RecordRun) -> None:
        """Add the next records of the log, or the next marker."""
        if run.commit is not None:
            self._latest.update(self._pending.end(run.producer_id, commit=run.commit))
        elif run.producer_id < 0:
            self._latest.update(run.records)
            if self._pending:
                for key, value in run.records:
                    if value is None:
                        self._pending.remove(key)
                    else:
                        self._pending.supersede(key)
        else:
            for key, value in run.records:
                if value is not None:
                    self._pending.add(run.producer_id, key, value)

    def build(self, now: Now) -> None:
        """Fill `groups` and `open_transactions`. A record that cannot be read is skipped with a warning."""
        for key, value in self._latest.items():
            if value is not None:
                self._apply(key, value, now, -1)
        for producer_id, key, value in self._pending.items():
            self._apply(key, value, now, producer_id)
        for group_id, records in self._modern.items():
            self._build_modern(group_id, records)

    def _apply(self, raw_key: bytes, value: bytes, now: Now, producer_id: int) -> None:
        try:
            key = decode_key(raw_key)
            if key is None:
                modern = modern_group_records.decode_key(raw_key) or share_group_records.decode_key(raw_key)
                if modern is not None:
                    self._modern.setdefault(modern.group_id, []).append((modern, value))
                return
            group = self.groups.get(key.group_id)
            if group is None:
                group = self.groups[key.group_id] = self._kinds.classic(key.group_id, now.wall_ms)
            if not isinstance(key, OffsetKey):
                if isinstance(group, ClassicGroup):
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

    def _build_modern(self, group_id: str, records: list[tuple[ConsumerGroupKey | ShareGroupKey, bytes]]) -> None:
        """A consumer or share group in the place of the group that was made for its offsets.

        A generation of a classic group beside it is newer: only an earlier release stores one without deleting these
        records, which it skips.
        """
        before, is_share = self.groups.get(group_id), isinstance(records[0][0], ShareGroupKey)
        make = self._kinds.share if is_share else self._kinds.consumer
        group: ModernGroup = make(group_id, None if before is None else before.offsets)
        for key, value in sorted(records):
            try:
                group.replay(key, value)
            except MalformedRecord as error:
                logger.warning("Skipped a record of group %s that cannot be read: %s", group_id, error)
        if isinstance(before, ClassicGroup) and before.has_records:
            encode_key = group.membership.records.encode_key
            before.obsolete_keys = [encode_key(key) for key, _ in sorted(records, reverse=True)]
        else:
            self.groups[group_id] = group
