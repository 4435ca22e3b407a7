"""Batches in Confluent's wire format, split by schema id."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.records.columns import HEADERS_TYPE
from spark_connector.formats.frames import Group, confluents, decoded_by_schema, id_header
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import NO_FRAME

FRAMING = confluents("value", "avro")


def key(group: Group) -> int | str | None:
    return None if group.schema is None else group.schema.key


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + data


def test_a_batch_of_one_schema_is_not_copied() -> None:
    values = pa.array([framed(7, b"a"), framed(7, b""), framed(7, b"bc")], pa.binary())
    frames = FRAMING.split(values)
    (group,) = frames.groups
    assert (key(group), group.rows.tolist(), frames.bad) == (7, [0, 1, 2], {})
    assert group.values is values
    assert frames.groups[0].data().to_pylist() == [b"a", b"", b"bc"]


def test_rows_are_grouped_by_id() -> None:
    values = [framed(2**32 - 1, b"a"), None, framed(0, b"b"), b"\0\0\0\0", b"", b"{}345", framed(0, b"")]
    frames = FRAMING.split(pa.array([b"x", *values, b"x"], pa.binary())[1:-1])
    assert [(key(group), group.rows.tolist(), group.data().to_pylist()) for group in frames.groups] == [
        (2**32 - 1, [0], [b"a"]),
        (0, [2, 6], [b"b", b""]),
    ]
    assert frames.bad == {3: NO_FRAME, 4: NO_FRAME, 5: NO_FRAME}


def test_values_without_a_prefix_may_be_wanted() -> None:
    frames = FRAMING.split(pa.array([b"{}", framed(1, b"{}"), b"", b"\0", None], pa.binary()), is_plain_too=True)
    assert [(key(group), group.rows.tolist(), group.data().to_pylist()) for group in frames.groups] == [
        (None, [0, 2], [b"{}", b""]),
        (1, [1], [b"{}"]),
    ]
    assert frames.bad == {3: NO_FRAME}


@pytest.mark.parametrize("values", [[], [None, None], [b"", b"abcdef"]])
def test_batches_without_a_group(values: list[bytes | None]) -> None:
    frames = FRAMING.split(pa.array(values, pa.binary()))
    assert frames.groups == []
    assert list(frames.bad) == [row for row, value in enumerate(values) if value is not None]


def named(headers: list[tuple[str, bytes]]) -> list[dict[str, object]] | None:
    return [{"key": name, "value": value} for name, value in headers] or None


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=4) | st.builds(framed, st.integers(0, 2), st.just(b"")),
    st.lists(st.binary(max_size=3), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from([id_header("value"), "other"]), st.just(b"\0\0\0\0\1")), max_size=2),
    st.booleans(),
)
def test_values_that_begin_alike_are_split_as_among_others(
    head: bytes, rests: list[bytes], of_last: list[tuple[str, bytes]], is_plain_too: bool
) -> None:
    """A null among them, which is in no group, has them looked at one by one."""
    values = [head + rest for rest in rests]
    headers = pa.array([None] * (len(values) - 1) + [named(of_last)], HEADERS_TYPE)
    alone = FRAMING.split(pa.array(values, pa.binary()), headers, is_plain_too=is_plain_too)
    with_null = pa.concat_arrays([headers, pa.nulls(1, HEADERS_TYPE)])
    among = FRAMING.split(pa.array([*values, None], pa.binary()), with_null, is_plain_too=is_plain_too)
    assert alone.bad == among.bad
    shown = [
        [(group.schema, group.rows.tolist(), group.values.to_pylist()) for group in one.groups]
        for one in (alone, among)
    ]
    assert shown[0] == shown[1]


def lengths(group: Group) -> Decoded | str:
    """Stands for a decoder: a value's length, of ids below 3; the empty value is bad."""
    assert group.schema is not None
    assert isinstance(group.schema.key, int)
    if group.schema.key >= 3:
        return group.schema.name
    found = [len(value) for value in group.data().to_pylist()]
    bad = {row: "empty" for row, length in enumerate(found) if not length}
    return Decoded(pa.array([length or None for length in found], pa.int32()), bad)


@settings(max_examples=200, deadline=None)
@given(
    st.data(), st.lists(st.none() | st.binary(max_size=7) | st.builds(framed, st.integers(0, 4), st.binary(max_size=2)))
)
def test_every_row_comes_back_to_its_place(data: st.DataObject, values: list[bytes | None]) -> None:
    first = data.draw(st.integers(0, len(values)))
    array = pa.array(values, pa.binary())[first:]
    decoded = decoded_by_schema(FRAMING.split(array), len(array), pa.int32(), lengths)
    expected: list[int | None] = []
    bad = {}
    for row, value in enumerate(values[first:]):
        expected.append(None)
        if value is None:
            continue
        if len(value) < 5 or value[0]:
            bad[row] = NO_FRAME
        elif (schema_id := int.from_bytes(value[1:5])) >= 3:
            bad[row] = f"schema id {schema_id}"
        elif len(value) == 5:
            bad[row] = "empty"
        else:
            expected[-1] = len(value) - 5
    assert decoded.column.type == pa.int32()
    assert decoded.column.to_pylist() == expected
    assert list(decoded.bad.items()) == list(bad.items())
