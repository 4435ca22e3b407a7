"""The way out of one connection: bytes, and ranges of files by sendfile, or piece by piece where TLS is spoken.

Owned by a connection. What the socket takes at once is written at once; `write` gives back what must wait, for the
socket or for the disk, and `write_rest` waits. What is not in the page cache is brought there by a thread, so that
other connections are served meanwhile. At most a piece more than the transport's high-water mark is ever buffered,
however slow the peer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Final

from broker.net.page_cache import PROBED_BYTES, is_cached, warm
from broker.net.response import FileRange, Part, Response

__all__ = ["EncryptedWriter", "ResponseWriter"]

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 128 * 1024
"""Read from a file and encrypted at a time: eight TLS records."""


class ResponseWriter:
    """Plaintext: file ranges never pass through this process."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._drained: asyncio.Future[None] | None = None
        self.paused = False
        """Whether the transport has more than enough buffered."""
        self.sending = False
        """Whether `write_rest` is at it."""
        self.last_progress = loop.time()
        """When the peer last took something that had to wait."""

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def write(self, response: Response) -> list[Part] | None:
        """Write what can be written now; what needs waiting is given back."""
        if response is None:
            return None
        if isinstance(response, bytes):
            self._transport.write(response)
            return None
        parts = list(response)
        for index, part in enumerate(parts):
            if isinstance(part, bytes):
                self._transport.write(part)
            elif sent := self._send_now(part):
                if sent < part.length:
                    return [_Rest(part, sent), *parts[index + 1 :]]
            elif part.length:
                return parts[index:]
        return None

    async def write_rest(self, parts: Sequence[Part]) -> None:
        """Write what `write` left. Raises ConnectionError when the connection is lost meanwhile."""
        self.sending = True
        try:
            for part in parts:
                if isinstance(part, bytes):
                    self._transport.write(part)
                else:
                    await self._send_file(part)
        finally:
            self.sending = False

    def _send_now(self, part: FileRange, descriptor: int | None = None, *, warmed: bool = False) -> int:
        """Bytes of `part` the socket took without waiting for it or the disk; 0 while earlier bytes are still buffered.

        `warmed`: the first `PROBED_BYTES` are in the page cache.
        """
        if self._transport.get_write_buffer_size() or self._transport.is_closing():
            return 0
        if descriptor is None:
            descriptor = self._transport.get_extra_info("socket").fileno()
        file, sent = part.file.fileno(), 0
        try:
            while sent < part.length:
                position, length = part.position + sent, min(part.length - sent, PROBED_BYTES)
                if (sent or not warmed) and not is_cached(file, position, length):
                    break
                count = os.sendfile(descriptor, file, position, length)
                if count == 0:
                    self._file_ended(part)
                    break
                sent += count
        except BlockingIOError:
            pass
        except OSError:
            self._transport.abort()  # a reset peer: the response is of no use to anyone
        return sent

    async def _send_file(self, part: FileRange) -> None:
        """As `loop.sendfile`, but that one (to 3.13 at least) trips over a connection that is lost meanwhile."""
        await self._drain()
        descriptor = os.dup(self._transport.get_extra_info("socket").fileno())  # the transport's own is not for us
        try:
            sent = 0
            while sent < part.length:
                self._check_open()
                rest = _Rest(part, sent)
                await self._warm(rest)
                if not (count := self._send_now(rest, descriptor, warmed=True)):
                    await self._writable(descriptor)
                    continue
                sent += count
                self.last_progress = self._loop.time()
        finally:
            os.close(descriptor)

    async def _warm(self, part: FileRange) -> None:
        """See that the first `PROBED_BYTES` of `part` are in the page cache."""
        length = min(part.length, PROBED_BYTES)
        if not is_cached(part.file.fileno(), part.position, length):
            await self._loop.run_in_executor(None, warm, part, length)

    async def _drain(self) -> None:
        """Wait until all that was written has gone to the socket."""
        if not self._transport.get_write_buffer_size():
            return
        self._transport.set_write_buffer_limits(0)
        try:
            await self._resumed()
        finally:
            self._transport.set_write_buffer_limits()

    async def _resumed(self) -> None:
        self._drained = self._loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None

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

    def _check_open(self) -> None:
        if self._transport.is_closing():
            raise ConnectionError("the connection was lost in the middle of a response")

    def _file_ended(self, part: FileRange) -> None:
        logger.error("a log file ended before the range to be sent of it did: %s", part)
        self._transport.abort()


class EncryptedWriter(ResponseWriter):
    """TLS: file ranges are read and encrypted a piece at a time, the next one when the socket has taken enough."""

    def _send_now(self, part: FileRange, descriptor: int | None = None, *, warmed: bool = False) -> int:
        if self.paused or self._transport.is_closing():
            return 0
        file, length = part.file.fileno(), min(part.length, PIECE_BYTES)
        if not warmed and not is_cached(file, part.position, length):
            return 0
        piece = os.pread(file, length, part.position)
        if not piece and part.length:
            self._file_ended(part)
        self._transport.write(piece)
        return len(piece)

    async def _send_file(self, part: FileRange) -> None:
        sent = 0
        while sent < part.length:
            if self.paused:
                await self._resumed()
            else:
                await asyncio.sleep(0)  # a fast peer must not keep all others waiting
            rest = _Rest(part, sent)
            await self._warm(rest)
            self._check_open()
            sent += self._send_now(rest, warmed=True)
            self.last_progress = self._loop.time()


class _Rest:
    """What is left of a file range after a part of it was sent."""

    def __init__(self, part: FileRange, sent: int) -> None:
        self.file = part.file
        self.position = part.position + sent
        self.length = part.length - sent
