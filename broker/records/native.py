"""The codec's optional C kernel (`_kernel.c`): whether it is in use, and its functions.

`pip install` builds it if there is a C compiler. Without it, or with `PYKAFKA_NATIVE=0` in the environment, numpy and
Python do the same more slowly, with the same results and errors.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NATIVE_VARIABLE", "Kernel", "column_buffers", "implementation", "kernel"]

Buffer = Any
"""Whatever has the buffer protocol: bytes, memoryview, numpy array, pa.Buffer."""

BinaryColumn = tuple[Buffer, Buffer | None, Buffer | None, int]
"""Edges, validity, data and first row of an Arrow binary array."""

NATIVE_VARIABLE: Final = "PYKAFKA_NATIVE"
"""Environment variable, read at import: `0` means do not use the kernel."""


class Kernel(Protocol):
    """The functions of `_kernel.c`, documented there. They raise ValueError for malformed batches."""

    def scan(self, chunk: Buffer, rows: Buffer | None, /) -> tuple[int, int]: ...

    def first_bad_crc(self, chunk: Buffer, rows: Buffer, /) -> int:
        """Only where `crc_in_kernel()`."""

    def check_records(self, piece: Buffer, state: Buffer, faults: Buffer, /) -> None: ...

    def count_headers(self, parts: list[Buffer], sections: Buffer, /) -> int: ...

    def decode(
        self, parts: list[Buffer], sections: Buffer, low: int, high: int, buffers: tuple[Buffer | None, ...], /
    ) -> Sequence[int]: ...

    def encode(
        self,
        rows: int,
        key: BinaryColumn | None,
        value: BinaryColumn,
        times: Buffer,
        headers: tuple[Buffer, BinaryColumn, BinaryColumn] | None,
        deltas: int,
        room: int,
        largest: int,
        framed: tuple[int, int, int, int] | None,
        /,
    ) -> tuple[list[bytes], bytes]: ...

    def partitions(self, rows: int, keys: BinaryColumn, partitions: int, out: Buffer, /) -> None: ...


def _load() -> Kernel | None:
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    try:
        module = importlib.import_module("broker.records._kernel")
    except ImportError:  # not built, or built for another machine
        return None
    return cast(Kernel, module) if hasattr(module, "check_records") else None  # else built from older sources


kernel: Kernel | None = _load()
"""None if numpy does the work."""


def implementation() -> Literal["native", "numpy"]:
    """What encodes and decodes columns of records in this process."""
    return "numpy" if kernel is None else "native"


def crc_in_kernel() -> bool:
    """Whether the kernel computes CRC-32C, which needs a processor with an instruction for it."""
    return hasattr(kernel, "first_bad_crc")


def column_buffers(column: pa.Array) -> BinaryColumn:
    """The buffers of a binary or string array, as the kernel takes them."""
    validity, edges, data = column.buffers()
    return edges, validity, data, column.offset
