"""The JSON of the manifest's entries: what was written is read, and anything else is refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.archive.manifest import (
    Add,
    ArchivedSegment,
    BrokenManifest,
    Entry,
    EpochStart,
    Mark,
    Snapshot,
    Start,
    Truncate,
)
from broker.archive.manifest_json import decode_entry, encode_entry
from tests.support.archived_segments import archived_segment

OFFSET = st.integers(0, (1 << 62))


@st.composite
def segments(draw: st.DrawFn) -> ArchivedSegment:
    base, count = draw(OFFSET), draw(st.integers(1, 4))
    epochs = tuple(EpochStart(3 * number, base + number) for number in range(count))
    marks = tuple(Mark(base + number, 7 * number, number - 1) for number in range(count))
    segment = replace(archived_segment(base, base + 5), epochs=epochs, marks=marks)
    return replace(
        segment, crc=draw(st.integers(0, (1 << 32) - 1)), aborted=draw(st.booleans()), transactional=draw(st.booleans())
    )


CHANGES = st.one_of(
    segments().map(Add),
    OFFSET.map(Start),
    OFFSET.map(Truncate),
    st.builds(Snapshot, OFFSET, OFFSET, st.lists(segments(), max_size=3).map(tuple)),
)
ENTRIES = st.builds(Entry, st.integers(0, 1 << 40), st.integers(-1, 1 << 31), st.integers(-1, 1 << 31), CHANGES)
ENTRY = Entry(5, 2, 1, Add(archived_segment(0, 10)))


@given(ENTRIES)
def test_what_was_written_is_read(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize("change", [{"size": 50 << 30}, {"size": 1 << 31}, {"aux_size": (256 << 20) + 1}])
def test_a_segment_that_is_larger_than_any_is_refused(change: dict[str, int]) -> None:
    segment = replace(archived_segment(0, 10), **change)  # type: ignore[arg-type]
    with pytest.raises(BrokenManifest, match="more than a segment has"):
        decode_entry(encode_entry(replace(ENTRY, change=Add(segment))))


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenManifest):
        decode_entry(data)


WRONG: list[Any] = [
    None,
    True,
    -1,
    1 << 70,
    1.5,
    float("nan"),
    "",
    "add",
    [],
    [[]],
    [[0, 0]],
    [[0, 0, None]],
    {},
    {"a": 1},
]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_field_that_is_something_else_is_refused_or_read(value: Any) -> None:
    """One error class, whatever stands in any place of the document."""
    whole: Any = json.loads(encode_entry(ENTRY))
    segment = whole["segment"]
    changed = [whole | {name: value} for name in whole]
    changed += [whole | {"segment": segment | {name: value}} for name in segment]
    for document in changed:
        with contextlib.suppress(BrokenManifest):
            decode_entry(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": 10}, "no range"),
        ({"base": True}, "base is no number"),
        ({"end": 1 << 63}, "end is no number"),
        ({"size": -1}, "size is no number"),
        ({"name": "../../etc/passwd"}, "no name of an object"),
        ({"aborted": 1}, "aborted is neither"),
        ({"marks": []}, "marks"),
        ({"marks": [[0, 0]]}, "not 3 numbers"),
        ({"marks": [[0, 5, -1]]}, "position 0"),
        ({"marks": [[1, 0, -1]]}, "position 0"),
        ({"marks": [[0, 0, -1], [3, 0, 1]]}, "do not grow"),
        ({"marks": [[0, 0, -1], [3, 100, 1]]}, "leave the segment"),
        ({"marks": [[0, 0, -1], [10, 50, 1]]}, "leave the segment"),
        ({"epochs": []}, "epochs"),
        ({"epochs": [[1, 2]]}, "epochs"),
        ({"epochs": [[1, 0], [0, 4]]}, "epochs"),
        ({"epochs": [[1, 0], [2, 10]]}, "epochs"),
        ({"epochs": 5}, "epochs is no list"),
    ],
)
def test_a_segment_that_contradicts_itself_is_refused(changed: dict[str, Any], message: str) -> None:
    document: Any = json.loads(encode_entry(ENTRY))
    document["segment"] |= changed
    with pytest.raises(BrokenManifest, match=message):
        decode_entry(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 100_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b'{"version": 2}', "later pykafka"),
        (b'{"version": 1, "number": 1, "epoch": 1, "broker": 1, "kind": "undo"}', "unknown kind 'undo'"),
        (b"[]", "not an object"),
    ],
)
def test_hostile_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BrokenManifest, match=message):
        decode_entry(data)


def test_a_later_field_is_ignored() -> None:
    document = json.loads(encode_entry(ENTRY)) | {"note": "of a later version"}
    assert decode_entry(json.dumps(document).encode()) == ENTRY
