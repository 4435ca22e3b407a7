"""Connections that are made in the background, so that a host that has vanished holds up nobody else.

A connect to such a host takes `socket.connection.setup.timeout.ms`, since no packet says that it will not come about.
Called by node_pool.py, which tries one broker while another one keeps it waiting (KIP-601), and by the loops of
sender.py and leader_fetches.py, which serve other brokers meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final

from broker.client.broker_connection import BrokerConnection
from broker.errors import PykafkaError

Connect = Callable[[], BrokerConnection]
Dialled = Future[BrokerConnection]

PATIENCE_S: Final = 1.0
"""So long a connection is waited for alone. One to a live broker takes milliseconds."""


def dial(connect: Connect) -> Dialled:
    """Call `connect()` in a thread of its own."""
    dialled: Dialled = Future()

    def run() -> None:
        try:
            dialled.set_result(connect())
        except BaseException as error:  # whoever asks for the result gets it
            dialled.set_exception(error)

    try:
        threading.Thread(target=run, name="connecting", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and begins no more threads
        run()
    return dialled


def abandon(dialled: Dialled) -> None:
    """Close the connection as soon as it is made: nobody wants it any more."""
    dialled.add_done_callback(lambda done: None if done.exception() else done.result().close())


class Connecting:
    """Connections that a loop wants by key, without waiting for those that take long. Not thread-safe."""

    def __init__(self) -> None:
        self._dialled: dict[object, Dialled] = {}

    def get(self, key: object, connect: Connect) -> BrokerConnection | None:
        """The connection, or None while it is being made: ask again. Raises what `connect` raises.

        The first call for a key waits for `PATIENCE_S`."""
        dialled = self._dialled.get(key)
        if dialled is None:
            dialled = self._dialled[key] = dial(connect)
            wait([dialled], PATIENCE_S)
        if not dialled.done():
            return None
        del self._dialled[key]
        return dialled.result()

    def close(self) -> None:
        for dialled in self._dialled.values():
            abandon(dialled)
        self._dialled.clear()


def first_connected(
    connects: Iterable[Connect], passes: tuple[type[PykafkaError], ...], late: Callable[[Dialled], object]
) -> tuple[BrokerConnection | None, list[BaseException]]:
    """The first connection that is made, with the errors of those before it; None if all failed.

    The next one is begun when one has failed, or has taken `PATIENCE_S`. `late` gets those that still go on.
    Raises errors that are not of the classes `passes`."""
    failures: list[BaseException] = []
    under_way: set[Dialled] = set()
    left = deque(connects)
    while left or under_way:
        if left:
            under_way.add(dial(left.popleft()))
        done, under_way = wait(under_way, PATIENCE_S if left else None, FIRST_COMPLETED)
        for dialled in done:
            error = dialled.exception()
            if isinstance(error, passes):
                failures.append(error)
                continue
            for other in (done | under_way) - {dialled}:
                late(other)
            return dialled.result(), failures
    return None, failures
