"""What waits at a partition: fetches and appends, as futures and events that a test can await."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from broker.errors import BrokerError
from broker.replica.delayed_fetch import DelayedFetch, Watched
from broker.replica.partition import Partition


class WaitingFetch(DelayedFetch):
    """A delayed fetch; `ended` is set at its end."""

    def __init__(
        self,
        partitions: Iterable[Watched],
        missing_bytes: int = 1,
        seconds: float = 60,
        *,
        committed: bool = False,
        replica: bool = False,
    ) -> None:
        self.ended = asyncio.Event()
        super().__init__(partitions, missing_bytes, seconds, self.ended.set, committed=committed, replica=replica)

    async def wait(self) -> None:
        await asyncio.wait_for(self.ended.wait(), 60)


def committed(partition: Partition, offset: int) -> asyncio.Future[None] | None:
    """A future that is done when the record at `offset` is committed; None if it is already."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(error: BrokerError | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future if partition.watch_commit(offset, end) else None
