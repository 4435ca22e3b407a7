"""What kio's classes say about the structs of messages: their fields, in the order of the wire.

Used by the compiled readers and writers, and by the search for error codes. Structs that kio lacks are declared here as
tables: classes whose annotations say how each field is stored.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
import uuid
from collections.abc import Callable, Container
from typing import Annotated, Any, NamedTuple, TypeAlias

from kio.static.constants import EntityType

from broker.errors import UnsupportedVersion
from broker.protocol.older_messages import payload_class

Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]
String: TypeAlias = Annotated[str, "string"]
Bytes: TypeAlias = Annotated[bytes, "bytes"]
Uuid: TypeAlias = Annotated[uuid.UUID, "some_uuid"]


class Wire(NamedTuple):
    """How a field of a table is stored, where its type alone does not say it. Goes into `Annotated`."""

    versions: Container[int] | None = None
    """Those that have the field; None: all. In others it has its default, or else null or -1."""
    tag: int | None = None
    """Of a tagged field (KIP-482)."""
    before: str = ""
    """The field that follows, if it is not the next one of the class."""
    stored: Any = None
    """The type that is stored, if it is another one, with the functions that turn it into the value and back."""
    read: Callable[..., Any] | None = None
    write: Callable[[Any], Any] | None = None
    beside: str = ""
    """Another field, which `read` gets, too."""


class Field(NamedTuple):
    name: str
    kafka_type: str
    """In Kafka's schema types, of the elements if it is an array; empty for structs."""
    struct: Any
    """kio's class of the struct, or of the elements; None for other types."""
    is_array: bool
    optional: bool
    tag: int | None
    """Of a tagged field (KIP-482)."""
    default: Any
    """Of the schema, or dataclasses.MISSING."""
    wire: Wire = Wire()


def entity_class(api: int, version: int, kind: EntityType) -> Any:
    """The class of a request or response, as kio's are. Raises UnsupportedVersion if there is none."""
    try:
        return payload_class(api, version, kind)
    except Exception as error:
        raise UnsupportedVersion(f"API {api} has no version {version} that this side knows") from error


@dataclasses.dataclass(frozen=True)
class Table:
    """One version of a struct. It stands wherever one of kio's classes can.

    Its fields are those of `row`, a NamedTuple or dataclass, whose types are stored: `Int32`, another such class,
    tuples of them for arrays. A field of another type is not stored: it has its default, or else the version.
    """

    row: Any
    version: int = 0
    __flexible__: bool = True

    @property
    def is_tuple(self) -> bool:
        return issubclass(self.row, tuple)

    @functools.cached_property
    def columns(self) -> dict[str, Field]:
        hints = typing.get_type_hints(self.row, include_extras=True)
        if self.is_tuple:
            defaults = self.row._field_defaults
        else:
            defaults = {field.name: field.default for field in dataclasses.fields(self.row)}
        missing = dataclasses.MISSING
        return {
            name: self._declared(hint, Field(name, "", None, False, False, None, defaults.get(name, missing)))
            for name, hint in hints.items()
        }

    def _declared(self, hint: Any, field: Field) -> Field:
        if typing.get_origin(hint) is Annotated:
            inner, kafka_type, wire = hint.__origin__, field.kafka_type, field.wire
            for said in hint.__metadata__:
                if isinstance(said, Wire):
                    wire, inner = said, said.stored or inner
                else:
                    kafka_type = said
            return self._declared(inner, field._replace(kafka_type=kafka_type, wire=wire, tag=wire.tag))
        if typing.get_origin(hint) is tuple:
            return self._declared(typing.get_args(hint)[0], field._replace(is_array=True))
        inner, optional = unwrap_optional(hint)
        if optional:
            return self._declared(inner, field._replace(optional=True))
        is_struct = not field.kafka_type and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))
        return field._replace(struct=Table(hint, self.version, self.__flexible__)) if is_struct else field

    def lacking(self, field: Field) -> Any:
        """What a field of the class is where a version does not store it."""
        if field.default is not dataclasses.MISSING:
            return field.default
        return (None if field.optional else -1) if field.kafka_type else self.version

    def fields(self) -> tuple[Field, ...]:
        """Those that this version stores, in the order of the wire."""
        stored = {
            name: field
            for name, field in self.columns.items()
            if (field.kafka_type or field.struct)
            and (field.wire.versions is None or self.version in field.wire.versions)
        }
        order = list(stored)
        for name, field in stored.items():
            if field.wire.before:
                order.remove(name)
                order.insert(order.index(field.wire.before), name)
        return tuple(stored[name] for name in order)


@functools.cache
def fields_of(entity: Any) -> tuple[Field, ...]:
    """The fields of kio's class `entity`, or of a table."""
    if isinstance(entity, Table):
        return entity.fields()
    hints = typing.get_type_hints(entity)
    return tuple(_field(field, hints[field.name]) for field in dataclasses.fields(entity))


def _field(field: dataclasses.Field[Any], hint: Any) -> Field:
    hint, optional = unwrap_optional(hint)
    is_array = typing.get_origin(hint) is tuple
    element = typing.get_args(hint)[0] if is_array else hint
    kafka_type = field.metadata.get("kafka_type", "")
    return Field(
        field.name,
        kafka_type,
        element if dataclasses.is_dataclass(element) else None,
        is_array,
        optional or (kafka_type == "datetime_i64"),  # kio requires some times, but Kafka may write -1 in any
        field.metadata.get("tag"),
        field.default,
    )


def unwrap_optional(hint: Any) -> tuple[Any, bool]:
    """(the type without `| None`, whether it had that)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return inner[0], True
    return hint, False
