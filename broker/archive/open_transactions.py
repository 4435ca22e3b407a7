"""Which transactions were open at the end of an archived segment, for those who read without a broker. Pure."""

from __future__ import annotations

from broker.archive.aux_file import BrokenAux
from broker.log.producer_snapshot import decode_snapshot
from broker.log.producer_state import NO_OFFSET


def first_open_offset(snapshot: bytes) -> int | None:
    """The first record of the oldest open transaction in a section PRODUCER_SNAPSHOT that is not empty; None without
    one. Raises BrokenAux."""
    try:
        return decode_snapshot(snapshot, 0).first_unstable_offset
    except ValueError as error:
        raise BrokenAux(f"its producers: {error}") from None


def open_transactions(snapshot: bytes) -> dict[int, int]:
    """Producer id → the first record of its open transaction. As `first_open_offset`. Raises BrokenAux."""
    try:
        found = {one.producer_id: one.transaction_first_offset for one in decode_snapshot(snapshot, 0)}
    except ValueError as error:
        raise BrokenAux(f"its producers: {error}") from None
    return {producer: first for producer, first in found.items() if first != NO_OFFSET}
