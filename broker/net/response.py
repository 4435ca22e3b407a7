"""What a handler may answer with, as the connection sees it.

A response is bytes, a sequence of bytes and file ranges to be sent in order, or None for no answer at
all (Produce with acks=0). File ranges go to the socket by sendfile and are never read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["FileRange", "Part", "Response"]


class _File(Protocol):
    def fileno(self) -> int: ...


class FileRange(Protocol):
    """`length` bytes of `file` from `position` on; `log.FileSlice` is one."""

    @property
    def file(self) -> _File: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...


Part = bytes | FileRange
Response = bytes | Sequence[Part] | None
