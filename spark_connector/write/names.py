"""What an exactly-once write is called at the brokers: transactional ids and groups.

`sink` is the id of a streaming query, which a checkpoint keeps over restarts, or what `named_sink` makes of
`txnAppId`, or an id made for one batch write.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["ATTEMPT_IDS", "SinkNames", "named_sink"]

ATTEMPT_IDS: Final = 8
"""How many transactional ids the attempts at one task partition of a query use in turn."""

_NUMBERS: Final = re.compile(r"(\d+)(-\d+)?", re.ASCII)


def named_sink(name: str, query: str | None) -> str:
    """The sink of a write that `txnAppId` names, within a query or without one. No query's id holds a `~`."""
    return f"{query or ''}~{name}"


class SinkNames(NamedTuple):
    """The names of one sink; all begin with the option `transactionalIdPrefix`."""

    prefix: str
    sink: str

    @property
    def of_driver(self) -> str:
        """The transactional id by which the driver records decisions; who holds its latest epoch is the driver."""
        return f"{self.prefix}-{self.sink}"

    def of_partition(self, partition: int) -> str:
        """The id whose epochs number the attempts at a task partition. It never has a transaction, so that whoever
        takes a number hurts nobody."""
        return f"{self.prefix}-{self.sink}-{partition}"

    def of_attempt(self, partition: int, number: int) -> str:
        """The id that attempt `number` of a query writes under: another than those of the last attempts."""
        return f"{self.of_partition(partition)}-{number % ATTEMPT_IDS}"

    def of_task(self, partition: int, task_id: int) -> str:
        """The id of one task of a batch write; Spark gives no number twice."""
        return f"{self.of_partition(partition)}-{task_id}"

    def task_of(self, transactional_id: str) -> int | None:
        """The partition that an id of a task belongs to; None for any other id."""
        rest = transactional_id.removeprefix(f"{self.prefix}-{self.sink}-")
        match = _NUMBERS.fullmatch(rest) if rest != transactional_id else None
        return int(match[1]) if match else None

    @property
    def group_of_done(self) -> str:
        """The group whose committed offset is the batch whose transactions are all committed."""
        return f"{self.prefix}-{self.sink}.done"

    def group(self, part: int = 0) -> str:
        """The group whose committed offset is the batch decided last, and where parts of it beyond the first are."""
        return f"{self.prefix}-{self.sink}" + (f".{part}" if part else "")
