"""The files of aborted transactions, and bytes that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.aborted_index import AbortedIndex, BrokenIndex
from broker.records.aborted_entries import ENTRY_SIZE, AbortedEntry, decode_aborted, encode_aborted

FIRST, SECOND = AbortedEntry(1, 0, 5, 3), AbortedEntry(2, 3, 9, 10)


def test_entries_come_back() -> None:
    data = encode_aborted([FIRST, SECOND])
    assert len(data) == 2 * ENTRY_SIZE
    assert decode_aborted(data) == [FIRST, SECOND]


@pytest.mark.parametrize(
    "entries", [[SECOND, FIRST], [FIRST, FIRST], [AbortedEntry(1, 6, 5, 3)], [AbortedEntry(1, -1, 5, 3)]]
)
def test_entries_that_cannot_follow_each_other_are_refused(entries: list[AbortedEntry]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        decode_aborted(encode_aborted(entries))


@given(
    st.binary(max_size=150)
    | st.lists(st.binary(min_size=32, max_size=32)).map(lambda x: b"".join(b"\0\0" + y for y in x))
)
def test_hostile_bytes_raise_value_error_only(data: bytes) -> None:
    try:
        entries = decode_aborted(data)
    except ValueError:
        return
    assert encode_aborted(entries) == data


def test_a_file_is_read_when_it_is_asked_for_only(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.txnindex"
    path.write_bytes(encode_aborted([FIRST]))
    index = AbortedIndex(tmp_path, [0])
    path.write_bytes(b"broken")
    assert index
    index.note(0, SECOND)
    with pytest.raises(BrokenIndex) as caught:
        index.between(0, 9)
    assert caught.value.base_offset == 0


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = AbortedIndex(tmp_path)
    index.note(0, FIRST)
    with monkeypatch.context() as patched:
        patched.setattr("broker.log.aborted_index.encode_aborted", lambda _: b"half")
        with pytest.raises(OSError, match=os.strerror(28)):
            index.note(0, SECOND)
        with pytest.raises(OSError, match=os.strerror(28)):
            index.note(7, SECOND)
    assert index.between(0, 99) == [FIRST]
    assert (tmp_path / f"{0:020d}.txnindex").stat().st_size == ENTRY_SIZE
    index.note(0, SECOND)
    assert index.between(0, 99) == [FIRST, SECOND]
