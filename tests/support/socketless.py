"""An event loop whose time is the test's, and a transport without a socket, for a connection in any order of events."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker.protocol.api_keys import ApiKey

HIGH_WATER = 20_000
"""A transport that buffers more bytes pauses its protocol."""


class ManualLoop(asyncio.SelectorEventLoop):
    """Its time goes on when a test says so."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.call_soon(self.stop)
            self.run_forever()


class Wire(asyncio.Transport):
    """A transport without a socket. What is written waits until the peer takes it."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__()
        self.loop = loop
        self.connection: Any
        self.reading, self.has_reader = True, True
        self.closing = self.closed_by_broker = self.lost = self.paused = False
        self.peer_takes = True
        self.buffered = bytearray()
        self.written = bytearray()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        sock = SimpleNamespace(setsockopt=lambda *_: None, getsockopt=lambda level, option, size: bytes(size))
        return sock if name == "socket" else ("10.0.0.1", 1234)

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = self.has_reader = True

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.lost or (self.closing and not self.buffered):
            return
        self.written += data
        if not self.peer_takes:
            self.buffered += data
        if len(self.buffered) > HIGH_WATER and not self.paused:
            self.paused = True
            self.connection.pause_writing()

    def take(self, size: int) -> None:
        """The peer takes some of what waits."""
        del self.buffered[:size]
        if self.paused and len(self.buffered) < HIGH_WATER // 4:
            self.paused = False
            self.connection.resume_writing()
        if self.closing and not self.buffered:
            self.loop.call_soon(self._lose, None)

    def close(self) -> None:
        if not self.closing:
            self.closing = self.closed_by_broker = True
            if not self.buffered:
                self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.closed_by_broker = self.closed_by_broker or not self.closing
        self.drop(None)

    def drop(self, error: Exception | None) -> None:
        """It ends at once, as after a reset."""
        self.closing = True
        self.buffered.clear()
        self.loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.connection.connection_lost(error)


class StubLogin:
    """A login of one message."""

    raw, lifetime_ms, max_request_bytes, failure_delay_s = False, 0, 200_000, 0.0

    def __init__(self) -> None:
        self.done = self.failed = False
        self.principal: str | None = None
        self.failure = "the password is wrong"

    def admits(self, api_key: int) -> bool:
        return not self.failed and (self.done or api_key == ApiKey.SASL_AUTHENTICATE)


class OtherConnection:
    """It takes memory, and may exceed the limit if it is the first to want more than there is."""

    held = 0

    def granted(self, size: int) -> None:
        self.held += size
