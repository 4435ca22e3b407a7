"""An answer that comes later, and goes to its connection in the same step of the event loop in which it is complete.

A handler returns one instead of an awaitable where every turn of the event loop counts: Fetch and Produce with
acks=all. No task waits. Whoever completes the answer sends it, as in Kafka's `DelayedOperation`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

Receiver = Callable[[Any, Exception | None], None]
"""Called with the answer, or with an error. It must not raise: an unrelated request may have completed the answer."""


class DelayedAnswer(Generic[T]):
    """Has one receiver. It can also be awaited instead."""

    __slots__ = ("_is_over", "_on_cancel", "_outcome", "_receiver")

    def __init__(self, on_cancel: Callable[[], object] | None = None) -> None:
        """`on_cancel` is called if nobody wants the answer any more before it is complete."""
        self._on_cancel = on_cancel
        self._receiver: Receiver | None = None
        self._outcome: tuple[T | None, Exception | None] | None = None
        self._is_over = False

    @classmethod
    def done(cls, answer: T) -> DelayedAnswer[T]:
        """One that is complete."""
        made = cls()
        made.complete(answer)
        return made

    @classmethod
    def of(cls, work: Awaitable[T]) -> DelayedAnswer[T]:
        """What `work` returns or raises, which a task of its own waits for. It is cancelled with the answer."""
        task = asyncio.ensure_future(work)
        made = cls(task.cancel)

        def end(task: asyncio.Future[T]) -> None:
            if task.cancelled():
                made.cancel()
            elif (error := task.exception()) is None:
                made.complete(task.result())
            else:
                made.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        task.add_done_callback(end)
        return made

    def complete(self, answer: T) -> None:
        """Hand the answer to the receiver. Ignored when the answer is complete, failed or cancelled already."""
        self._end(answer, None)

    def fail(self, error: Exception) -> None:
        """Hand the error to the receiver. Ignored as in `complete`."""
        self._end(None, error)

    def _end(self, answer: T | None, error: Exception | None) -> None:
        if self._is_over:
            return
        receiver = self._finish()
        if receiver is None:
            self._outcome = answer, error
        else:
            receiver(answer, error)

    def _finish(self) -> Receiver | None:
        """Forget what leads back here, so that no garbage is left for the collector."""
        receiver, self._receiver, self._on_cancel, self._is_over = self._receiver, None, None, True
        return receiver

    @property
    def is_over(self) -> bool:
        """Whether it is complete, failed or cancelled."""
        return self._is_over

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if not self._is_over:
            on_cancel = self._on_cancel
            self._finish()
            if on_cancel is not None:
                on_cancel()

    def receive(self, receiver: Receiver) -> None:
        """Let `receiver` have the answer, at once if it is there."""
        if self._outcome is not None:
            receiver(*self._outcome)
        elif not self._is_over:
            self._receiver = receiver

    def then(self, convert: Callable[[T], U]) -> DelayedAnswer[U]:
        """The answer after a conversion, which may raise."""
        converted: DelayedAnswer[U] = DelayedAnswer(self.cancel)

        def receive(answer: T, error: Exception | None) -> None:
            if error is None:
                try:
                    result = convert(answer)
                except Exception as failure:
                    error = failure
                else:
                    converted.complete(result)
                    return
            converted.fail(error)

        self.receive(receive)
        return converted

    def __await__(self) -> Generator[Any, None, T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def receive(answer: T, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)

        self.receive(receive)
        try:
            return (yield from future)
        finally:
            self.cancel()
