"""Committed offsets of consumer groups, translated for the target (KIP-382, KIP-545).

They become checkpoints in the topic `<source alias>.checkpoints.internal`, in MirrorMaker's format, so that Kafka's
`RemoteClusterUtils.translateOffsets` reads them. And they are committed for groups that have no members on the target,
so that a consumer that moves there continues where it was. Offsets only move forward there: the group may have read on
the target since.
"""

from __future__ import annotations

import logging
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.client.admin import Admin
from broker.client.committed_offsets import GroupOffsets
from broker.errors import BrokerError, ErrorCode
from broker.mirror.mirror_settings import MirrorSettings
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger("pykafka.mirror")

_TYPES: Final = ("consumer", "")
"""Protocol types of groups that commit offsets of records; "" is a group that never had members."""
_VERSION: Final = 0
_INT32, _OFFSETS, _LENGTH = struct.Struct(">i"), struct.Struct(">hqq"), struct.Struct(">h")

Translate = Callable[[TopicPartition, int], tuple[TopicPartition, int] | None]
"""(source partition, source offset) → (target partition, target offset); None for a partition that is not mirrored."""


def checkpoints_topic(source_alias: str) -> str:
    """MirrorMaker's name."""
    return f"{source_alias}.checkpoints.internal"


class Checkpoint(NamedTuple):
    """The offsets of a group in one partition; `tp` is of the target."""

    group: str
    tp: TopicPartition
    upstream_offset: int
    offset: int
    metadata: str

    def key(self) -> bytes:
        return _text(self.group) + _text(self.tp.topic) + _INT32.pack(self.tp.partition)

    def value(self) -> bytes:
        return _OFFSETS.pack(_VERSION, self.upstream_offset, self.offset) + _text(self.metadata)


def _text(text: str) -> bytes:
    content = text.encode()
    return _LENGTH.pack(len(content)) + content


class GroupSync:
    """Reads the groups of the source, and commits for those of the target. Errors about one group are logged."""

    def __init__(self, source: Admin, target: Admin, settings: MirrorSettings) -> None:
        self._source = source
        self._target = target
        self._filter = settings.group_filter
        self._known: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self._done: dict[tuple[str, TopicPartition], Checkpoint] = {}
        """What was committed on the target, or is behind what the group has there."""

    def checkpoints(self, translate: Translate) -> list[Checkpoint]:
        """The checkpoints that have changed since the last call."""
        changed: list[Checkpoint] = []
        for listing in self._source.list_groups():
            group = listing.group_id
            if listing.protocol_type not in _TYPES or not self._filter.accepts(group):
                continue
            try:
                committed = GroupOffsets(self._source.cluster, group).committed()
            except BrokerError as error:
                logger.warning("group %s is not mirrored: %s", group, error)
                continue
            for tp, offset in committed.items():
                translated = translate(tp, offset.offset)
                if translated is None:
                    continue
                checkpoint = Checkpoint(group, translated[0], offset.offset, translated[1], offset.metadata)
                if self._known.get((group, checkpoint.tp)) != checkpoint:
                    self._known[group, checkpoint.tp] = checkpoint
                    changed.append(checkpoint)
        return changed

    def commit(self) -> int:
        """Commit the checkpoints of groups without members on the target; the number of groups that have moved."""
        groups: dict[str, dict[TopicPartition, Checkpoint]] = defaultdict(dict)
        for (group, tp), checkpoint in self._known.items():
            if self._done.get((group, tp)) != checkpoint:
                groups[group][tp] = checkpoint
        moved = 0
        for group, checkpoints in groups.items():
            try:
                moved += self._commit_group(group, checkpoints)
            except BrokerError as error:
                if error.code is not ErrorCode.unknown_member_id:  # it has just got members
                    logger.warning("the offsets of group %s are not committed: %s", group, error)
        return moved

    def _commit_group(self, group: str, checkpoints: Mapping[TopicPartition, Checkpoint]) -> bool:
        """Whether an offset was committed."""
        if self._target.describe_group(group).active:
            return False
        offsets = GroupOffsets(self._target.cluster, group)
        there = offsets.fetch()
        by_metadata: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, checkpoint in checkpoints.items():
            if checkpoint.offset > there.get(tp, -1):
                by_metadata[checkpoint.metadata][tp] = checkpoint.offset
        for metadata, wanted in by_metadata.items():
            offsets.commit(wanted, metadata)
        self._done |= {(group, tp): checkpoint for tp, checkpoint in checkpoints.items()}
        return bool(by_metadata)
