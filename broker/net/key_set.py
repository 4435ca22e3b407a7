"""The keys of an identity provider, kept by the broker: fetched in a thread, renewed from time to time and on demand.

A listener has one KeySet. A failed fetch leaves the keys from before in use and is tried again after a while, twice as
long each time. A login with a key that is not known asks for a fetch, too; however many ask, there is at most one
fetch a second, so that clients cannot make a broker flood its identity provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from broker.errors import ConnectionFailed, PykafkaError

logger = logging.getLogger(__name__)

ON_DEMAND_S: Final = 1.0
"""The least time from the begin of a fetch to that of one on demand."""


class Keys(Protocol):
    """What a fetch brings."""

    def claims(self, token: str) -> Mapping[str, Any]:
        """Raises TokenRefused."""
        ...


class FetchSchedule:
    """When the next fetch is due. Pure: the time (monotonic, in seconds) is an argument."""

    def __init__(self, refresh_s: float, backoff_s: float, backoff_max_s: float) -> None:
        self._refresh_s = max(refresh_s, ON_DEMAND_S)
        self._backoff_s = backoff_s
        self._backoff_max_s = max(backoff_max_s, backoff_s)
        self._next_backoff_s = backoff_s
        self._begun = 0.0
        self.due = 0.0

    def begun(self, now: float) -> None:
        self._begun = now

    def succeeded(self, now: float) -> None:
        self._next_backoff_s = self._backoff_s
        self.due = now + self._refresh_s

    def failed(self, now: float) -> None:
        self.due = now + self._next_backoff_s
        self._next_backoff_s = min(2 * self._next_backoff_s, self._backoff_max_s)

    def wanted(self, now: float) -> None:
        """Somebody waits for a fetch that begins from now on."""
        self.due = min(self.due, max(now, self._begun + ON_DEMAND_S))


class KeySet:
    """The keys. Everything but the fetch itself runs on the event loop."""

    def __init__(self, name: str, fetch: Callable[[], Keys], schedule: FetchSchedule) -> None:
        """`name` says in the log whose keys they are. `fetch` blocks, and raises PykafkaError and ValueError."""
        self._name = name
        self._fetch = fetch
        self._schedule = schedule
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._fetching = self._failing = self._closed = False
        self._waiting: asyncio.Future[bool] | None = None
        """Of those who wait for the next fetch to begin and end: whether it succeeded."""
        self._first = asyncio.Event()
        self._current: Keys | None = None

    def start(self) -> None:
        """Begin to fetch."""
        self._loop = asyncio.get_running_loop()
        self._set_timer()

    def close(self) -> None:
        """Fetch no more; whoever waits is released."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.set_result(False)
            self._waiting = None

    async def current(self) -> Keys:
        """The keys; waits until the first fetch has succeeded."""
        if self._current is None:
            self._schedule.wanted(self._loop.time())
            self._set_timer()
            await self._first.wait()
        assert self._current is not None
        return self._current

    async def renewed(self) -> Keys:
        """The keys after a fetch that begins from now on. Raises ConnectionFailed if that fails."""
        if self._waiting is None and not self._closed:
            self._waiting = self._loop.create_future()
            self._schedule.wanted(self._loop.time())
            self._set_timer()
        if self._waiting is None or not await asyncio.shield(self._waiting):
            raise ConnectionFailed(f"{self._name}: the keys of the identity provider cannot be fetched")
        return await self.current()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._fetching and not self._closed:
            self._timer = self._loop.call_at(self._schedule.due, self._begin)

    def _begin(self) -> None:
        self._fetching = True
        self._schedule.begun(self._loop.time())
        waiting, self._waiting = self._waiting, None
        # A thread of its own, which ends with the process: a provider that is silent must not delay a shutdown.
        threading.Thread(target=self._run, args=(waiting,), name="oauthbearer-keys", daemon=True).start()

    def _run(self, waiting: asyncio.Future[bool] | None) -> None:
        found: Keys | Exception
        try:
            found = self._fetch()
        except Exception as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, found, waiting)

    def _end(self, found: Keys | Exception, waiting: asyncio.Future[bool] | None) -> None:
        self._fetching = False
        now = self._loop.time()
        if isinstance(found, Exception):
            self._schedule.failed(now)
            self._report(found)
        else:
            self._schedule.succeeded(now)
            self._current = found
            self._first.set()
            if self._failing:
                logger.info("%s: the keys of the identity provider were fetched again", self._name)
            self._failing = False
        if waiting is not None and not waiting.done():
            waiting.set_result(not isinstance(found, Exception))
        if self._waiting is not None:
            self._schedule.wanted(now)
        self._set_timer()

    def _report(self, error: Exception) -> None:
        if not self._failing:
            state = "logins wait for them" if self._current is None else "those from before stay"
            expected = isinstance(error, PykafkaError | ValueError)
            logger.error(
                "%s: the keys of the identity provider cannot be fetched, %s: %s",
                self._name,
                state,
                error,
                exc_info=None if expected else error,
            )
        self._failing = True
