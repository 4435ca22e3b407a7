"""Columns to Protobuf messages, as Spark's to_protobuf writes a struct with a given message type.

record_encoder.py calls it in tasks; on the driver it says, by ConfigError, what does not fit. Columns are matched with
fields by name, whatever the case. A column without a field is refused, and so is a required field without a column.
Null is a field that is not there, or the default of a required one. Here a column becomes the numbers and bytes of the
wire format, as numpy arrays; protobuf_writer.py puts them together, with the bytes that protobuf's own runtime writes
(fields and the keys of maps in order).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats.protobuf_columns import EMPTY, WRAPPERS, Proto, is_moment, kind_of
from spark_connector.formats.protobuf_descriptors import message_of
from spark_connector.formats.protobuf_writer import (
    BYTES,
    EIGHT,
    FOUR,
    GROUP,
    LIST,
    MESSAGE,
    ONE,
    PACKED,
    VARINT,
    Writer,
)
from spark_connector.formats.registered_protobuf import registered_protobuf
from spark_connector.formats.text_encoder import valid_text
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.value_format import ProtobufSchema

__all__ = ["ProtobufEncoder", "registered_protobuf"]  # what record_encoder.py imports where the library is there

Array = np.ndarray[Any, Any]
_INTEGERS: Final = {
    # kind: (wire, bits, signed, zigzag)
    "int32": (VARINT, 32, True, False),
    "int64": (VARINT, 64, True, False),
    "uint32": (VARINT, 32, False, False),
    "uint64": (VARINT, 64, False, False),
    "sint32": (VARINT, 32, True, True),
    "sint64": (VARINT, 64, True, True),
    "fixed32": (FOUR, 32, False, False),
    "fixed64": (EIGHT, 64, False, False),
    "sfixed32": (FOUR, 32, True, False),
    "sfixed64": (EIGHT, 64, True, False),
}
_UNPACKED: Final = {"string", "bytes", "message", "group"}
_OTHERS: Final = {"bool": VARINT, "float": FOUR, "double": EIGHT, "string": BYTES, "bytes": BYTES, "enum": VARINT}


class ProtobufEncoder:
    """Encodes rows of the Arrow type `type` as messages of `schema`, each behind `prefix`."""

    def __init__(self, schema: ProtobufSchema, type: pa.StructType, prefix: bytes = b"") -> None:
        """Raises ConfigError for a type that is not written as this message."""
        self._message = message_of(schema)
        self._prefix = prefix
        self.encode(pa.array([], type))

    def encode(self, rows: pa.StructArray) -> Encoded:
        """A row that is null is a null value."""
        if rows.null_count:
            places = np.flatnonzero(rows.is_valid().to_numpy(zero_copy_only=False))
            made = self.encode(rows.drop_null())
            indices = np.full(len(rows), -1, np.int64)
            indices[places] = np.arange(len(places))
            values = made.values.take(pa.array(indices, mask=indices < 0))
            return Encoded(values, {int(places[row]): why for row, why in made.bad.items()})
        batch = _Batch()
        batch.message(self._message, rows, np.arange(len(rows)), "", np.ones(len(rows), bool))
        values = batch.writer.written(len(rows), self._prefix)
        if batch.bad:
            there = np.ones(len(rows), bool)
            there[list(batch.bad)] = False
            values = pc.if_else(pa.array(there), values, pa.scalar(None, pa.binary()))
        return Encoded(values, dict(sorted(batch.bad.items())))


class _Batch:
    """The columns of one batch on their way to the writer. `owners`: for each value the row of the batch it is in."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.bad: dict[int, str] = {}

    def refuse(self, wrong: Array, owners: Array, why: Callable[[int], str]) -> None:
        """The rows of the values where `wrong` are bad; `why` gets the place of a value."""
        for place in np.flatnonzero(wrong).tolist():
            self.bad.setdefault(int(owners[place]), why(place))

    def message(self, message: Proto, rows: pa.StructArray, owners: Array, path: str, exists: Array) -> int:
        """Add a node for `rows`; its index. `exists`: which of them are messages. The others are null, or lie within a
        null, and nothing is missing in them."""
        found: dict[int, tuple[Proto, pa.Array]] = {}
        columns = rows.flatten() if rows.null_count else [rows.field(index) for index in range(rows.type.num_fields)]
        for name, column in zip((one.name for one in rows.type), columns, strict=True):
            if name == EMPTY and not message.fields:  # as retain.empty.message.types reads a message without fields
                there = column.is_valid().to_numpy(zero_copy_only=False)
                self.refuse(there, owners, _said(f"{path}{EMPTY} is not null, but the message has no field for it"))
                continue
            proto = _field_of(message, name, path)
            if proto.number in found:
                raise ConfigError(f"two columns are for field {path}{proto.name}")
            found[proto.number] = proto, column
        for proto in message.fields:
            if proto.is_required and proto.number not in found:
                raise ConfigError(f"field {path}{proto.name} is required, and no column has its name")
        node = self.writer.node(len(rows), sorted(found))
        oneofs: dict[str, Array] = {}
        for number in sorted(found):
            proto, column = found[number]
            place = self.writer.place(node, number)
            if proto.containing_oneof is not None and len(proto.containing_oneof.fields) > 1:
                there = column.is_valid().to_numpy(zero_copy_only=False)
                name = proto.containing_oneof.name
                before = oneofs.setdefault(name, np.zeros(len(rows), bool))
                self.refuse(there & before, owners, _said(f"several fields of oneof {path}{name} are set"))
                oneofs[name] = before | there
            self._field(proto, column, place, owners, path + proto.name, exists)
        return node

    def _field(self, proto: Proto, column: pa.Array, place: int, owners: Array, path: str, exists: Array) -> None:
        is_map = proto.message_type is not None and proto.message_type.GetOptions().map_entry
        if pa.types.is_null(column.type):
            if proto.is_required:
                raise ConfigError(f"field {path} is required, and its column has no type: cast it")
            return self._absent(proto, place, len(column), is_map)
        if is_map:
            return self._map(proto, column, place, owners, path)
        if proto.is_repeated:
            if not pa.types.is_list(column.type):
                raise _misfit(column.type, proto, path)
            column = _without_hidden(column)
            edges, elements = _edges(column)
            inner = np.repeat(owners, np.diff(edges))
            self.refuse(
                elements.is_null().to_numpy(zero_copy_only=False), inner, _said(f"field {path} has a null element")
            )
            return self._values(proto, elements, place, inner, path, np.ones(len(elements), bool), edges)
        return self._values(proto, column, place, owners, path, exists)

    def _absent(self, proto: Proto, place: int, rows: int, is_map: bool) -> None:
        if is_map or proto.is_repeated:
            self.writer.set(place, VARINT, LIST, edges=np.zeros(rows + 1, np.int32), values=np.zeros(0, np.uint64))
        else:
            self.writer.set(place, VARINT, ONE, mask=np.zeros(rows, bool), values=np.zeros(rows, np.uint64))

    def _values(
        self,
        proto: Proto,
        column: pa.Array,
        place: int,
        owners: Array,
        path: str,
        exists: Array,
        edges: Array | None = None,
    ) -> None:
        """The values of a field; with the edges of its lists, if it is repeated. `exists`: which have a message or a
        list around them."""
        kind = kind_of(proto)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        shape = ONE if edges is None else PACKED if proto.is_packed and kind not in _UNPACKED else LIST
        if proto.message_type is not None:
            if proto.is_required:
                self.refuse(exists & ~there, owners, _said(f"field {path} is null, but it is required"))
            rows = _as_message(proto, column, path)
            child = self.message(proto.message_type, rows, owners, f"{path}.", exists & there)
            self.writer.set(place, GROUP if kind == "group" else MESSAGE, shape, edges=edges, mask=there, child=child)
            return
        wire, values, texts = self._wire(proto, column, owners, path)
        if edges is None and proto.is_required and column.null_count:
            there = np.ones(len(column), bool)
        elif edges is None and not proto.has_presence and not _in_map(proto):
            there &= (values != 0) if texts is None else np.diff(texts) > 0
        self.writer.set(
            place, wire, shape, edges=edges, mask=None if _in_map(proto) else there, values=values, texts=texts
        )

    def _wire(self, proto: Proto, column: pa.Array, owners: Array, path: str) -> tuple[int, Array, Array | None]:
        """(how it is written, the values, where texts begin and end). Null is written as the default, if at all."""
        kind, given = kind_of(proto), column.type
        if pa.types.is_string(given):
            column = valid_text(column)
        misfit = _misfit(given, proto, path)
        if kind in _INTEGERS and (pa.types.is_integer(given) or _is_date(given, kind) or _is_wide(given, kind)):
            return self._integers(proto, column, owners, path)
        if kind == "enum" and (pa.types.is_string(given) or given == pa.int32()):
            return VARINT, self._symbols(proto, column, owners, path), None
        wire = _OTHERS.get(kind, -1)
        fits = {
            "bool": pa.types.is_boolean,
            "float": lambda one: one == pa.float32(),
            "double": pa.types.is_floating,
            "string": pa.types.is_string,
            "bytes": pa.types.is_binary,
        }.get(kind)
        if fits is None or not fits(given):
            raise misfit
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(_default(proto), given))
        if wire == BYTES:
            _, edges, data = column.buffers()
            offsets = (
                np.frombuffer(edges, np.int32)[column.offset : column.offset + len(column) + 1]
                if len(column)
                else np.zeros(1, np.int32)
            )
            return BYTES, np.frombuffer(data or b"", np.uint8), offsets
        if kind == "bool":
            return VARINT, column.to_numpy(zero_copy_only=False).astype(np.uint64), None
        floats = column.to_numpy(zero_copy_only=False)
        return (
            (FOUR, floats.astype(np.float32).view(np.uint32), None)
            if kind == "float"
            else (EIGHT, floats.astype(np.float64).view(np.uint64), None)
        )

    def _integers(self, proto: Proto, column: pa.Array, owners: Array, path: str) -> tuple[int, Array, Array | None]:
        wire, bits, signed, zigzag = _INTEGERS[kind_of(proto)]
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        default = _default(proto)
        if pa.types.is_decimal(column.type):
            column = pc.fill_null(column, pa.scalar(default, column.type)) if column.null_count else column
            numbers, wrong = _unsigned(column)
            self.refuse(wrong, owners, lambda at: f"field {path}: {column[at].as_py()} does not fit into uint64")
            return wire, numbers, None
        width = column.type.bit_width
        if column.null_count:
            default = default - (1 << bits) if not signed and default >= 1 << (bits - 1) and width <= bits else default
            column = pc.fill_null(column, pa.scalar(default if _fits(default, width) else 0, column.type))
        numbers = column.to_numpy(zero_copy_only=False).astype(np.int64)
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed or width <= bits else (0, (1 << bits) - 1)
        if not signed and width < bits:
            low = 0
        wrong = (numbers < low) | (numbers > min(high, (1 << 63) - 1))
        self.refuse(wrong, owners, lambda at: f"field {path}: {numbers[at]} does not fit into {kind_of(proto)}")
        if zigzag:
            numbers = (numbers << 1) ^ (numbers >> 63)
        unsigned = numbers.view(np.uint64)
        if bits == 32 and (not signed or zigzag):
            unsigned = unsigned & np.uint64(0xFFFFFFFF)
        return wire, unsigned.astype(np.uint32) if wire == FOUR else unsigned, None

    def _symbols(self, proto: Proto, column: pa.Array, owners: Array, path: str) -> Array:
        """The numbers of an enum's names; or numbers, of which it must have each."""
        known = {value.name: value.number for value in proto.enum_type.values}
        there = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_string(column.type):
            places = pc.fill_null(pc.index_in(column, pa.array(list(known), pa.string())), -1).to_numpy()
            numbers = np.array([*known.values(), 0], np.int64)[places]
            wrong = there & (places < 0)
        else:
            numbers = pc.fill_null(column, 0).to_numpy().astype(np.int64)
            wrong = there & ~np.isin(numbers, list(known.values()))
        self.refuse(
            wrong,
            owners,
            lambda at: f"field {path}: enum {proto.enum_type.full_name} has no {column[at].as_py()!r:.60}",
        )
        numbers = np.where(there, numbers, _default(proto))
        made: Array = numbers.astype(np.int64).view(np.uint64)
        return made

    def _map(self, proto: Proto, column: pa.Array, place: int, owners: Array, path: str) -> None:
        """Entries in order of their keys; of one key the last entry."""
        if not pa.types.is_map(column.type):
            raise _misfit(column.type, proto, path)
        column = _without_hidden(column)
        edges, pairs = _edges(column)
        counts = np.diff(edges)
        rows = np.repeat(np.arange(len(column)), counts)
        keys, items = pairs.field(0), pairs.field(1)
        key, value = sorted(proto.message_type.fields, key=lambda one: one.number)
        if len(rows):
            kept = _in_order_of_keys(rows, keys, unsigned=kind_of(key) in {"uint32", "uint64", "fixed32", "fixed64"})
            keys, items, rows = keys.take(pa.array(kept)), items.take(pa.array(kept)), rows[kept]
            edges = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(column)))]).astype(np.int32)
        inner = owners[rows]
        if value.message_type is not None:
            self.refuse(items.is_null().to_numpy(zero_copy_only=False), inner, _said(f"map {path} has a null value"))
        node = self.writer.node(len(rows), [key.number, value.number])
        entries = np.ones(len(rows), bool)
        self._values(key, keys, self.writer.place(node, key.number), inner, f"{path}.key", entries)
        self._values(value, items, self.writer.place(node, value.number), inner, f"{path}.value", entries)
        self.writer.set(place, MESSAGE, LIST, edges=edges, child=node)


def _said(why: str) -> Callable[[int], str]:
    return lambda _: why


def _field_of(message: Proto, name: str, path: str) -> Proto:
    found = [one for one in message.fields if one.name.lower() == name.lower()]
    found = [one for one in found if one.name == name] or found
    if len(found) != 1:
        why = "no field" if not found else f"several fields ({', '.join(one.name for one in found)})"
        raise ConfigError(f"Protobuf message {message.full_name} has {why} for column {path}{name}")
    return found[0]


def _misfit(given: pa.DataType, proto: Proto, path: str) -> ConfigError:
    wanted = proto.message_type.full_name if proto.message_type is not None else kind_of(proto)
    many = "repeated " if proto.is_repeated else ""
    return ConfigError(f"a column of type {given} cannot be written as field {path}, which is {many}{wanted}")


def _as_message(proto: Proto, column: pa.Array, path: str) -> pa.StructArray:
    """The fields of a message, from a column that to_protobuf takes for it."""
    message, given = proto.message_type, column.type
    if pa.types.is_struct(given):
        return column
    if is_moment(message) and (pa.types.is_duration(given) or (pa.types.is_timestamp(given) and given.tz is not None)):
        if (message.name == "Timestamp") != pa.types.is_timestamp(given):
            raise _misfit(given, proto, path)
        unit = pa.duration("us") if pa.types.is_duration(given) else pa.timestamp("us", "UTC")
        micros = pc.fill_null(column.cast(unit).cast(pa.int64()), 0).to_numpy()
        seconds, rest = np.divmod(micros, 1_000_000)
        if message.name == "Duration":  # both parts have one sign
            back = (seconds < 0) & (rest > 0)
            seconds, rest = seconds + back, rest - back * 1_000_000
        return pa.StructArray.from_arrays(
            [pa.array(seconds), pa.array((rest * 1000).astype(np.int32))], names=["seconds", "nanos"]
        )
    if message.full_name in WRAPPERS:
        return pa.StructArray.from_arrays([column], names=["value"])
    raise _misfit(given, proto, path)


def _in_order_of_keys(rows: Array, keys: pa.Array, *, unsigned: bool) -> Array:
    places: Array
    if pa.types.is_string(keys.type):
        order = pc.sort_indices(pa.table({"row": rows, "key": keys}), [("row", "ascending"), ("key", "ascending")])
        places = order.to_numpy()
    else:
        if pa.types.is_decimal(keys.type):
            numbers = _unsigned(keys)[0]
        else:
            numbers = keys.to_numpy(zero_copy_only=False)
            numbers = numbers.astype(np.int64).view(np.uint64) if unsigned else numbers
        places = np.lexsort((np.arange(len(rows)), numbers, rows))
    sorted_keys, sorted_rows = keys.take(pa.array(places)), rows[places]
    if len(places) > 1:
        same = pc.equal(sorted_keys[1:], sorted_keys[:-1]).to_numpy(zero_copy_only=False)
        places = places[np.append(~(same & (sorted_rows[1:] == sorted_rows[:-1])), True)]
    return places


def _without_hidden(column: pa.Array) -> pa.Array:
    """Without elements under rows that are null."""
    return column.take(pa.array(np.arange(len(column)))) if column.null_count else column


def _edges(column: pa.Array) -> tuple[Array, pa.Array]:
    """(edges of the lists or maps from 0 on, their elements)."""
    if not len(column):
        return np.zeros(1, np.int32), column.values[:0]
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return edges - edges[0], column.values[edges[0] : edges[-1]]


def _default(proto: Proto) -> Any:
    if not proto.is_repeated:
        return proto.default_value
    return {"string": "", "bytes": b"", "bool": False}.get(kind_of(proto), 0)


def _in_map(proto: Proto) -> bool:
    return bool(proto.containing_type.GetOptions().map_entry)


def _is_date(given: pa.DataType, kind: str) -> bool:
    return bool(pa.types.is_date32(given) and kind == "int32")


def _is_wide(given: pa.DataType, kind: str) -> bool:
    return bool(pa.types.is_decimal(given) and given.scale == 0 and kind in {"uint64", "fixed64"})


def _unsigned(column: pa.Array) -> tuple[Array, Array]:
    """(decimals without a fraction as 64 bits, which do not fit)."""
    wide = column.cast(pa.decimal128(38, 0))
    words = np.frombuffer(wide.buffers()[1], np.uint64).reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
    return words[:, 0].copy(), words[:, 1] != 0


def _fits(number: int, width: int) -> bool:
    return -(1 << (width - 1)) <= number < 1 << (width - 1)
