"""The `.aux` object: what was put in comes out; anything else is refused."""

from __future__ import annotations

import struct
from typing import Any, cast

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
from broker.archive.aux_sections import AuxSections
from broker.archive.manifest import EpochStart, Mark
from broker.clock import ManualClock
from broker.records.aborted_entries import AbortedEntry, encode_aborted
from broker.records.crc32c import crc32c

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


def footer_saying(*lengths: int) -> bytes:
    """A whole footer, with these lengths."""
    body = encode_aux(AUX)[-FOOTER_SIZE:-4]
    head = body[: -12 * len(lengths)]
    footer = head + b"".join(struct.pack(">QI", length, 0) for length in lengths)
    return footer + struct.pack(">I", crc32c(footer))


@pytest.mark.parametrize(
    "lengths",
    [
        (50 << 30, 0, 0, 0, 0, 0),
        ((1 << 64) - 1,) * 6,
        (0, 0, (256 << 20) + 1, 0, 0, 0),
        (0, 0, 0, 0, 0, 24 * ((1 << 17) + 1)),
        (0, 0, 0, 0, 12 * ((1 << 17) + 1), 0),
    ],
)
def test_sections_that_are_larger_than_any_are_refused_before_they_are_read(lengths: tuple[int, ...]) -> None:
    with pytest.raises(BrokenAux, match="no segment has so much"):
        decode_footer(footer_saying(*lengths))


def test_a_reader_of_one_section_asks_for_no_more_than_the_object_has() -> None:
    asked: list[tuple[int, int]] = []

    class Hostile:
        def read_range(self, path: str, start: int, end: int) -> bytes:
            asked.append((start, end))
            return footer_saying(0, 0, 200 << 20, 0, 0, 0)

    sections = AuxSections(cast(Any, None), Hostile(), ManualClock())
    with pytest.raises(BrokenAux, match="its footer says"):
        sections._read("x", 1000, ABORTED)
    assert asked == [(1000 - FOOTER_SIZE, 1000)]


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
