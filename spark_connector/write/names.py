"""What an exactly-once write is called at the brokers: transactional ids and groups.

`sink` is the id of a streaming query, which a checkpoint keeps over restarts, or one made for a batch write.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SinkNames"]


class SinkNames(NamedTuple):
    """The names of one sink; all begin with the option `transactionalIdPrefix`."""

    prefix: str
    sink: str

    @property
    def of_driver(self) -> str:
        """The transactional id by which the driver records decisions; who holds its latest epoch is the driver."""
        return f"{self.prefix}-{self.sink}"

    def of_task(self, partition: int) -> str:
        """The transactional id of a task partition's rows."""
        return f"{self.prefix}-{self.sink}-{partition}"

    def task_of(self, transactional_id: str) -> int | None:
        """The partition that `of_task` made this id of; None for any other id."""
        number = transactional_id.removeprefix(f"{self.prefix}-{self.sink}-")
        return int(number) if number != transactional_id and number.isascii() and number.isdecimal() else None

    @property
    def group_of_done(self) -> str:
        """The group whose committed offset is the batch whose transactions are all committed."""
        return f"{self.prefix}-{self.sink}.done"

    def group(self, part: int = 0) -> str:
        """The group whose committed offset is the batch decided last, and where parts of it beyond the first are."""
        return f"{self.prefix}-{self.sink}" + (f".{part}" if part else "")
