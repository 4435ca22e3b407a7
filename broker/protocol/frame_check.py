"""Checks the lengths in a frame before kio decodes it.

Called by messages.py for every message. kio allocates memory for as many elements as an array announces. If there is
not enough memory, the process is aborted, and Python cannot catch that: thirty bytes could end a broker. So the frame
is walked first by kio's own schema. The walk reads only lengths, and skips elements of a fixed size all at once. A step
takes a buffer, a position and the end of the buffer, and returns the next position. It raises ValueError for an array,
string or tag that ends after the buffer, or that is null and must not be.

The same walk removes tagged fields that the schema does not know. A newer peer may send them; KIP-482 says that readers
ignore them, but kio refuses them. So a frame that has some is walked a second time.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import typing
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from broker.protocol.entities import unwrap_optional
from broker.protocol.wire import unsigned_varint

Buffer = memoryview | bytearray
Step = Callable[[Buffer, int, int], int]

_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class _Layout(NamedTuple):
    """How to skip a value.

    `size` is its fixed size in bytes, or -1. `untagged_size` is the size of a struct without tags, whose last byte is
    then 0, if only its tags make its size vary; else -1.
    """

    step: Step
    size: int = -1
    untagged_size: int = -1


def check_body(entity: Any, buffer: Buffer, position: int) -> None:
    """Raise ValueError, IndexError or struct.error unless a body of kio's class `entity` is at `position`."""
    _struct(entity).step(buffer, position, len(buffer))


def without_unknown_tags(header: Any, entity: Any, frame: memoryview) -> memoryview:
    """A copy of the frame (a `header`, then an `entity`) without unknown tagged fields. Raises as `check_body`."""
    copy = _Frame(frame)
    position = 4  # after a response's correlation id
    if any(field.name == "client_id" for field in dataclasses.fields(header)):
        position = _string(copy, 8, len(copy))  # the client id is never compact
    if header.__flexible__:
        position = _tags({}, copy, position, len(copy))
    _struct(entity).step(copy, position, len(copy))
    parts: list[bytes] = []
    done = 0
    for start, end, instead in sorted(copy.changes):
        parts += [bytes(copy[done:start]), instead]
        done = end
    return memoryview(b"".join([*parts, copy[done:]]))


class _Frame(bytearray):
    """A frame that collects the changes `_tags` wants to make: (start, end, new bytes)."""

    def __init__(self, frame: memoryview) -> None:
        super().__init__(frame)
        self.changes: list[tuple[int, int, bytes]] = []


@functools.cache
def _struct(entity: Any) -> _Layout:
    hints = typing.get_type_hints(entity)
    plain, tagged = [], {}
    for field in dataclasses.fields(entity):
        layout = _field(hints[field.name], field.metadata.get("kafka_type", ""), entity.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = layout.step
        else:
            plain.append(layout)
    size = sum(layout.size for layout in plain) if all(layout.size >= 0 for layout in plain) else -1
    if not entity.__flexible__ and size >= 0:
        return _fixed(size)
    steps = _merged(plain)
    if entity.__flexible__:
        steps.append(functools.partial(_tags, tagged))

    def walk(buffer: Buffer, position: int, end: int) -> int:
        for step in steps:
            position = step(buffer, position, end)
        return position

    return _Layout(walk, untagged_size=size + 1 if size >= 0 else -1)


def _merged(layouts: list[_Layout]) -> list[Step]:
    """The steps of the layouts; neighbours of fixed size become one step."""
    steps, run = [], 0
    for layout in layouts:
        if layout.size >= 0:
            run += layout.size
            continue
        if run:
            steps.append(_fixed(run).step)
        steps.append(layout.step)
        run = 0
    if run:
        steps.append(_fixed(run).step)
    return steps


def _field(hint: Any, kafka_type: str, flexible: bool) -> _Layout:
    hint, optional = unwrap_optional(hint)
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return _Layout(_array(_field(element, kafka_type, flexible), flexible, optional))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _Layout(functools.partial(_optional, _struct(hint).step)) if optional else _struct(hint)
    if kafka_type in _FIXED:
        return _fixed(_FIXED[kafka_type])
    if kafka_type not in _SIZED:
        raise TypeError(f"{kafka_type} is no type of Kafka's messages that is known here")
    return _Layout(_compact_bytes if flexible else _SIZED[kafka_type])


def _fixed(size: int) -> _Layout:
    def skip(buffer: Buffer, position: int, end: int) -> int:
        return _within(position + size, end)

    return _Layout(skip, size)


def _array(element: _Layout, flexible: bool, optional: bool) -> Step:
    step, size, untagged_size = element

    def walk(buffer: Buffer, position: int, end: int) -> int:
        if flexible:
            count, position = _unsigned_varint(buffer, position)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(buffer, position)
            position += 4
        if count < 0:
            if count < -1 or not optional:
                raise ValueError(f"an array of {count} elements")
            return position
        if count * max(size, 1) > end - position:
            raise ValueError(f"an array of {count} elements in {end - position} bytes")
        if size >= 0:
            return position + count * size
        after = position + count * untagged_size
        if count > 1 and untagged_size > 0 and after <= end:
            tag_counts = buffer[position + untagged_size - 1 : after : untagged_size]
            if bytes(tag_counts).count(0) == count:
                return after
        for _ in range(count):
            position = step(buffer, position, end)
        return position

    return walk


def _optional(step: Step, buffer: Buffer, position: int, end: int) -> int:
    """A nullable struct: a negative first byte means null."""
    present = buffer[position] < 0x80
    return step(buffer, position + 1, end) if present else position + 1


def _string(buffer: Buffer, position: int, end: int) -> int:
    return _within(position + 2 + max(_INT16.unpack_from(buffer, position)[0], 0), end)


def _bytes(buffer: Buffer, position: int, end: int) -> int:
    return _within(position + 4 + max(_INT32.unpack_from(buffer, position)[0], 0), end)


def _compact_bytes(buffer: Buffer, position: int, end: int) -> int:
    length, position = _unsigned_varint(buffer, position)
    return _within(position + max(length - 1, 0), end)


def _tags(known: dict[int, Step], buffer: Buffer, position: int, end: int) -> int:
    if not buffer[position]:
        return position + 1
    changes = buffer.changes if isinstance(buffer, _Frame) else None
    start, unknown = position, 0
    count, position = first = _unsigned_varint(buffer, position)
    for _ in range(count):
        begin = position
        tag, size_at = _unsigned_varint(buffer, position)
        size, position = _unsigned_varint(buffer, size_at)
        after = _within(position + size, end)
        if tag in known:
            held = len(changes or ())
            known[tag](buffer, position, after)
            if changes is not None and (inside := changes[held:]):
                smaller = size - sum(to - at - len(instead) for at, to, instead in inside)
                changes.append((size_at, position, unsigned_varint(smaller)))
        elif changes is not None:
            changes.append((begin, after, b""))
            unknown += 1
        position = after
    if changes is not None and unknown:
        changes.append((start, first[1], unsigned_varint(count - unknown)))
    return position


_SIZED: Final = {"string": _string, "bytes": _bytes, "records": _bytes}
"""What begins with its length, where it is not compact."""


def _unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ValueError("a varint of more than five bytes")


def _within(position: int, end: int) -> int:
    if position > end:
        raise ValueError(f"{position - end} bytes are missing")
    return position
