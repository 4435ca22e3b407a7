"""Puts the wire values of a batch together to messages: in the kernel (`_kernel_protobuf_encode.c`), or in Python.

protobuf_encoder.py fills it. A node is a message type at its place, with a row for each of its messages; a field has
the values of all rows. Numbers of kinds and shapes are the kernel's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from broker.records import native

VARINT, FOUR, EIGHT, BYTES, MESSAGE, GROUP = range(6)
ONE, LIST, PACKED = range(3)
_WIRE: Final = (0, 5, 1, 2, 2, 3)
_END_GROUP: Final = 4
_LENGTH: Final = 2

Array = np.ndarray[Any, Any]


class _Field(NamedTuple):
    number: int
    kind: int = VARINT
    shape: int = ONE
    child: int = -1
    mask: Array | None = None
    """Of fields that are not repeated: which rows have it; None: all."""
    edges: Array | None = None
    """Of repeated ones: where the elements of each row begin and end."""
    values: Array | None = None
    texts: Array | None = None
    """Where texts begin and end in `values`."""


class Writer:
    """The messages of one batch."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, int]] = []
        self._fields: list[_Field] = []

    def node(self, rows: int, numbers: list[int]) -> int:
        """Add a message type with the fields `numbers`, ascending; the first one is that of the values."""
        self._nodes.append((len(self._fields), len(numbers), rows))
        self._fields += [_Field(number) for number in numbers]
        return len(self._nodes) - 1

    def place(self, node: int, number: int) -> int:
        first, count, _ = self._nodes[node]
        return next(index for index in range(first, first + count) if self._fields[index].number == number)

    def set(
        self,
        place: int,
        kind: int,
        shape: int,
        *,
        mask: Array | None = None,
        edges: Array | None = None,
        values: Array | None = None,
        texts: Array | None = None,
        child: int = -1,
    ) -> None:
        self._fields[place] = _Field(
            self._fields[place].number,
            kind,
            shape,
            child,
            None if mask is None or shape != ONE else np.ascontiguousarray(mask, np.uint8),
            None if edges is None else np.ascontiguousarray(edges, np.int32),
            None if values is None else np.ascontiguousarray(values),
            None if texts is None else np.ascontiguousarray(texts, np.int32),
        )

    def written(self, rows: int, prefix: bytes) -> pa.Array:
        """The messages, each behind `prefix`, as a binary array."""
        if native.kernel is None:
            return pa.array([prefix + self._message(0, row) for row in range(rows)], pa.binary())
        edges, data = native.kernel.protobuf_encode(
            rows,
            prefix,
            np.array(self._nodes, np.int32),
            np.array([one[:4] for one in self._fields], np.int32),
            [(one.mask, one.edges, one.values, one.texts) for one in self._fields],
        )
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(edges), pa.py_buffer(data)])

    # ---- without the kernel

    def _message(self, node: int, row: int) -> bytes:
        first, count, _ = self._nodes[node]
        return b"".join(self._field(one, row) for one in self._fields[first : first + count])

    def _field(self, one: _Field, row: int) -> bytes:
        if one.edges is None:
            return self._tagged(one, row) if one.mask is None or one.mask[row] else b""
        places = range(int(one.edges[row]), int(one.edges[row + 1]))
        if one.shape != PACKED:
            return b"".join(self._tagged(one, place) for place in places)
        packed = b"".join(self._value(one, place) for place in places)
        return _number(one.number << 3 | _LENGTH) + _number(len(packed)) + packed if places else b""

    def _tagged(self, one: _Field, place: int) -> bytes:
        return _number(one.number << 3 | _WIRE[one.kind]) + self._value(one, place)

    def _value(self, one: _Field, place: int) -> bytes:
        if one.kind == MESSAGE:
            inner = self._message(one.child, place)
            return _number(len(inner)) + inner
        if one.kind == GROUP:
            return self._message(one.child, place) + _number(one.number << 3 | _END_GROUP)
        assert one.values is not None
        if one.kind == BYTES:
            assert one.texts is not None
            text = one.values[one.texts[place] : one.texts[place + 1]].tobytes()
            return _number(len(text)) + text
        return _number(int(one.values[place])) if one.kind == VARINT else one.values[place].tobytes()


def _number(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
