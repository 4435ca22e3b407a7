"""Frames out of the bytes of one connection.

Owned by a connection, which gives asyncio the buffers made here. What arrives goes into one scratch buffer that all
connections share, and whole frames are cut out of it; a frame that is longer than what has come is received into a
buffer of its own, which grows as the bytes come: a length that is only announced costs nothing. The memory is taken
from `RequestMemory`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from broker.errors import ProtocolError
from broker.net.request_memory import RequestMemory

__all__ = ["FrameReader", "RequestTooLarge"]

SCRATCH_BYTES = 256 * 1024
FIRST_BYTES = 64 * 1024
"""Of a frame of which little more than the length has come."""
TRUSTED_BYTES = 4096
"""Who has sent so much of a frame gets `NEXT_BYTES` at once, for nearly all frames end within them."""
NEXT_BYTES = 1024 * 1024
SCARCE_BYTES = 16 * 1024
"""Read at once while memory is short: what has come of a frame is there, whether it may be or not."""
_SCRATCH = bytearray(SCRATCH_BYTES)
"""Shared by all connections: asyncio reads into it and hands it over in one step of the one event loop."""
_LENGTH = struct.Struct(">i")


class RequestTooLarge(ProtocolError):
    """A frame whose length is not allowed."""


class FrameReader:
    """`buffer()` is filled from the socket, then `received(count)` gives the frames that are whole.

    While `starved` nothing may be read: memory is awaited, and `on_granted` called once it is there.
    """

    def __init__(self, max_request_bytes: int, memory: RequestMemory, on_granted: Callable[[], None]) -> None:
        self.max_request_bytes = max_request_bytes
        """A longer frame is refused."""
        self._memory = memory
        self._on_granted = on_granted
        self._head = b""
        self._frame: bytearray | None = None
        self._length = 0
        self._filled = 0
        self._taken = 0
        self.partial = False
        """Whether something has come of a frame that is not whole yet."""
        self.starved = False

    @property
    def filled(self) -> int:
        """Bytes that have come of the frame that is not whole yet."""
        return self._filled if self._frame is not None else len(self._head)

    def buffer(self) -> memoryview:
        """Where the next bytes are to go."""
        if self._frame is not None:
            if len(self._frame) < self._taken:
                self._frame += bytes(self._taken - len(self._frame))  # not before: asyncio held a view of it
            return memoryview(self._frame)[self._filled :]
        if head := len(self._head):
            _SCRATCH[:head] = self._head
        return memoryview(_SCRATCH)[head : SCARCE_BYTES if self._memory.full else SCRATCH_BYTES]

    def received(self, count: int) -> Sequence[bytearray]:
        """Whole frames, without their lengths. Raises RequestTooLarge, when earlier frames are lost too."""
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
        """Forget what has come of an unfinished frame, and give its memory back."""
        taken, self._taken, self._frame, self._head = self._taken, 0, None, b""
        self.partial = self.starved = False
        self._memory.finished(self, taken)

    def granted(self, size: int) -> None:
        """RequestMemory has what we asked for."""
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
        """The rest of this frame is received into a buffer of its own."""
        come = self._filled = len(head)
        self._length = length
        self._memory.hold(come)
        self._taken = come
        first = NEXT_BYTES if come >= TRUSTED_BYTES else FIRST_BYTES
        self._take(min(length - come, max(first, come)))
        self._frame = bytearray(self._taken)
        self._frame[:come] = head

    def _take(self, size: int) -> None:
        if self._memory.take(self, size):
            self._taken += size
        else:
            self.starved = True
