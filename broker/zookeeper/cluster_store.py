"""The metadata of the cluster for the event loop: calls to the store, notifications, and what its watches see."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.operations import NotAccepted, ZooKeeperError
from broker.zookeeper.registry import Registry

_CALL_THREADS = 4

T = TypeVar("T")


class ClusterStore:
    """`await store(store.registry.topics)` makes a blocking call of the registry from the event loop, in a thread.

    The threads are used for nothing else: while ZooKeeper is away, waiting calls must not block fsyncs.
    """

    def __init__(self, registry: Registry, changes: ChangeNotifications) -> None:
        self.registry = registry
        self.changes = changes
        self._threads = ThreadPoolExecutor(_CALL_THREADS, "metadata-calls")

    async def __call__(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Raises BrokerError `request_timed_out` when the store is away, `invalid_request` if it never takes this,
        `unknown_server_error` when it refused."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, functools.partial(call, *arguments, **named)
            )
        except ConnectionFailed as error:
            raise BrokerError(ErrorCode.request_timed_out, str(error)) from error
        except NotAccepted as error:
            raise BrokerError(ErrorCode.invalid_request, str(error)) from error
        except ZooKeeperError as error:
            raise BrokerError(ErrorCode.unknown_server_error, str(error)) from error

    def close(self) -> None:
        """Take no more calls; do not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def on_loop(note: Callable[..., None]) -> Callable[..., None]:
    """A callback for watches that calls `note` on the event loop, which is the running one."""
    loop = asyncio.get_running_loop()

    def callback(*change: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(note, *change)

    return callback
