"""The compiled readers and writers against kio's: every message in every version, and hostile bytes."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import Field, entity_class, fields_of
from broker.protocol.messages import known_versions
from broker.protocol.struct_reader import reader
from broker.protocol.struct_writer import encode

MESSAGES = [
    (api, version, kind)
    for api in ApiKey
    for version in range(known_versions(api)[0], known_versions(api)[1] + 1)
    for kind in (EntityType.request, EntityType.response)
]


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


PRIMITIVES: Mapping[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": integers(8),
    "int16": integers(16),
    "uint16": st.integers(0, 65535),
    "int32": integers(32),
    "int64": integers(64),
    "float64": st.floats(allow_nan=False),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(-1, 2**31 - 1),
    "timedelta_i64": st.integers(-1, 10**15),
    "datetime_i64": st.integers(0, 10**13),
    "uuid": st.none() | st.uuids().filter(lambda one: one.int),
    "string": st.text(max_size=9) | st.just("x" * 200),
    "bytes": st.binary(max_size=9) | st.just(bytes(200)),
    "records": st.binary(max_size=9),
}


def values(entity: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings as callers give them; some fields are missing, but no times, because kio knows no missing ones."""
    fields = {field.name: field_values(field) for field in fields_of(entity)}
    times = {field.name for field in fields_of(entity) if field.kafka_type == "datetime_i64"}
    rest = {name: one for name, one in fields.items() if name not in times}
    return st.fixed_dictionaries({name: fields[name] for name in times}, optional=rest)


def field_values(field: Field) -> st.SearchStrategy[Any]:
    one = PRIMITIVES[field.kafka_type] if field.struct is None else values(field.struct)
    if field.is_array:
        one = st.lists(one, max_size=3)
    may_be_null = field.optional and field.tag is None and field.kafka_type != "datetime_i64"
    return st.none() | one if may_be_null else one


def assert_same(ours: Any, kios: Any) -> None:
    if dataclasses.is_dataclass(kios):
        assert ours._fields == tuple(field.name for field in dataclasses.fields(kios))
        for name in ours._fields:
            assert_same(getattr(ours, name), getattr(kios, name))
    elif isinstance(kios, tuple):
        assert len(ours) == len(kios)
        for one, other in zip(ours, kios, strict=True):
            assert_same(one, other)
    else:
        assert ours == kios


@settings(max_examples=400)
@given(st.sampled_from(MESSAGES), st.data())
def test_kio_reads_what_is_written_and_writes_the_same(message: tuple[Any, ...], data: st.DataObject) -> None:
    entity = entity_class(*message)
    written = encode(entity, data.draw(values(entity)))
    kios, end = entity_reader(entity)(memoryview(written), 0)
    assert end == len(written)
    again = BytesIO()
    entity_writer(entity)(again, kios)
    assert again.getvalue() == written
    ours, end = reader(entity)(written, 0, len(written))
    assert end == len(written)
    assert_same(ours, kios)


@settings(max_examples=400)
@given(st.sampled_from(MESSAGES), st.data())
def test_hostile_bytes_are_read_or_refused(message: tuple[Any, ...], data: st.DataObject) -> None:
    entity = entity_class(*message)
    hostile = bytearray(encode(entity, data.draw(values(entity))))
    for _ in range(data.draw(st.integers(1, 4)) if hostile else 0):
        at = data.draw(st.integers(0, len(hostile) - 1))
        hostile[at] = data.draw(st.sampled_from([0, 1, 0x40, 0x7F, 0x80, 0xFF]))
    cut = bytes(hostile[: data.draw(st.integers(0, len(hostile)))])
    try:
        body, end = reader(entity)(cut, 0, len(cut))
    except (ValueError, LookupError, OverflowError, struct.error):
        return
    assert end <= len(cut)
    assert body._fields == tuple(field.name for field in fields_of(entity))


@pytest.mark.parametrize("api", ApiKey, ids=lambda api: api.name)
def test_every_type_of_every_message_is_known(api: ApiKey) -> None:
    for _, version, kind in (message for message in MESSAGES if message[0] is api):
        entity = entity_class(api, version, kind)
        assert reader(entity)(encode(entity, {}), 0, 1 << 20)[0] is not None
