"""CRC-32C (Castagnoli), the checksum of a record batch.

`crc32c(data, crc=0)` continues from an earlier value. It uses the hardware library if that is installed, else crcmod.
The tests compare the two. Either is imported at the first use: with them come argparse, csv and the parser of e-mail,
and a Spark process whose kernel computes the sums never needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

_fastest: Callable[..., int] | None = None


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    return (_fastest or _choose())(data, crc)


def portable_crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The same with crcmod, which is slow if it was installed without a compiler."""
    return int(_portable()(bytes(data), crc))


@functools.cache
def _portable() -> Callable[..., int]:
    from crcmod.predefined import mkPredefinedCrcFun

    function: Callable[..., int] = mkPredefinedCrcFun("crc-32c")
    return function


def _choose() -> Callable[..., int]:
    global _fastest
    try:
        from crc32c import crc32c as hardware
    except ImportError:
        _fastest = portable_crc32c
    else:
        _fastest = hardware
    return _fastest
