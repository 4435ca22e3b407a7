"""A store of archives that can be taken away, or hang."""

from __future__ import annotations

import threading
from typing import Any

from broker.storage.storage import open_storage


class AwayStore:
    """A Storage that can be taken away."""

    def __init__(self, url: str) -> None:
        self.storage = open_storage(url)
        self.is_away = False
        self.answers = threading.Event()
        """Clear: every call hangs until it is set."""
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.storage, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.answers.wait()
            if self.is_away:
                raise ConnectionError("cannot reach https://me:hunter2@store/")
            return found(*arguments, **named)

        return call
