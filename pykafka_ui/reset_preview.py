"""What a reset of offsets will do: by partition what is read again, what is skipped, and what nobody knows. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from broker.protocol.topic_partition import TopicPartition
from broker.tools.output import counted

HEAD = ("partition", "from", "to", "read again ≤", "skipped ≤", "left to read ≤")


@dataclasses.dataclass(frozen=True)
class Move:
    """From `before` (None without a committed offset) to `to`, in a log from `start` to `end`. All are offsets."""

    tp: TopicPartition
    before: int | None
    to: int
    start: int
    end: int

    @property
    def again(self) -> int | None:
        """Records that were read and are read again; None if nobody knows what was read. What is not there any more,
        or not yet, is no record."""
        return None if self.before is None else max(min(self.before, self.end) - self.to, 0)

    @property
    def skipped(self) -> int | None:
        """Records that are in the log and are never read; None if nobody knows what was read."""
        return None if self.before is None else max(self.to - max(self.before, self.start), 0)

    @property
    def cells(self) -> Sequence[str]:
        counts = ("not known" if one is None else f"{one:,}" for one in (self.again, self.skipped, self.end - self.to))
        return (str(self.tp), "none" if self.before is None else _placed(self), f"{self.to:,}", *counts)


def _placed(move: Move) -> str:
    before = move.before or 0
    where = " (beyond the end)" if before > move.end else " (no longer in the log)" if before < move.start else ""
    return f"{before:,}{where}"


def summary(moves: Sequence[Move]) -> str:
    """One or two sentences."""
    again, skipped = (
        sum(filter(None, counts)) for counts in ([one.again for one in moves], [one.skipped for one in moves])
    )
    found = [f"at most {counted(again, 'record')} will be read again"] if again else []
    found += [f"at most {counted(skipped, 'record')} will never be read"] if skipped else []
    unknown = sum(one.before is None for one in moves)
    if unknown:
        found.append(f"of {counted(unknown, 'partition')} without an offset it is not known what was read")
    text = ", and ".join(found) if found else "nothing is read again, and nothing is skipped"
    return text[0].upper() + text[1:] + "."
