"""The `.aux` object: what was put in comes out; anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.archive.aux_file import (
    ABORTED,
    FOOTER_SIZE,
    AuxFile,
    BrokenAux,
    decode_aux,
    decode_footer,
    encode_aux,
    parse_aborted,
)
from broker.archive.manifest import EpochStart, Mark
from broker.records.aborted_entries import AbortedEntry, encode_aborted

OFFSETS = st.integers(0, (1 << 63) - 1)
SECTION = st.binary(max_size=40)
ENTRIES = [AbortedEntry(4, 10, 20, 15), AbortedEntry(5, 12, 30, 31)]
AUX = AuxFile(
    0, 40, 1000, 77, b"index", b"times", encode_aborted(ENTRIES), b"producers", (EpochStart(2, 0),), (Mark(0, 0, -1),)
)


@given(OFFSETS, OFFSETS, SECTION, SECTION, SECTION, SECTION, st.dictionaries(st.integers(0, 9), st.none()))
def test_what_was_encoded_is_decoded(
    base: int, end: int, index: bytes, times: bytes, aborted: bytes, producers: bytes, epochs: dict[int, None]
) -> None:
    starts = tuple(EpochStart(epoch, epoch * 5) for epoch in sorted(epochs))
    marks = tuple(Mark(epoch, epoch * 7, -1) for epoch in sorted(epochs))
    aux = AuxFile(base, end, 10, 0xFFFFFFFF, index, times, aborted, producers, starts, marks)
    assert decode_aux(encode_aux(aux)) == aux


@given(st.binary(max_size=FOOTER_SIZE + 20))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenAux):
        decode_aux(data)


@given(st.data())
def test_a_changed_byte_or_a_cut_is_noticed(data: st.DataObject) -> None:
    whole = encode_aux(AUX)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for broken in (bytes(flipped), whole[:at], whole + b"\0"):
        with pytest.raises(BrokenAux):
            decode_aux(broken)


def test_one_section_is_read_alone() -> None:
    whole = encode_aux(AUX)
    footer = decode_footer(whole[-FOOTER_SIZE:])
    start, end = footer.range_of(ABORTED)
    assert parse_aborted(footer.checked(ABORTED, whole[start:end])) == ENTRIES
    assert footer.size == len(whole)
    with pytest.raises(BrokenAux, match="section 2"):
        footer.checked(ABORTED, whole[start : end - 1])


def test_aborted_transactions_that_are_none_are_refused() -> None:
    with pytest.raises(BrokenAux, match="aborted"):
        parse_aborted(b"123")
    assert parse_aborted(b"") == []
