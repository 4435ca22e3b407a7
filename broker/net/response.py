"""What a handler answers with, and how it goes to the socket.

A response is bytes, a sequence of bytes and file ranges to send in order, or None for no answer at all (Produce with
acks=0). File ranges go to the socket by `sendfile`, or piece by piece under TLS. Each connection owns a
`ResponseWriter`: `write` writes what the socket takes at once and returns the rest, and `write_rest` waits for the
socket or the disk. A thread reads what is not in the page cache, so that other connections are served meanwhile. At
most one piece more than the transport's high-water mark is buffered, however slow the peer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Sequence
from typing import Final, Protocol

logger = logging.getLogger(__name__)


class _File(Protocol):
    def fileno(self) -> int: ...

    def failed(self, position: int, error: OSError) -> None:
        """The disk does not give the byte at `position`."""


class FileRange(Protocol):
    """`length` bytes of `file` from `position` on, such as a `log.FileSlice`."""

    @property
    def file(self) -> _File: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...


Part = bytes | FileRange
Response = bytes | Sequence[Part] | None


def size_of(response: Response) -> int:
    if response is None or isinstance(response, bytes):
        return len(response or b"")
    return sum([len(part) if isinstance(part, bytes) else part.length for part in response])


PROBED_BYTES: Final = 1 << 20
"""The longest range that two probes can stand for: the kernel reads ahead and evicts in runs."""

SHORT_BYTES: Final = 1 << 16
"""One probe is enough for a range that the kernel reads ahead at once."""

READ_BYTES: Final = 1 << 14
"""A range up to this length is read and written together with what surrounds it, which is cheaper than sendfile."""

_SCRATCH: Final = [bytearray(1)]

_DISK_ERRORS: Final = frozenset({errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN, errno.ESTALE, errno.EREMOTEIO})
"""What `sendfile` raises because of the file, and not because the peer has reset the connection."""


def is_cached(descriptor: int, position: int, length: int) -> bool:
    """Whether the range is in the page cache: `sendfile` of an uncached range makes the event loop wait for the disk.

    Reads one byte at each end with preadv2's RWF_NOWAIT. Returns True where the file system has no such flag (tmpfs).
    """
    try:
        os.preadv(descriptor, _SCRATCH, position, os.RWF_NOWAIT)
        if length > SHORT_BYTES:
            os.preadv(descriptor, _SCRATCH, position + length - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def warm(part: FileRange, length: int) -> None:
    """Read the first `length` bytes of `part` into the page cache. Ignores errors: sendfile will report them."""
    try:
        os.pread(part.file.fileno(), length, part.position)
    except OSError:
        return


def with_short_ranges_read(response: Sequence[Part]) -> list[Part]:
    """The same bytes in fewer parts: short file ranges are read, and what lies together is joined, up to `SHORT_BYTES`.

    Every write wakes the peer, so a short answer should be one. Ranges that are not in the page cache stay as they are.
    """
    found: list[Part] = []
    joined: list[bytes] = []
    size = 0
    for part in response:
        short = part if isinstance(part, bytes) else _read_short(part)
        if joined and (short is None or size + len(short) > SHORT_BYTES):
            found.append(b"".join(joined))
            joined, size = [], 0
        if short is None:
            found.append(part)
        else:
            joined.append(short)
            size += len(short)
    if joined:
        found.append(b"".join(joined))
    return found


def _read_short(part: FileRange) -> bytes | None:
    """The bytes of a short range, if they can be read without waiting for the disk."""
    if part.length > READ_BYTES:
        return None
    piece = bytearray(part.length)
    try:
        count = os.preadv(part.file.fileno(), [piece], part.position, os.RWF_NOWAIT)
    except OSError:
        return None
    return bytes(piece) if count == part.length else None


PIECE_BYTES: Final = 128 * 1024
"""Read from a file and encrypted at a time: eight TLS records."""


class ResponseWriter:
    """Plaintext: file ranges never pass through this process."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._drained: asyncio.Future[None] | None = None
        self.paused = False
        """Whether the transport's buffer is above its high-water mark."""
        self.sending = False
        """Whether `write_rest` is running."""
        self.last_progress = loop.time()
        """When the peer last took bytes that had to wait."""

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def write(self, response: Response) -> list[Part] | None:
        """Write what can be written without waiting; returns the rest."""
        if response is None:
            return None
        if isinstance(response, bytes):
            self._transport.write(response)
            return None
        parts = with_short_ranges_read(response)
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
        """Write what `write` returned. Raises ConnectionError when the connection is lost meanwhile."""
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
        """How many bytes of `part` the socket took without waiting for it or for the disk.

        0 while earlier bytes are still buffered. `warmed`: the first `PROBED_BYTES` are in the page cache.
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
        except OSError as error:
            self._failed(part, part.position + sent, error)
        return sent

    async def _send_file(self, part: FileRange) -> None:
        """Like `loop.sendfile`, which (at least up to Python 3.13) fails on a connection that is lost meanwhile."""
        await self._drain()
        descriptor = os.dup(
            self._transport.get_extra_info("socket").fileno()
        )  # asyncio forbids add_writer on the transport's own
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
        """Bring the first `PROBED_BYTES` of `part` into the page cache."""
        length = min(part.length, PROBED_BYTES)
        if not is_cached(part.file.fileno(), part.position, length):
            await self._loop.run_in_executor(None, warm, part, length)

    async def _drain(self) -> None:
        """Wait until the socket has taken everything that was written."""
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
        """Wait until the socket is writable. A lost connection cancels the task."""
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

    def _failed(self, part: FileRange, position: int, error: OSError) -> None:
        """Break off the response, which cannot be completed.

        If the disk is the cause, the file learns of it. Then the next fetch gets an error for this partition, and the
        peer goes on with the others.
        """
        if error.errno in _DISK_ERRORS:
            logger.error("cannot read %s: %s", part, error)
            part.file.failed(position, error)
        self._transport.abort()

    def _file_ended(self, part: FileRange) -> None:
        logger.error("a log file is shorter than the range to send of it: %s", part)
        self._transport.abort()


class EncryptedWriter(ResponseWriter):
    """TLS: reads and encrypts file ranges piece by piece, the next piece when the socket has taken enough."""

    def _send_now(self, part: FileRange, descriptor: int | None = None, *, warmed: bool = False) -> int:
        if self.paused or self._transport.is_closing():
            return 0
        file, length = part.file.fileno(), min(part.length, PIECE_BYTES)
        if not warmed and not is_cached(file, part.position, length):
            return 0
        try:
            piece = os.pread(file, length, part.position)
        except OSError as error:
            self._failed(part, part.position, error)
            return 0
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
                await asyncio.sleep(0)  # let other connections run, even if this peer is fast
            rest = _Rest(part, sent)
            await self._warm(rest)
            self._check_open()
            sent += self._send_now(rest, warmed=True)
            self.last_progress = self._loop.time()


class _Rest:
    """The rest of a file range after `sent` bytes."""

    def __init__(self, part: FileRange, sent: int) -> None:
        self.file = part.file
        self.position = part.position + sent
        self.length = part.length - sent
