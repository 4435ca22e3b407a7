"""Builds kio's entities from plain mappings, by field name.

Used by the modules that encode messages. The fields of an entity class, their converters and defaults are computed
once; building an instance then costs a dictionary look-up for each field.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from broker.errors import UnsupportedVersion
from broker.protocol.older_messages import payload_class

Converter = Callable[[Any], Any]

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_ZEROS: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "uuid": uuid.UUID(int=0),
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": _EPOCH,
}


class _Field(typing.NamedTuple):
    name: str
    convert: Converter | None
    missing: Any


def entity_class(api: int, version: int, kind: EntityType) -> Any:
    """The class of a request or response, as kio's are. Raises UnsupportedVersion if there is none."""
    try:
        entity = payload_class(api, version, kind)
    except Exception as error:
        raise UnsupportedVersion(f"API {api} has no version {version} that this side knows") from error
    _let_times_be_absent(entity)
    return entity


def _let_times_be_absent(entity: Any) -> None:
    """Make all times optional: kio requires some, such as a transaction's start, but Kafka may write -1 in any."""
    for field in dataclasses.fields(entity):
        hint, optional = unwrap_optional(field.type)
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
        if dataclasses.is_dataclass(hint):
            _let_times_be_absent(hint)
        elif field.metadata.get("kafka_type") == "datetime_i64" and not optional:
            entity.__annotations__[field.name] = field.type = field.type | None  # type: ignore[operator]


def build(entity: Any, values: Mapping[str, Any]) -> Any:
    """An instance of kio's `entity` class from `values`, including nested mappings and sequences."""
    arguments = {}
    for name, convert, missing in _plan(entity):
        value = values.get(name, missing)
        if value is missing or convert is None:
            arguments[name] = value
        else:
            arguments[name] = convert(value)
    return entity(**arguments)


@functools.cache
def _plan(entity: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(entity)
    return tuple(_plan_field(f, hints[f.name]) for f in dataclasses.fields(entity))


def _plan_field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    kafka_type = field.metadata.get("kafka_type", "")
    inner, optional = unwrap_optional(hint)
    convert, zero = _converter(inner, kafka_type)
    if field.default is not dataclasses.MISSING:
        zero = field.default
    elif optional and not isinstance(zero, tuple):
        zero = None
    if convert is not None and optional:
        convert = functools.partial(_none_or, convert)
    return _Field(field.name, convert, zero)


def unwrap_optional(hint: Any) -> tuple[Any, bool]:
    """(the type without `| None`, whether it had that)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return inner[0], True
    return hint, False


def _converter(hint: Any, kafka_type: str) -> tuple[Converter | None, Any]:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if dataclasses.is_dataclass(item):
            return functools.partial(_build_all, item), ()
        return tuple, ()
    if dataclasses.is_dataclass(hint):
        return functools.partial(build, hint), None
    if kafka_type.startswith("timedelta"):
        return _timedelta, _ZEROS[kafka_type]
    if kafka_type == "datetime_i64":
        return _datetime, _ZEROS[kafka_type]
    if kafka_type == "error_code":
        return ErrorCode, ErrorCode.none
    return None, _ZEROS.get(kafka_type, 0)


def _build_all(entity: Any, items: Any) -> tuple[Any, ...]:
    return tuple(build(entity, item) for item in items)


def _none_or(convert: Converter, value: Any) -> Any:
    return None if value is None else convert(value)


def _timedelta(value: Any) -> Any:
    return datetime.timedelta(milliseconds=value) if isinstance(value, int) else value


def _datetime(value: Any) -> Any:
    """From milliseconds since the epoch; kio writes None as -1."""
    if not isinstance(value, int):
        return value
    if value < 0:
        return None
    return _EPOCH + datetime.timedelta(milliseconds=value)
