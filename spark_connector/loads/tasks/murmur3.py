"""Murmur3 (x86, 32 bits, seed 0) of whole columns, by numpy: the hash of Iceberg's bucket transform.

Written here because executors need not have pyiceberg, and its wheel has no function for columns of text.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]

_LONG: Final = 256
"""From this length on, values are hashed one by one: together, every block costs a few calls of numpy."""

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_MASK: Final = 0xFFFFFFFF


def hash_longs(values: npt.NDArray[np.int64]) -> Hashes:
    """The hash of each number as 8 little-endian bytes."""
    words = np.ascontiguousarray(values, "<i8").view("<u4").reshape(-1, 2)
    hashes = np.zeros(len(words), np.uint32)
    for block in (words[:, 0], words[:, 1]):
        hashes = _with_block(hashes, _scrambled(block))
    return _finished(hashes, np.full(len(words), 8, np.uint32))


def hash_bytes(data: bytes | memoryview, ends: npt.NDArray[np.int64]) -> Hashes:
    """The hash of each value of `data`: value i is the bytes from `ends[i]` to `ends[i + 1]`."""
    lengths = np.diff(ends)
    plain = np.frombuffer(data, np.uint8)
    hashes = np.zeros(len(lengths), np.uint32)
    rows = np.flatnonzero(lengths < _LONG)
    most = int(lengths[rows].max(initial=0)) // 4
    padded = np.concatenate([plain, np.zeros(4, np.uint8)])  # a tail may be read beyond the end
    for block in range(most):
        active = rows[lengths[rows] // 4 > block]
        hashes[active] = _with_block(hashes[active], _scrambled(_words(padded, ends[active] + 4 * block)))
    tails = lengths[rows] % 4
    begins = ends[rows] + lengths[rows] - tails
    kept = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)[tails]
    hashes[rows] ^= _scrambled(_words(padded, begins) & kept)  # of no byte it is 0
    for row in np.flatnonzero(lengths >= _LONG):
        hashes[row] = _one(plain[ends[row] : ends[row + 1]])
    return _finished(hashes, lengths.astype(np.uint32))


def _words(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64]) -> Hashes:
    """The 4 bytes from each of `begins` on as a little-endian number."""
    parts: Hashes = data[begins[:, None] + np.arange(4)].astype(np.uint32) << np.array([0, 8, 16, 24], np.uint32)
    return parts[:, 0] | parts[:, 1] | parts[:, 2] | parts[:, 3]


def _scrambled(words: npt.NDArray[Any]) -> Hashes:
    mixed: Hashes = words.astype(np.uint32) * _C1
    return (mixed << np.uint32(15) | mixed >> np.uint32(17)) * _C2


def _with_block(hashes: Hashes, scrambled: Hashes) -> Hashes:
    hashes = hashes ^ scrambled
    return (hashes << np.uint32(13) | hashes >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)


def _one(data: npt.NDArray[np.uint8]) -> int:
    """What `_with_block` and the tail make of one long value, before the end."""
    whole = len(data) // 4 * 4
    value = 0
    for word in _scrambled(data[:whole].view("<u4")).tolist():
        value ^= word
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK
    tail = int.from_bytes(data[whole:].tobytes(), "little")
    return value ^ int(_scrambled(np.array([tail], np.uint32))[0])


def _finished(hashes: Hashes, lengths: Hashes) -> Hashes:
    hashes = hashes ^ lengths
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ hashes >> np.uint32(shift)) * np.uint32(factor)
    return hashes ^ hashes >> np.uint32(16)
