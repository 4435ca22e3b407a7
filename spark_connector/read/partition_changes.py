"""What became of a stream's partitions since its last offset, and what was lost by it: pure, but for the log.

Called by micro_batches.py between the look at the brokers and the end of the next batch. With
`failOnDataLoss=true` the first loss raises DataLoss; else each is logged with numbers, and the sum per topic goes into
the stream's offset, where progress reports show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import report_data_loss
from spark_connector.options.range_limit import format_partitions
from spark_connector.options.subscription_options import read_selection
from spark_connector.read.offset_reader import Ends
from spark_connector.read.offsets import Offsets, StreamOffset

__all__ = ["Losses", "PartitionChanges", "compare"]

Partitions = frozenset[TopicPartition]


@dataclass(frozen=True)
class PartitionChanges:
    """`created`: new in the cluster; `selected`: new in the options; `shrunk`: they end before what was read."""

    gone: Partitions
    recreated: Partitions
    created: Partitions
    selected: Partitions
    shrunk: Partitions


def compare(begin: StreamOffset, ends: Ends) -> PartitionChanges:
    """What `ends` has that `begin` has not, and the other way round.

    A partition that the options of the run before would have read too must have been created since; any other was
    there, perhaps for years, and is new to the query only. Older checkpoints do not tell: there all are created.
    """
    before, now = begin.offsets, ends.offsets
    anew = {topic for topic, id_ in begin.topic_ids.items() if ends.topic_ids.get(topic, id_) != id_}
    new = {tp for tp in now if tp not in before and tp.topic not in anew}
    selection = read_selection(begin.selects) if new else None
    selected = {tp for tp in new if selection is not None and not selection.selects(tp)}
    return PartitionChanges(
        gone=frozenset(tp for tp in before if tp not in now and tp.topic not in anew),
        recreated=frozenset(tp for tp in now if tp.topic in anew),
        created=frozenset(new - selected),
        selected=frozenset(selected),
        shrunk=frozenset(tp for tp in now if tp.topic not in anew and now[tp] < before.get(tp, 0)),
    )


class Losses:
    """Offsets that a stream passes over, per topic."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._by_topic: Counter[str] = Counter()

    def added_to(self, skipped: Mapping[str, int]) -> dict[str, int]:
        """The sums with these losses."""
        return dict(Counter(skipped) + self._by_topic)

    def report(self, condition: str, reason: str, lost: Mapping[TopicPartition, int]) -> None:
        """Raise DataLoss, or log it and count the `lost` offsets of each partition."""
        numbers = ", ".join(f"{tp}: {count}" for tp, count in sorted(lost.items()) if count)
        skipped = f" Offsets skipped: {numbers}." if numbers and not self._fail else ""
        report_data_loss(condition, reason + skipped, fail=self._fail)
        for tp, count in lost.items():
            self._by_topic[tp.topic] += count

    def report_changes(self, changes: PartitionChanges, before: Offsets, now: Offsets, last_seen: Offsets) -> None:
        """What `changes` took away. Of a topic that is gone, only what `last_seen` had of it can be counted."""
        unread = {tp: max(last_seen.get(tp, 0) - offset, 0) for tp, offset in before.items()}
        if changes.gone:
            names = format_partitions(set(changes.gone))
            reason = f"Partitions {names} have been deleted, or the options do not select them any more."
            self.report("PARTITIONS_DELETED", reason, {tp: unread[tp] for tp in changes.gone})
        if changes.recreated:
            topics = {tp.topic for tp in changes.recreated}
            names = ", ".join(sorted(topics))
            reason = f"Topic {names} was deleted and created anew; the new one would be read from its beginning."
            self.report("TOPIC_RECREATED", reason, {tp: n for tp, n in unread.items() if tp.topic in topics})
        for tp in sorted(changes.shrunk):
            reason = (
                f"Partition {tp} offset was changed from {before[tp]} to {now[tp]}. This could either be a user error "
                "that the start offset is set too high and this is the first batch, or the topic was truncated."
            )
            self.report("PARTITION_OFFSET_CHANGED", reason, {})

    def report_late_start(self, tp: TopicPartition, offset: int) -> None:
        """A partition that was created since the last look has lost its beginning already."""
        reason = f"Added partition {tp} starts from {offset} instead of 0."
        self.report("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", reason, {tp: offset})

    def report_lost_head(self, tp: TopicPartition, start: int, earliest: int) -> None:
        """Records were deleted before they were read."""
        reason = (
            f"Could not read records in offset [{start}, {earliest}) for topic partition {tp} (topic '{tp.topic}', "
            f"partition {tp.partition}): {earliest} is the first offset there is."
        )
        self.report("COULD_NOT_READ_OFFSET_RANGE", reason, {tp: earliest - start})
