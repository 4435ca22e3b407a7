"""The elements of an Arrow array as Python objects that compare equal if they are, whatever they are."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa


def exact(array: pa.Array) -> list[Any]:
    """Times and dates as numbers, which need not be ones that Python has, and floats as text, so that NaN is NaN."""
    kind = array.type
    if pa.types.is_struct(kind):
        children = [exact(child) for child in array.flatten()]
        rows = zip(*children, strict=True) if children else [()] * len(array)
        found: list[Any] = [dict(zip((one.name for one in kind), row, strict=True)) for row in rows]
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = list(zip(exact(array.keys), exact(array.items), strict=True)) if pa.types.is_map(kind) else []
        inner = inner or exact(array.values)
        edges = array.offsets.to_pylist()
        found = [inner[begin:end] for begin, end in itertools.pairwise(edges)]
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return array.view(pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).to_pylist()
    elif pa.types.is_floating(kind):
        return [None if one is None else repr(one) for one in array.to_pylist()]
    else:
        return array.to_pylist()
    return [one if there else None for one, there in zip(found, array.is_valid().to_pylist(), strict=True)]
