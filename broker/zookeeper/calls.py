"""Blocking calls to ZooKeeper made from the event loop, each in a thread.

Used by topics.py and broker_configs.py for what the registry and the change notifications do. The threads are of their
own: while ZooKeeper is away those that fsync must not all be taken by those that wait for it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.zookeeper.operations import ZooKeeperError

__all__ = ["ZooKeeperCalls"]

THREADS = 4

T = TypeVar("T")


class ZooKeeperCalls:
    """`await calls(function, …)`."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "zookeeper-calls")

    async def __call__(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What `call` gives. Raises BrokerError, whatever is wrong with ZooKeeper: `request_timed_out` when it is
        away, `unknown_server_error` when it refused."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, functools.partial(call, *arguments, **named)
            )
        except ConnectionFailed as error:
            raise BrokerError(ErrorCode.request_timed_out, f"ZooKeeper is away: {error}") from error
        except ZooKeeperError as error:
            raise BrokerError(ErrorCode.unknown_server_error, str(error)) from error

    def close(self) -> None:
        """Take no more calls; those that run are left to themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
