"""What an append returns, and an append whose write may run in another thread.

Made by log.py, completed by the partition: here and now on a fast disk, with the write in a thread on a slow one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

PendingAppend: TypeAlias = Generator[Callable[[], None], None, T]
"""An append that yields its blocking step, the write. Run the step in any thread, then resume the generator in the
owner's thread, or throw the step's error into it. The generator returns the append's result."""


def complete(pending: PendingAppend[T]) -> T:
    """Do a pending append, with its blocking step, in this thread. Returns or raises what the append does."""
    try:
        step = next(pending)
        while True:
            try:
                step()
            except Exception as error:
                step = pending.throw(error)
            else:
                step = next(pending)
    except StopIteration as end:
        result: T = end.value
        return result


class AppendResult(NamedTuple):
    """Where an append landed.

    `log_append_time` (ms) is -1 unless the broker stamps batches. `duplicate` means that nothing was written, because
    the log has the batch at these offsets already. The time is then that of its newest record, as in Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool
