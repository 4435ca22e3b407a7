"""CRC-32C (Castagnoli), the checksum of a record batch.

`crc32c(data, crc=0)` continues from an earlier value. It uses the hardware library if that is installed, else crcmod.
The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable

import crcmod.predefined

_portable = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def portable_crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The same with crcmod, which is slow if it was installed without a compiler."""
    return int(_portable(bytes(data), crc))


def _choose() -> Callable[..., int]:
    try:
        import crc32c as hardware
    except ImportError:
        return portable_crc32c
    function: Callable[..., int] = hardware.crc32c
    return function


crc32c = _choose()
