"""A column of bytes as base64 text, vectorised."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ALPHABET: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def base64_texts(column: pa.Array) -> pa.Array:
    """string, padded with `=`; null where `column` (binary) is null."""
    lengths = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    groups = -(-lengths // 3)
    ends = np.cumsum(groups)
    count = int(ends[-1]) if len(ends) else 0
    padded = np.zeros(count * 3, np.uint8)
    raw = b"" if not count else np.frombuffer(_data(column), np.uint8)
    if count:
        begins = np.cumsum(lengths) - lengths
        padded[np.arange(len(raw)) + np.repeat((ends - groups) * 3 - begins, lengths)] = raw
    triples = padded.reshape(count, 3)
    made = np.empty((count, 4), np.uint8)
    first, second, third = triples.T
    made[:, 0] = _ALPHABET[first >> 2]
    made[:, 1] = _ALPHABET[((first & 3) << 4) | (second >> 4)]
    made[:, 2] = _ALPHABET[((second & 15) << 2) | (third >> 6)]
    made[:, 3] = _ALPHABET[third & 63]
    last, left = ends - 1, lengths % 3
    made[last[left > 0], 3] = ord("=")
    made[last[left == 1], 2] = ord("=")
    offsets = np.concatenate(([0], ends * 4)).astype(np.int32)
    texts = pa.Array.from_buffers(pa.string(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(made)])
    return texts if not column.null_count else pc.if_else(column.is_valid(), texts, None)


def _data(column: pa.Array) -> memoryview:
    """The bytes of all values that are not null, in order."""
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(column) - column.null_count], column.drop_null()), b"")
    return memoryview(joined[0].as_buffer())
