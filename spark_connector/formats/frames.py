"""Confluent's wire format by columns: a zero byte, the id of the writer's schema in four bytes, the data.

Called by the decoders of formats that a schema registry's serializers write. They decode a batch group by group, one
for each schema in it: `decoded_by_schema` splits the batch and puts the rows back to their places. A batch of one
schema, as most are, is one group and is neither copied nor put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.value_decoder import Decoded, scattered
from spark_connector.formats.value_format import FRAME, NO_FRAME, framed_id

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class Group(NamedTuple):
    """The values of a batch with one schema id."""

    schema_id: int | None
    """None: values without a prefix."""
    rows: Rows
    """Their places in the batch, ascending."""
    values: pa.Array
    """Binary, without nulls, still with the prefix; the batch's own array if all of its rows are here."""

    def data(self) -> pa.Array:
        """The values without the prefix. Copies them, because in Arrow's binary array the values touch."""
        if self.schema_id is None:
            return self.values
        return pc.binary_replace_slice(self.values, 0, FRAME, b"")  # binary_slice fails on some batches


class Frames(NamedTuple):
    """A batch by schemas. A row that is null is in no group and is not bad."""

    groups: list[Group]
    """In the order of their ids, one without an id first."""
    bad: Mapping[int, str]
    """Rows that are too short or do not begin with a zero byte, in order, to the reason."""


def split(values: pa.Array, *, is_plain_too: bool = False) -> Frames:
    """Group `values` (binary) by schema id. `is_plain_too`: what does not begin with a zero byte, the empty value among
    them, is no bad row but the group without an id."""
    schema_id = _only_id(values)
    if schema_id is not None:
        return Frames([Group(schema_id, np.arange(len(values), dtype=np.int64), values)], {})
    ids, kinds = _ids(values)
    wanted = ids[kinds == _FRAMED]
    groups = [_group(int(one), values, (kinds == _FRAMED) & (ids == one)) for one in np.unique(wanted)]
    if is_plain_too and (kinds == _PLAIN).any():
        groups.insert(0, _group(None, values, kinds == _PLAIN))
        kinds[kinds == _PLAIN] = _NULL
    bad = np.flatnonzero((kinds == _PLAIN) | (kinds == _SHORT)).tolist()
    return Frames(groups, dict.fromkeys(bad, NO_FRAME))


def decoded_by_schema(
    values: pa.Array,
    kind: pa.DataType,
    decode: Callable[[Group], Decoded | str],
    *,
    is_plain_too: bool = False,
) -> Decoded:
    """Decode `values` group by group to one column of `kind`. `decode` returns a row of `kind` for each of the group's,
    or the reason why none of them can be read."""
    frames = split(values, is_plain_too=is_plain_too)
    bad = dict(frames.bad)
    parts = []
    for group in frames.groups:
        decoded = decode(group)
        if isinstance(decoded, str):
            bad.update(dict.fromkeys(group.rows.tolist(), decoded))
        elif len(group.rows) == len(values):
            return decoded
        else:
            parts.append((group.rows, decoded))
    if not parts:
        return Decoded(pa.nulls(len(values), kind), dict(sorted(bad.items())))
    made = scattered(len(values), parts)
    return Decoded(made.column, dict(sorted({**made.bad, **bad}.items())))


_NULL, _FRAMED, _PLAIN, _SHORT = range(4)
"""Kinds of rows: null; with a prefix; without a zero byte; with one, but too short for a prefix."""


def _only_id(values: pa.Array) -> int | None:
    """The id if all rows have the same prefix."""
    if len(values) == 0 or values.null_count:
        return None
    prefix = values[0].as_py()[:FRAME]
    found = framed_id(prefix)
    return found if found is not None and pc.all(pc.starts_with(values, pattern=prefix)).as_py() else None


def _ids(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(id, kind) of each row."""
    kinds = np.full(len(values), _NULL, np.uint8)
    ids = np.zeros(len(values), np.int64)
    _, edges, content = values.buffers()
    if len(values) == 0 or edges is None:
        return ids, kinds
    offsets = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(content or b"", np.uint8)
    begins, lengths = offsets[:-1], np.diff(offsets)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    kinds[there] = _PLAIN
    some = np.flatnonzero(there & (lengths > 0))
    kinds[some[data[begins[some]] == 0]] = _SHORT
    whole = np.flatnonzero((kinds == _SHORT) & (lengths >= FRAME))
    kinds[whole] = _FRAMED
    for index in range(1, FRAME):
        ids[whole] = ids[whole] << 8 | data[begins[whole] + index]
    return ids, kinds


def _group(schema_id: int | None, values: pa.Array, mask: np.ndarray[Any, Any]) -> Group:
    rows = np.flatnonzero(mask).astype(np.int64)
    return Group(schema_id, rows, values if len(rows) == len(values) else values.take(pa.array(rows)))
