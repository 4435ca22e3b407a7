"""Which requests of a version that is not served get a line in the log: each client's at most once a minute.

Asked by the router. A client repeats such a request as fast as it can connect, and can make up names, so both the lines
and the memory have a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 60.0
MOST: Final = 1000
"""Different ones in that time; of more there is no line."""

Key = tuple[str | None, int, int]
"""Client id, API key, version."""


class UnservedVersions:
    """Remembers what was logged in the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._logged: dict[Key, float] = {}
        """Key → when, the oldest first."""

    def __len__(self) -> int:
        return len(self._logged)

    def is_due(self, key: Key) -> bool:
        """Whether this one is to be logged now; then the same is not for a minute."""
        now = self._clock()
        while self._logged and now - next(iter(self._logged.values())) >= EVERY_S:
            del self._logged[next(iter(self._logged))]
        if key in self._logged or len(self._logged) >= MOST:
            return False
        self._logged[key] = now
        return True
