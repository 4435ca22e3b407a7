"""Which transactions were open at the end of an archived segment, for those who read without a broker. Pure."""

from __future__ import annotations

from broker.archive.aux_file import BrokenAux
from broker.log.producer_snapshot import decode_snapshot


def first_open_offset(snapshot: bytes) -> int | None:
    """The first record of the oldest open transaction in a section PRODUCER_SNAPSHOT that is not empty; None without
    one. Raises BrokenAux."""
    try:
        return decode_snapshot(snapshot, 0).first_unstable_offset
    except ValueError as error:
        raise BrokenAux(f"its producers: {error}") from None
