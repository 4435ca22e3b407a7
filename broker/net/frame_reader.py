"""Frames from the bytes of one connection, and the memory that the frames of all connections may take.

Owned by a connection, which gives asyncio the buffers made here. Bytes arrive in a scratch buffer that all connections
share, and whole frames are copied out of it. A longer frame is received into a buffer of its own, which grows as the
bytes arrive: a length that is only announced reserves nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.errors import ProtocolError

SCRATCH_BYTES = 256 * 1024
FIRST_BYTES = 64 * 1024
"""First buffer of a frame of which little more than the length has arrived."""
TRUSTED_BYTES = 4096
"""A frame of which so much has arrived gets `NEXT_BYTES` at once: nearly all frames fit in them."""
NEXT_BYTES = 1024 * 1024
SCARCE_BYTES = 16 * 1024
"""Bytes to read at once while memory is short, because what has arrived takes memory in any case."""
_SCRATCH = bytearray(SCRATCH_BYTES)
"""Shared by all connections: asyncio fills it and hands it over in one step of the event loop."""
_LENGTH = struct.Struct(">i")


class RequestTooLarge(ProtocolError):
    """A frame that is longer than allowed, or of no positive length."""


class FrameReader:
    """The socket fills `buffer()`, then `received(count)` returns the frames that are complete.

    While `starved`, the connection must not read: the reader waits for memory and calls `on_granted` when it has it.
    """

    def __init__(self, max_request_bytes: int, memory: RequestMemory, on_granted: Callable[[], None]) -> None:
        self.max_request_bytes = max_request_bytes
        """Longer frames are refused."""
        self._memory = memory
        self._on_granted = on_granted
        self._head = b""
        self._frame: bytearray | None = None
        self._length = 0
        self._filled = 0
        self._taken = 0
        self.partial = False
        """Whether a part of a frame has arrived."""
        self.starved = False

    @property
    def filled(self) -> int:
        """Bytes of the incomplete frame that have arrived."""
        return self._filled if self._frame is not None else len(self._head)

    def buffer(self) -> memoryview:
        if self._frame is not None:
            if len(self._frame) < self._taken:
                self._frame += bytes(self._taken - len(self._frame))  # only now: asyncio held a view of it
            return memoryview(self._frame)[self._filled :]
        if head := len(self._head):
            _SCRATCH[:head] = self._head
        return memoryview(_SCRATCH)[head : SCARCE_BYTES if self._memory.full else SCRATCH_BYTES]

    def received(self, count: int) -> Sequence[bytearray]:
        """The complete frames, without their lengths. Raises RequestTooLarge, and drops earlier frames with it."""
        if self._frame is None:
            return self._split(len(self._head) + count)
        self._filled += count
        if self._filled < self._taken:
            return ()
        if self._filled == self._length:
            frame = self._frame
            self.drop()
            return (frame,)
        self._take(min(self._length - self._filled, max(self._filled, NEXT_BYTES)))
        return ()

    def drop(self) -> None:
        taken, self._taken, self._frame, self._head = self._taken, 0, None, b""
        self.partial = self.starved = False
        self._memory.finished(self, taken)

    def granted(self, size: int) -> None:
        """Called by RequestMemory when it has the memory."""
        self._taken += size
        self.starved = False
        self._on_granted()

    def _split(self, used: int) -> Sequence[bytearray]:
        position = length = 0
        frames = []
        while used - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(_SCRATCH, position)
            if not 0 < length <= self.max_request_bytes:
                raise RequestTooLarge(
                    f"a request of {length} bytes (socket.request.max.bytes={self.max_request_bytes})"
                )
            start, end = position + _LENGTH.size, position + _LENGTH.size + length
            if end > used:
                break
            frames.append(bytearray(memoryview(_SCRATCH)[start:end]))  # patched in place when it holds records
            position = end
        self.partial = position < used
        if used - position >= _LENGTH.size:
            self._head = b""
            self._begin(memoryview(_SCRATCH)[position + _LENGTH.size : used], length)
        else:
            self._head = bytes(_SCRATCH[position:used])
        return frames

    def _begin(self, head: memoryview, length: int) -> None:
        """Receive the rest of this frame into a buffer of its own."""
        filled = self._filled = len(head)
        self._length = length
        self._memory.hold(filled)
        self._taken = filled
        first = NEXT_BYTES if filled >= TRUSTED_BYTES else FIRST_BYTES
        self._take(min(length - filled, max(first, filled)))
        self._frame = bytearray(self._taken)
        self._frame[:filled] = head

    def _take(self, size: int) -> None:
        if self._memory.take(self, size):
            self._taken += size
        else:
            self.starved = True


class Taker(Protocol):
    """A reader of a frame, as `RequestMemory` sees it."""

    def granted(self, size: int) -> None:
        """Called when the requested memory is there."""


class RequestMemory:
    """Counts the memory of the requests of all connections (`queued.max.request.bytes`); a `limit` below 0 is none.

    A frame takes memory piece by piece as its bytes arrive. Requests that wait or are being handled hold memory, and so
    do answers that their client does not read. At the limit, incomplete frames wait for memory, first come first
    served, except one privileged frame, which may exceed the limit so that it can always be completed. So the bound is
    the limit plus one request. Kafka's `SimpleMemoryPool` takes the whole request's size after its first four bytes.
    """

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Taker, int] = {}
        self._privileged: Taker | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return 0 <= self.limit <= self.used

    def take(self, taker: Taker, size: int) -> bool:
        """Take `size` bytes for an incomplete frame. If False, `taker.granted` is called when they are there."""
        if self._fits(size) or taker is self._privileged:
            self.used += size
            return True
        if self._privileged is None:
            self._privileged = taker
            self.used += size
            return True
        self._waiting[taker] = size
        return False

    def finished(self, taker: Taker, size: int) -> None:
        """Release the `size` bytes of a frame that is complete, or never will be."""
        self._waiting.pop(taker, None)
        if taker is self._privileged:
            self._privileged = None
        self.release(size)

    def hold(self, size: int) -> None:
        """Count bytes that are in memory already."""
        self.used += size

    def release(self, size: int) -> None:
        """Release bytes, and grant memory to waiting frames that fit now."""
        self.used -= size
        while self._waiting:
            taker, wanted = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                if self._privileged is not None:
                    return
                self._privileged = taker
            del self._waiting[taker]
            self.used += wanted
            taker.granted(wanted)

    def _fits(self, size: int) -> bool:
        return self.limit < 0 or self.used + size <= self.limit
