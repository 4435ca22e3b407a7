"""The entries of Kafka's `TransactionIndex`, the file `.txnindex` beside a segment, and their codec.

Big-endian, in the order of their markers:

    version (int16, 0), producer id (int64), first offset (int64), last offset (int64: that of the marker),
    last stable offset (int64: as it was after the marker)

Log and archive keep them. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
ENTRY_SIZE = _ENTRY.size


class AbortedEntry(NamedTuple):
    """An aborted transaction. `last_offset` is its marker's, `last_stable_offset` was the one after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedEntry]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_aborted(data: bytes) -> list[AbortedEntry]:
    """The entries of a `.txnindex` file, which is never empty. Raises ValueError."""
    if not data:
        raise ValueError("it is empty")
    if len(data) % ENTRY_SIZE:
        raise ValueError(f"{len(data)} bytes are no whole number of entries")
    entries: list[AbortedEntry] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise ValueError(f"version {version} is not {_VERSION}")
        entry = AbortedEntry(*fields)
        if not 0 <= entry.first_offset < entry.last_offset or (entries and entry.last_offset <= entries[-1][2]):
            raise ValueError(f"an entry from offset {entry.first_offset} to {entry.last_offset} does not fit there")
        entries.append(entry)
    return entries
