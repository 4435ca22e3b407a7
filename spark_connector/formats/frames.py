"""Where a value says which schema it was written with: in its first bytes, or in a header of its record.

A registry has a `Framing`: the places to look at, in order. They are read by columns: what stands at a place is the
`head` of a row, and Python looks at each distinct head of a batch once. Called by the decoders of formats that a schema
registry's serializers write. They decode a batch group by group, one for each schema in it: `decoded_by_schema` splits
the batch and puts the rows back to their places. A batch of one schema, as most are, is one group and is neither copied
nor put back.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.value_decoder import BadValue, Decoded, scattered
from spark_connector.formats.value_format import FRAME, NO_FRAME, framed_id

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Key = int | str
"""By what a registry finds a schema: an id, a GUID, or what else it has."""
LONGEST_PATH: Final = 64
"""Most indexes of a message's place in its file."""
_ID, _GUID = 4, 16
LARGEST: Final = 64 << 20
"""Bytes of a value that is inflated."""


class SchemaId(NamedTuple):
    """What a head says."""

    key: Key
    begin: int = 0
    """Bytes of the value before the data."""
    message: Hashable = None
    """Of protobuf, where the head says it: the place of the message in the schema, as `is_at` takes it."""
    is_deflated: bool = False
    """Whether the data is compressed with zlib."""

    @property
    def name(self) -> str:
        """For errors."""
        return f"schema id {self.key}"


class Place(NamedTuple):
    """Where a head stands: in the last header of a name, or in the first `length` bytes of the value."""

    parse: Callable[[bytes], SchemaId | None]
    """What a head says; None if another place may say it. Raises BadValue for one that nobody can mean."""
    length: int = 0
    header: str | None = None


class Group(NamedTuple):
    """The values of a batch with one schema id."""

    schema: SchemaId | None
    """None: values without a prefix."""
    rows: Rows
    """Their places in the batch, ascending."""
    values: pa.Array
    """Binary, without nulls, still with the prefix; the batch's own array if all of its rows are here."""

    def data(self) -> pa.Array:
        """The values without the prefix. Copies them, because in Arrow's binary array the values touch."""
        if self.schema is None or not self.schema.begin:
            return self.values
        return pc.binary_replace_slice(self.values, 0, self.schema.begin, b"")  # binary_slice fails on some batches


class Frames(NamedTuple):
    """A batch by schemas. A row that is null is in no group and is not bad."""

    groups: list[Group]
    """Those without an id first, the others in order of their first rows."""
    bad: Mapping[int, str]
    """Rows without an id, or with a broken one, in order, to the reason."""


class Splits(Protocol):
    """Splits a batch by schemas: a Framing, or what looks at each value."""

    @property
    def reads_headers(self) -> bool:
        """Whether `split` has a use for headers."""

    def split(self, values: pa.Array, headers: pa.Array | None = None, *, is_plain_too: bool = False) -> Frames:
        """Group `values` (binary) by schema. `headers`: of the rows, as records have them. `is_plain_too`: what has no
        id, the empty value among them, is no bad row but the group without one."""


@dataclass(frozen=True)
class Framing:
    """The places where a registry's serializers write the id of a schema, in the order in which they are looked at."""

    places: tuple[Place, ...]
    missing: str = NO_FRAME
    """Why a value is bad that has no id at any place."""
    message_of: Callable[[bytes, int], tuple[Hashable, int]] | None = None
    """Of protobuf: (place of the message, begin of the message) from what follows the id. Raises BadValue."""

    def message(self, raw: bytes, at: int, /) -> tuple[Hashable, int]:
        """As `message_of`, which registries have whose serializers write protobuf."""
        assert self.message_of is not None
        return self.message_of(raw, at)

    @property
    def reads_headers(self) -> bool:
        """As Splits."""
        return any(place.header is not None for place in self.places)

    def split(self, values: pa.Array, headers: pa.Array | None = None, *, is_plain_too: bool = False) -> Frames:
        """As Splits."""
        alike = self._of_one_head(values, headers)
        if alike is not None:
            return alike
        todo = values.is_valid().to_numpy(zero_copy_only=False).copy()
        rows_of: dict[SchemaId, list[Rows]] = {}
        bad: dict[int, str] = {}
        for place in self.places:
            heads = _heads(place, values, headers) if todo.any() else None
            if heads is None:
                continue
            if not todo.all():  # what is done may begin with anything
                heads = pc.if_else(pa.array(todo), heads, None)
            coded = pc.dictionary_encode(heads)
            indices = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            for index, head in enumerate(coded.dictionary.to_pylist()):
                try:
                    found = place.parse(head)
                except BadValue as error:
                    rows = _taken(todo, indices == index)
                    bad.update(dict.fromkeys(rows.tolist(), str(error)))
                else:
                    if found is not None:
                        rows_of.setdefault(found, []).append(_taken(todo, indices == index))
        groups: list[Group] = []
        for found, parts in rows_of.items():
            groups += _group(found, np.sort(np.concatenate(parts)), values, bad)
        if todo.any():
            rows = np.flatnonzero(todo)
            if is_plain_too:
                groups[:0] = _group(None, rows, values, bad)
            else:
                bad.update(dict.fromkeys(rows.tolist(), self.missing))
        return Frames(groups, dict(sorted(bad.items())))

    def _of_one_head(self, values: pa.Array, headers: pa.Array | None) -> Frames | None:
        """The batch as `split` gives it if all of its values begin with the first one's head, as most do, and no record
        has headers: a tenth of the work. None for any other batch."""
        if not len(values) or values.null_count or (headers is not None and headers.null_count < len(headers)):
            return None
        for place in self.places:
            if place.header is not None:
                continue
            head = values[0].as_py()[: place.length]
            if len(head) < place.length or not pc.all(pc.starts_with(values, head)).as_py():
                return None
            try:
                found = place.parse(head)
            except BadValue:
                return None
            if found is not None:
                bad: dict[int, str] = {}
                return Frames(_group(found, np.arange(len(values)), values, bad), bad)
        return None


def id_header(column: str) -> str:
    """The header that has the id of the schema of keys or values, as Confluent calls it."""
    return f"__{column}_schema_id"


def confluents(column: str, format: str) -> Framing:
    """Confluent's: the header `__value_schema_id` (of keys `__key_schema_id`) or, where there is none, the prefix."""
    name = id_header(column)

    def header(head: bytes) -> SchemaId:
        length = 1 + {0: _ID, 1: _GUID}.get(head[0], len(head)) if head else 1
        if not 1 < length <= len(head):
            raise BadValue(f"its header {name} is no schema's id or GUID: {len(head)} bytes, {head[:20].hex()}")
        key = int.from_bytes(head[1:length]) if head[0] == 0 else str(uuid.UUID(bytes=head[1:length]))
        if format == "protobuf" and length == len(head):
            raise BadValue(f"its header {name} has no place of a message: {len(head)} bytes, {head[:20].hex()}")
        message, end = _indexes(head, length) if format == "protobuf" else (None, length)
        if end != len(head):
            raise BadValue(f"its header {name} is too long: {len(head)} bytes, {head[:20].hex()}")
        return SchemaId(key, 0, message)

    return Framing((Place(header, header=name), Place(_prefix, FRAME)), NO_FRAME, _indexes)


def _prefix(head: bytes) -> SchemaId | None:
    """A zero byte and an id in four bytes."""
    if head[:1] != b"\0":
        return None
    found = framed_id(head)
    if found is None:
        raise BadValue(NO_FRAME)
    return SchemaId(found, FRAME)


def _indexes(raw: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """(place of the message in its file, begin of the message): zigzag varints, the first one says how many."""
    if at == len(raw):
        raise BadValue(NO_FRAME)
    count, at = varint(raw, at)
    count = count >> 1 ^ -(count & 1)
    if not 0 <= count <= LONGEST_PATH:
        raise BadValue(f"its prefix has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = varint(raw, at)
        indexes.append(index >> 1 ^ -(index & 1))
    return tuple(indexes) or (0,), at


def varint(raw: bytes, at: int) -> tuple[int, int]:
    """(number, its end). Raises BadValue."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(raw):
            break
        number |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return number, at
    raise BadValue("its prefix ends within the message indexes")


def decoded_by_schema(
    frames: Frames, length: int, kind: pa.DataType, decode: Callable[[Group], Decoded | str]
) -> Decoded:
    """Decode a batch of `length` rows group by group to one column of `kind`. `decode` returns a row of `kind` for each
    of the group's, or the reason why none of them can be read."""
    bad = dict(frames.bad)
    parts = []
    for group in frames.groups:
        decoded = decode(group)
        if isinstance(decoded, str):
            bad.update(dict.fromkeys(group.rows.tolist(), decoded))
        elif len(group.rows) == length:
            return decoded
        else:
            parts.append((group.rows, decoded))
    if not parts:
        return Decoded(pa.nulls(length, kind), dict(sorted(bad.items())))
    made = scattered(length, parts)
    return Decoded(made.column, dict(sorted({**made.bad, **bad}.items())))


def _heads(place: Place, values: pa.Array, headers: pa.Array | None) -> pa.Array | None:
    """What stands at a place, null where there is nothing; None if that is so in all rows."""
    if place.header is None:
        return pc.binary_slice(values, 0, place.length)
    if headers is None or headers.null_count == len(headers):
        return None
    every = pc.list_flatten(headers)
    hit = pc.equal(every.field("key"), place.header)
    rows = pc.list_parent_indices(headers).filter(hit).to_numpy()
    if not len(rows):
        return None
    found = every.field("value").filter(hit).fill_null(b"")
    which = np.full(len(values), -1, np.int64)
    which[rows] = np.arange(len(rows))  # of several headers of a name the last counts, as for Kafka's own clients
    return found.take(pa.array(which, mask=which < 0))


def _taken(todo: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> Rows:
    """The rows of `mask` that are still to do, which they are no more."""
    rows = np.flatnonzero(todo & mask).astype(np.int64)
    todo[rows] = False
    return rows


def _group(found: SchemaId | None, rows: Rows, values: pa.Array, bad: dict[int, str]) -> list[Group]:
    """One, or none if there are no rows, or all of them turn out to be bad."""
    if not len(rows):
        return []
    own = values if len(rows) == len(values) else values.take(pa.array(rows))
    if found is None or not found.is_deflated:
        return [Group(found, rows, own)]
    inflated = [_inflated(raw[found.begin :]) for raw in own.to_pylist()]
    bad.update({row: one for row, one in zip(rows.tolist(), inflated, strict=True) if isinstance(one, str)})
    good = [place for place, one in enumerate(inflated) if isinstance(one, bytes)]
    if not good:
        return []
    data = pa.array([inflated[place] for place in good], pa.binary())
    return [Group(found._replace(begin=0, is_deflated=False), rows[good], data)]


def _inflated(raw: bytes) -> bytes | str:
    """The data, or why there is none: it may be a bomb."""
    machine = zlib.decompressobj()
    try:
        data = machine.decompress(raw, LARGEST)
    except zlib.error as error:
        return f"its data is not compressed with zlib: {error}"
    if machine.unconsumed_tail:
        return f"its data has more than {LARGEST >> 20} MiB when it is inflated"
    return data if machine.eof else "its compressed data is cut off"
