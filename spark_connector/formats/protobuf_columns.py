"""What Spark shows of a Protobuf message: the Arrow type of its column, and how each of its fields is read and written.

The types are those of from_protobuf (Spark's `SchemaConverters`), and so are the options (`ProtobufRules`): a Timestamp
is a timestamp, a Duration an interval, an enum its name; other messages are structs, and oneofs are their fields. Every
field is nullable, as in from_protobuf's PERMISSIVE mode. A message without fields is left out, and so is what lies
deeper than `recursive.fields.max.depth` levels of a message that contains itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.value_format import MOST_PROTOBUF_LEVELS, ProtobufRules

_DEEPEST: Final = 64
_MOST_FIELDS: Final = 100_000
_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "uint64": pa.int64(),
    "int32": pa.int32(),
    "fixed64": pa.int64(),
    "fixed32": pa.int32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "uint32": pa.int32(),
    "enum": pa.string(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
}
_TYPE_NAMES: Final = (
    "double float int64 uint64 int32 fixed64 fixed32 bool string group message bytes uint32 enum sfixed32 sfixed64 "
    "sint32 sint64"
).split()
"""In the order of FieldDescriptorProto.Type, which begins with 1."""
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "String", "Bytes", "Float", "Double")
)
_MOMENTS: Final = {"Timestamp": ("timestamp", pa.timestamp("us", "UTC")), "Duration": ("duration", pa.duration("us"))}
WIDE_UNSIGNED: Final = {"uint32": pa.int64(), "uint64": pa.decimal128(20, 0)}
EMPTY: Final = "__dummy_field_in_empty_struct"
"""Spark's name of the field of a message without fields, with `retain.empty.message.types`."""

Proto = Any
"""A descriptor of protobuf's runtime, which has no types."""


@dataclass(frozen=True)
class Field:
    """A field of a message at its place in the column."""

    proto: Proto
    kind: str
    """The name of a scalar type in a .proto file; `enum`, `timestamp`, `duration`, `wrapper` (a message whose one field
    takes its place) or `message`."""
    type: pa.DataType
    """Of one value: a repeated field is a list of them, a map a map of them."""
    message: Message | None = None
    """What is in it, for timestamps, durations, wrappers, messages and the entries of maps."""
    is_map: bool = False
    is_wide: bool = False
    """`upcast.unsigned.ints` of an unsigned number."""
    emits_default: bool = False
    """`emit.default.values` of a field whose presence nobody records."""

    @property
    def name(self) -> str:
        return str(self.proto.name)

    @property
    def number(self) -> int:
        return int(self.proto.number)

    @property
    def is_list(self) -> bool:
        return bool(self.proto.is_repeated)

    @property
    def is_implicit(self) -> bool:
        """Whether a default value cannot be told from none."""
        return not self.is_list and not self.proto.has_presence

    @property
    def column(self) -> pa.DataType:
        """The type of the field's column."""
        return pa.list_(self.type) if self.is_list and not self.is_map else self.type

    @cached_property
    def symbols(self) -> Mapping[int, str]:
        """Of an enum: its names by number. The first name counts, as in Java."""
        found: dict[int, str] = {}
        for value in self.proto.enum_type.values:
            found.setdefault(value.number, value.name)
        return found

    @property
    def default(self) -> Any:
        """What stands for a value that is not there, as Arrow takes it; None for null."""
        if self.message is not None or self.is_list:
            return None
        if self.proto.has_default_value or self.emits_default:
            return self.shown(self.proto.default_value)
        return None

    def shown(self, value: Any) -> Any:
        """A scalar of protobuf's runtime as Arrow takes it."""
        if self.kind == "enum":
            return value if pa.types.is_integer(self.type) else self.symbol(value)
        if not self.is_wide and self.kind in _UNSIGNED and value >= 1 << (_UNSIGNED[self.kind] - 1):
            return value - (1 << _UNSIGNED[self.kind])
        return value

    def symbol(self, number: int) -> str:
        """The name of an enum's number; as Java names it where the enum has none."""
        return self.symbols.get(number) or f"UNKNOWN_ENUM_VALUE_{self.proto.enum_type.name}_{number}"


_UNSIGNED: Final = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}


@dataclass(frozen=True)
class Message:
    """A message at its place in the column."""

    proto: Proto
    fields: tuple[Field, ...]
    """In the order of the .proto file; without those that Spark does not show."""

    @property
    def type(self) -> pa.StructType:
        shown = [(one.name, one.column) for one in self.fields]
        return pa.struct(shown or [(EMPTY, pa.string())])


def kind_of(proto: Proto) -> str:
    """The type of a field as a .proto file names it."""
    return _TYPE_NAMES[int(proto.type) - 1]


def is_zero(value: Any) -> bool:
    """Whether it is the default of its type: -0.0 is not."""
    return not value and not (isinstance(value, float) and math.copysign(1, value) < 0)


def column_of(proto: Proto, rules: ProtobufRules) -> Message:
    """The message as Spark shows it. Raises ConfigError for one that it refuses."""
    made = _Columns(rules).message(proto, {proto.full_name: 1}, 0)
    if not made.fields and not rules.keeps_empty:
        raise ConfigError(
            f"Protobuf message {proto.full_name} has no fields that can be read: set the option "
            "'retain.empty.message.types' to keep it"
        )
    return made


class _Columns:
    def __init__(self, rules: ProtobufRules) -> None:
        self._rules = rules
        self._fields = 0
        """So far: where messages lie within themselves, they multiply from level to level."""

    def message(self, proto: Proto, levels: Mapping[str, int], depth: int) -> Message:
        if depth > _DEEPEST:
            raise ConfigError(f"Protobuf message is nested more than {_DEEPEST} deep")
        self._fields += len(proto.fields)
        if self._fields > _MOST_FIELDS:
            raise ConfigError(
                f"Protobuf message makes a column of more than {_MOST_FIELDS:,} fields: lower the option "
                "'recursive.fields.max.depth'"
            )
        made = (self.field(one, levels, depth + 1) for one in proto.fields)
        return Message(proto, tuple(one for one in made if one is not None))

    def field(self, proto: Proto, levels: Mapping[str, int], depth: int) -> Field | None:
        """None if it is left out."""
        kind = kind_of(proto)
        if proto.message_type is not None:
            return self._nested(proto, levels, depth)
        emits = self._rules.emits_defaults and not proto.has_presence and not proto.is_repeated
        if kind == "enum" and self._rules.enums_as_ints:
            return Field(proto, kind, pa.int32(), emits_default=emits)
        wide = self._rules.upcasts_unsigned and kind in WIDE_UNSIGNED
        return Field(proto, kind, WIDE_UNSIGNED[kind] if wide else _PRIMITIVES[kind], None, False, wide, emits)

    def _nested(self, proto: Proto, levels: Mapping[str, int], depth: int) -> Field | None:
        inner = proto.message_type
        if is_moment(inner):
            kind, shown = _MOMENTS[inner.name]
            return Field(proto, kind, shown, self.message(inner, levels, depth))
        if inner.full_name in WRAPPERS and self._rules.unwraps_wrappers:
            made = self.message(inner, levels, depth)
            return Field(proto, "wrapper", made.fields[0].type, made)
        if proto.is_repeated and inner.GetOptions().map_entry:
            made = self.message(inner, levels, depth)
            if len(made.fields) < 2:
                return None
            key, item = made.fields
            return Field(proto, "message", pa.map_(key.type, item.type), made, is_map=True)
        level = levels.get(inner.full_name, 0)
        if level and not 0 < self._rules.most_levels <= MOST_PROTOBUF_LEVELS:
            raise ConfigError(
                f"Protobuf message is recursive in {proto.full_name}: set the option 'recursive.fields.max.depth' to 1 "
                f"to {MOST_PROTOBUF_LEVELS}, the number of levels to keep"
            )
        if level and level >= self._rules.most_levels:
            return None
        made = self.message(inner, {**levels, inner.full_name: level + 1}, depth)
        return Field(proto, "message", made.type, made) if made.fields or self._rules.keeps_empty else None


def is_moment(proto: Proto) -> bool:
    """As Spark asks: by the name without its package, and the names of the two fields."""
    if proto.name not in _MOMENTS or [one.name for one in proto.fields] != ["seconds", "nanos"]:
        return False
    return [(kind_of(one), one.is_repeated) for one in proto.fields] == [
        ("int64", False),
        ("int32", False),
    ]
