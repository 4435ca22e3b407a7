"""What kio's classes say about the structs of messages: their fields, in the order of the wire.

Used by the compiled readers and writers, and by the search for error codes.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, NamedTuple

from kio.static.constants import EntityType

from broker.errors import UnsupportedVersion
from broker.protocol.older_messages import payload_class


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


def entity_class(api: int, version: int, kind: EntityType) -> Any:
    """The class of a request or response, as kio's are. Raises UnsupportedVersion if there is none."""
    try:
        return payload_class(api, version, kind)
    except Exception as error:
        raise UnsupportedVersion(f"API {api} has no version {version} that this side knows") from error


@functools.cache
def fields_of(entity: Any) -> tuple[Field, ...]:
    """The fields of kio's class `entity`."""
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
