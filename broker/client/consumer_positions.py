"""The partitions of a consumer and its position in each; Kafka's `SubscriptionState`.

Called by consumer.py from the thread that polls. A position is the offset of the next record `poll` returns.
A partition without a position gets the group's committed offset, or one by `auto.offset.reset`. Each position has the
leader epoch in which the log reached it, so that a truncation of the log is noticed (KIP-320).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from broker.client.cluster import Cluster
from broker.client.committed_offsets import CommittedOffset, GroupOffsets
from broker.client.partition_offsets import EARLIEST, LATEST, NO_EPOCH, Position, find_truncations, list_offsets
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class Positions:
    def __init__(self, cluster: Cluster, committed: GroupOffsets | None) -> None:
        """`committed`: the group's offsets; None without a group."""
        self._cluster = cluster
        self._committed = committed
        self._reset = cluster.settings.auto_offset_reset
        self._positions: dict[TopicPartition, Position | None] = {}
        self._to_reset: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._positions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those that were assigned before keep their position."""
        self._positions = {tp: self._positions.get(tp) for tp in partitions}
        self._to_reset = {tp: timestamp for tp, timestamp in self._to_reset.items() if tp in self._positions}
        self._paused &= self._positions.keys()

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these partitions too. Their old positions are forgotten."""
        partitions = list(partitions)
        self.remove(partitions)
        self._positions |= dict.fromkeys(partitions)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._positions.pop(tp, None)
            self._to_reset.pop(tp, None)
            self._paused.discard(tp)

    def get(self, tp: TopicPartition) -> int | None:
        """The position; None before `resolve`. Raises PykafkaError for a partition that is not assigned."""
        self._check(tp)
        position = self._positions[tp]
        return None if position is None else position.offset

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Continue at `offset`, which the log reached in `leader_epoch`."""
        self._check(tp)
        self._positions[tp] = Position(offset, leader_epoch)
        self._to_reset.pop(tp, None)

    def seek_to(self, tp: TopicPartition, timestamp: int) -> None:
        """Continue at EARLIEST, LATEST, or the first record since `timestamp` (ms); `resolve` looks it up."""
        self._check(tp)
        self._positions[tp] = None
        self._to_reset[tp] = timestamp

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep the partitions, but do not fetch."""
        for tp in partitions:
            self._check(tp)
            self._paused.add(tp)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def paused_at(self, tp: TopicPartition, offset: int) -> bool:
        return tp in self._paused and self.get(tp) == offset

    def known(self) -> dict[TopicPartition, Position]:
        """Every position that is known; the leader epoch is -1 if that is unknown."""
        return {tp: position for tp, position in self._positions.items() if position is not None}

    def fetchable(self) -> dict[TopicPartition, Position]:
        """The known positions of the partitions that are not paused."""
        return {tp: position for tp, position in self.known().items() if tp not in self._paused}

    def resolve(self) -> None:
        """Look up the position of every partition that has none.

        Raises BrokerError `offset_out_of_range` when there is no committed offset and `auto.offset.reset` is none,
        and what the requests raise.
        """
        missing = [tp for tp, position in self._positions.items() if position is None]
        if not missing:
            return
        to_ask = [tp for tp in missing if tp not in self._to_reset]
        committed: Mapping[TopicPartition, CommittedOffset] = {}
        if to_ask and self._committed is not None:
            committed = self._committed.committed(to_ask)
        for tp, place in committed.items():
            self.seek(tp, place.offset, place.leader_epoch)
        for tp in to_ask:
            if tp not in committed:
                self._reset_by_policy(tp, f"{tp} has no committed offset")
        if self._to_reset:
            for tp, found in list_offsets(self._cluster, self._to_reset).items():
                offset = found.offset if found.offset >= 0 else list_offsets(self._cluster, {tp: LATEST})[tp].offset
                self._positions[tp] = Position(offset, self._cluster.leader_epoch(tp))
            self._to_reset.clear()

    def reached(self, tp: TopicPartition, position: Position) -> None:
        """The log ends at this position, so it reaches it in the leader epoch given."""
        if tp in self._positions and self.get(tp) == position.offset:
            self._positions[tp] = position

    def check_truncation(self, doubtful: Iterable[TopicPartition]) -> None:
        """Ask new leaders whether their logs still have what was read; if not, continue where they differ (KIP-320).

        Raises BrokerError `offset_out_of_range` when `auto.offset.reset` is none.
        """
        positions = self.fetchable()
        asked = {tp: positions[tp] for tp in doubtful if tp in positions}
        lost = find_truncations(self._cluster, asked)
        for tp in asked:
            if tp not in lost:
                self._positions[tp] = asked[tp]._replace(leader_epoch=self._cluster.leader_epoch(tp))
            elif self._reset == "none" or lost[tp].end < 0:
                self._reset_by_policy(tp, str(lost[tp]))
            else:
                logger.warning("%s; continuing there", lost[tp])
                self.seek(tp, lost[tp].end)

    def out_of_range(self, tp: TopicPartition, error: BrokerError) -> None:
        """The log does not have the position: reset it by `auto.offset.reset`, or raise."""
        if tp in self._positions:
            self._reset_by_policy(tp, error.message)

    def _reset_by_policy(self, tp: TopicPartition, reason: str) -> None:
        if self._reset == "none":
            raise BrokerError(ErrorCode.offset_out_of_range, f"{reason}, and auto.offset.reset=none")
        self.seek_to(tp, EARLIEST if self._reset == "earliest" else LATEST)

    def _check(self, tp: TopicPartition) -> None:
        if tp not in self._positions:
            raise PykafkaError(f"{tp} is not assigned to this consumer")
