"""Who shows or uses lag: what `LagListener` (listener.py) calls. Implemented by the other files of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spark_connector.progress.lag import QueryLag

__all__ = ["Callback", "Publisher"]


class Publisher(Protocol):
    """Called on Spark's event thread, one event at a time: it should not keep that thread for long."""

    def progressed(self, lag: QueryLag) -> None:
        """A batch has ended."""
        ...

    def ended(self, run_id: str) -> None:
        """That run of a query is over, with or without an error; maybe nothing was heard of it before."""
        ...


class Callback:
    """A plain function as a publisher."""

    def __init__(self, function: Callable[[QueryLag], object]) -> None:
        self._function = function

    def progressed(self, lag: QueryLag) -> None:
        self._function(lag)

    def ended(self, run_id: str) -> None:
        """Functions are not told."""
