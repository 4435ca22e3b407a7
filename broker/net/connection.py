"""One client connection: frames in, responses out in the order of their requests.

Made by the listener; its frames come from a FrameReader. Requests are handled one after another, as Kafka does:
while one waits (a long poll, a group join) later frames queue up, and past `MAX_QUEUED` of them, or so many bytes,
or when the requests of all connections take too much memory, nothing more is read: memory is bounded.
File ranges go out by sendfile, at once when the socket takes them, else when it is writable again.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import socket
from collections.abc import Awaitable, Callable

from broker.errors import ProtocolError, UnsupportedVersion
from broker.net.frame_reader import FrameReader, RequestTooLarge
from broker.net.request_memory import RequestMemory
from broker.net.response import FileRange, Part, Response
from broker.net.router import Client, Router

__all__ = ["Connection"]

logger = logging.getLogger(__name__)

CLIENT, MALFORMED, TOO_LARGE, UNSUPPORTED, FAILED = "client", "malformed", "too_large", "unsupported", "failed"
MAX_QUEUED = 16
MAX_QUEUED_BYTES = 8 * 1024 * 1024
SLOWEST_BYTES_PER_S = 100_000
"""What a frame that takes longer than `socket.request.receive.timeout.ms` must bring on average."""


class Connection(asyncio.BufferedProtocol):
    """The protocol object asyncio drives; everything runs on the event loop's thread."""

    def __init__(
        self,
        router: Router,
        max_request_bytes: int,
        on_close: Callable[[Connection], None],
        memory: RequestMemory | None = None,
    ) -> None:
        self._router = router
        self._memory = memory or RequestMemory()
        self._reader = FrameReader(max_request_bytes, self._memory, self._resume_reading)
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._frame_since = 0.0
        self._queue: collections.deque[tuple[bytearray, float]] = collections.deque()
        self._queued_bytes = 0
        self._held_bytes = 0
        self._untaken_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._sending = False
        self._write_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self.client = Client("", 0)
        self.last_active = self._loop.time()
        self.end_reason = CLIENT
        """Why it ended, in a word, for the metrics: the client left, or what we closed it for."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        self.client = Client(str(peer[0]), int(peer[1]))
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._reader.drop()
        self._drop_queued()
        self._memory.release(self._held_bytes + self._untaken_bytes)
        self._held_bytes = self._untaken_bytes = 0
        self._on_close(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now = self.last_active = self._loop.time()
        try:
            frames = self._reader.received(nbytes)
        except ProtocolError as error:
            self._refuse(error)
            return
        for frame in frames:
            self._receive(frame, now)
        if self._reader.partial:
            if frames or not self._frame_since:
                self._frame_since = now
            if self._reader.starved:
                self._transport.pause_reading()
        else:
            self._frame_since = 0.0

    def pause_writing(self) -> None:
        self._write_paused = True
        self._memory.release(self._untaken_bytes)
        self._untaken_bytes = self._transport.get_write_buffer_size()
        self._memory.hold(self._untaken_bytes)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._memory.release(self._untaken_bytes)
        self._untaken_bytes = 0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._handle_queued()

    def close(self, reason: str, text: str = "") -> None:
        """Close once what is already written has left; `text` tells the log why."""
        self._end_for(reason, text)
        self._transport.close()

    def abort(self, reason: str, text: str = "") -> None:
        """Close at once; what the peer has not taken is dropped."""
        self._end_for(reason, text)
        self._transport.abort()

    def _end_for(self, reason: str, text: str) -> None:
        if self.end_reason != CLIENT:
            return
        self.end_reason = reason
        if text:
            host, port = self.client.host, self.client.port
            fields = {"event": "connection_closed", "peer": f"{host}:{port}", "reason": reason}
            logger.warning("closing the connection of %s:%d: %s", host, port, text, extra=fields)

    @property
    def waiting(self) -> bool:
        """Is a request being served, so that silence is not idleness? A response that is not taken counts as such."""
        return self._task is not None and not self._sending

    # --- frames

    def _receive(self, frame: bytearray, now: float) -> None:
        if self._task is None and not self._queue and not self._write_paused:
            self._handle(frame, now)
            return
        self._queue.append((frame, now))
        self._queued_bytes += len(frame)
        self._memory.hold(len(frame))
        if len(self._queue) >= MAX_QUEUED or self._queued_bytes >= MAX_QUEUED_BYTES or self._memory.full:
            self._transport.pause_reading()

    def _handle_queued(self) -> None:
        while self._queue and self._task is None and not self._write_paused:
            frame, received = self._queue.popleft()
            self._queued_bytes -= len(frame)
            self._memory.release(len(frame))
            few = len(self._queue) <= MAX_QUEUED // 2 and self._queued_bytes <= MAX_QUEUED_BYTES // 2
            if not self._queue or (few and not self._memory.full):
                self._resume_reading()
            self._handle(frame, received)

    def _resume_reading(self) -> None:
        """Called also when there is memory for the frame that is being received: its time begins again."""
        if not self._reader.starved and not self._transport.is_closing() and not self._transport.is_reading():
            if self._frame_since:
                self._frame_since = self._loop.time()
            self._transport.resume_reading()

    def _drop_queued(self) -> None:
        self._memory.release(self._queued_bytes)
        self._queue.clear()
        self._queued_bytes = 0

    def is_overdue(self, now: float, timeout_s: float) -> bool:
        """Whether a frame was begun so long ago that nobody means to end it; while we do not read it is not."""
        if not self._frame_since or not self._transport.is_reading():
            return False
        return now > self._frame_since + timeout_s + self._reader.filled / SLOWEST_BYTES_PER_S

    # --- requests and responses

    def _handle(self, frame: bytearray, received: float) -> None:
        if self._transport.is_closing():
            return
        try:
            response = self._router.dispatch(frame, self.client, received)
        except ProtocolError as error:
            self._refuse(error)
        except Exception as error:
            self._fail(error)
        else:
            if isinstance(response, Awaitable):
                self._held_bytes = len(frame)
                self._memory.hold(len(frame))
                self._begin(self._finish(response))
            elif rest := self._respond(response):
                self._begin(self._send_rest(rest))

    def _begin(self, work: Awaitable[None]) -> None:
        self._task = asyncio.ensure_future(work, loop=self._loop)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._held_bytes:
            self._memory.release(self._held_bytes)
            self._held_bytes = 0
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ProtocolError):
            self._refuse(error)
        elif isinstance(error, ConnectionError) or (error is not None and self._transport.is_closing()):
            self._transport.close()
        elif error is not None:
            self._fail(error)
        else:
            self.last_active = self._loop.time()
            self._handle_queued()

    async def _finish(self, answer: Awaitable[Response]) -> None:
        if rest := self._respond(await answer):
            await self._send_rest(rest)

    def _respond(self, response: Response) -> list[Part] | None:
        """Write what can be written now; what needs waiting is given back."""
        if response is None:
            return None
        if isinstance(response, bytes):
            self._transport.write(response)
            return None
        descriptor = self._transport.get_extra_info("socket").fileno()
        parts = list(response)
        for index, part in enumerate(parts):
            if isinstance(part, bytes):
                self._transport.write(part)
            elif sent := self._send_now(descriptor, part):
                if sent < part.length:
                    return [_Rest(part, sent), *parts[index + 1 :]]
            elif part.length:
                return parts[index:]
        return None

    def _send_now(self, descriptor: int, part: FileRange) -> int:
        """Bytes of `part` the socket took without waiting; 0 while earlier bytes are still buffered."""
        if self._transport.get_write_buffer_size() or self._transport.is_closing():
            return 0
        sent = 0
        try:
            while sent < part.length:
                count = os.sendfile(descriptor, part.file.fileno(), part.position + sent, part.length - sent)
                if count == 0:
                    logger.error("a log file ended before the range to be sent of it did: %s", part)
                    self.abort(FAILED)
                    break
                sent += count
        except BlockingIOError:
            pass
        except OSError:
            self._transport.abort()  # a reset peer: the response is of no use to anyone
        return sent

    async def _send_rest(self, parts: list[Part]) -> None:
        self._sending = True
        try:
            for part in parts:
                if isinstance(part, bytes):
                    self._transport.write(part)
                else:
                    await self._send_file(part)
        finally:
            self._sending = False

    async def _send_file(self, part: FileRange) -> None:
        """As `loop.sendfile`, but that one (to 3.13 at least) trips over a connection that is lost meanwhile."""
        await self._drain()
        descriptor = os.dup(self._transport.get_extra_info("socket").fileno())  # the transport's own is not for us
        try:
            sent = 0
            while sent < part.length:
                if self._transport.is_closing():
                    raise ConnectionError("the connection was lost in the middle of a response")
                if not (count := self._send_now(descriptor, _Rest(part, sent))):
                    await self._writable(descriptor)
                    continue
                sent += count
                self.last_active = self._loop.time()
        finally:
            os.close(descriptor)

    async def _drain(self) -> None:
        """Wait until all that was written has gone to the socket."""
        if not self._transport.get_write_buffer_size():
            return
        self._drained = self._loop.create_future()
        self._transport.set_write_buffer_limits(0)
        try:
            await self._drained
        finally:
            self._drained = None
            self._transport.set_write_buffer_limits()

    async def _writable(self, descriptor: int) -> None:
        """Wait until the socket takes something; a lost connection cancels us."""
        if self._transport.is_closing():
            return
        ready = asyncio.Event()
        self._loop.add_writer(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_writer(descriptor)

    # --- ends

    def _refuse(self, error: ProtocolError) -> None:
        """What the client sent cannot be served."""
        reason = MALFORMED
        if isinstance(error, RequestTooLarge | UnsupportedVersion):
            reason = TOO_LARGE if isinstance(error, RequestTooLarge) else UNSUPPORTED
        self._drop_queued()
        self.close(reason, str(error))

    def _fail(self, error: BaseException) -> None:
        """The fault is ours."""
        logger.error("request of %s:%d failed", self.client.host, self.client.port, exc_info=error)
        self._drop_queued()
        self.close(FAILED)


class _Rest:
    """What is left of a file range after a part of it was sent."""

    def __init__(self, part: FileRange, sent: int) -> None:
        self.file = part.file
        self.position = part.position + sent
        self.length = part.length - sent
