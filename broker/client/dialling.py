"""Connections that are made in the background, so that a host that has vanished holds up nobody else.

A connect to such a host takes `socket.connection.setup.timeout.ms`, since no packet says that it will not come about.
Called by node_pool.py, which tries one broker while another one keeps it waiting (as KIP-601 wants it, and as browsers
do with addresses), and by the loops of sender.py and leader_fetches.py, which serve other brokers meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
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

    def __bool__(self) -> bool:
        return bool(self._dialled)

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
    connects: Sequence[Connect], passes: tuple[type[PykafkaError], ...], *, late: Callable[[Dialled], None]
) -> tuple[BrokerConnection | None, list[PykafkaError]]:
    """The first connection that is made, with the errors of those before it; None if all failed.

    The next one is begun when one has failed, or has taken `PATIENCE_S`. `late` is called with those that still go on.
    Raises errors that are not of the classes `passes`."""
    failures: list[PykafkaError] = []
    under_way: set[Dialled] = set()
    left = iter(connects)
    try:
        while True:
            connect = next(left, None)
            if connect is not None:
                under_way.add(dial(connect))
            elif not under_way:
                return None, failures
            done, under_way = wait(under_way, None if connect is None else PATIENCE_S, FIRST_COMPLETED)
            for dialled in done:
                found = _result(dialled, passes, failures)
                if found is not None:
                    _all_late(done - {dialled}, late)
                    return found, failures
    finally:
        _all_late(under_way, late)


def _all_late(dialled: Iterable[Dialled], late: Callable[[Dialled], None]) -> None:
    for one in dialled:
        late(one)


def _result(
    dialled: Dialled, passes: tuple[type[PykafkaError], ...], failures: list[PykafkaError]
) -> BrokerConnection | None:
    try:
        return dialled.result()
    except passes as error:
        failures.append(error)
        return None
