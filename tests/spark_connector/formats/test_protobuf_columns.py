"""Protobuf to columns and back: the kernel against protobuf's own runtime, on drawn schemas, messages and bytes.

hypothesis draws the seeds of dice, which draw the rest: a message has hundreds of choices.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, Edition, FeatureSet, FieldDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.records import native
from spark_connector.formats.protobuf_columns import column_of
from spark_connector.formats.protobuf_decoder import ProtobufDecoder
from spark_connector.formats.protobuf_descriptors import message_of
from spark_connector.formats.protobuf_encoder import ProtobufEncoder
from spark_connector.formats.protobuf_rows import RowReader
from spark_connector.formats.value_decoder import one_by_one
from spark_connector.formats.value_format import ProtobufRules
from tests.support.protobuf_cases import (
    add,
    add_map,
    drawn_message,
    drawn_schema,
    every_kind,
    file_with,
    has_maps,
    hostile,
    rows,
    schema_with,
)

PLAIN = ProtobufRules()
SCHEMA = every_kind()
OLD = every_kind("proto2")
DICE = st.integers(0, 2**32).map(Random)
some = settings(max_examples=80, deadline=None)


def drawn_rules(dice: Random) -> ProtobufRules:
    enums, emits, upcasts, unwraps = (dice.random() < 0.5 for _ in range(4))
    return ProtobufRules(-1, enums, emits, upcasts, unwraps, keeps_empty=True)


def by_runtime(schema: Any, rules: ProtobufRules, raw: list[bytes | None]) -> Any:
    message = column_of(message_of(schema), rules)
    return one_by_one(pa.array(raw, pa.binary()), message.type, RowReader(message).read)


@some
@given(DICE)
def test_columns_hold_what_the_runtime_reads(dice: Random) -> None:
    schema, rules = drawn_schema(dice), drawn_rules(dice)
    drawn = [drawn_message(dice, message_of(schema), 0.7) for _ in range(4)]
    raw = [None, *(one.SerializeToString() for one in drawn)]
    decoded = ProtobufDecoder(schema, None, rules).decode(pa.array(raw, pa.binary()))
    decoded.column.validate(full=True)
    wanted = by_runtime(schema, rules, raw)
    assert decoded.bad == wanted.bad == {}
    assert rows(decoded.column) == rows(wanted.column)


@pytest.mark.parametrize("schema", [SCHEMA, OLD], ids=["proto3", "proto2"])
@settings(some, max_examples=40)
@given(DICE)
def test_messages_that_follow_one_another_are_merged_as_by_the_runtime(schema: Any, dice: Random) -> None:
    parts = [drawn_message(dice, message_of(schema)).SerializeToString() for _ in range(3)]
    raw: list[bytes | None] = [b"".join(parts), b"".join(parts[:2])]
    decoded = ProtobufDecoder(schema).decode(pa.array(raw, pa.binary()))
    assert decoded.bad == {}
    assert rows(decoded.column) == rows(by_runtime(schema, PLAIN, raw).column)


@pytest.mark.parametrize("schema", [SCHEMA, OLD], ids=["proto3", "proto2"])
@settings(some, max_examples=100)
@given(DICE)
def test_hostile_bytes_are_bad_for_both_or_read_alike(schema: Any, dice: Random) -> None:
    """proto2's text without UTF-8 is bad for us alone."""
    sent = [drawn_message(dice, message_of(schema), 0.05).SerializeToString() for _ in range(6)]
    check_alike(schema, [hostile(dice, one) for one in sent])


def test_bytes_that_were_bad_for_one_alone_are_read_alike() -> None:
    """to_enum: field 1627 and GREEN, whose key is 0; 0 and BLUE."""
    check_alike(OLD, [bytes.fromhex("821a05d865021005821a0d080010ffffffffffffffffff01")])


def check_alike(schema: Any, raw: list[bytes | None]) -> None:
    decoded = ProtobufDecoder(schema).decode(pa.array(raw, pa.binary()))
    decoded.column.validate(full=True)
    wanted = by_runtime(schema, PLAIN, raw)
    ours_alone = {row for row, why in decoded.bad.items() if "is not UTF-8" in why and schema is OLD}
    assert set(decoded.bad) - ours_alone == set(wanted.bad) - ours_alone, (decoded.bad, wanted.bad, raw)
    for row, (ours, theirs) in enumerate(zip(rows(decoded.column), rows(wanted.column), strict=True)):
        assert ours == theirs or row in ours_alone


@some
@given(DICE)
def test_a_bad_value_leaves_its_neighbours_alone(dice: Random) -> None:
    first, last = (drawn_message(dice, message_of(SCHEMA)).SerializeToString() for _ in range(2))
    cut = first[: dice.randint(0, len(first))] + b"\x12\x7f"
    decoded = ProtobufDecoder(SCHEMA).decode(pa.array([first, cut, last], pa.binary()))
    if 1 in decoded.bad:  # the cut may lie within a text
        assert rows(decoded.column) == rows(by_runtime(SCHEMA, PLAIN, [first, None, last]).column)


@some
@given(DICE)
@example(Random(110))  # null messages with a required message, which were refused
@example(Random(134))
def test_bytes_are_those_of_the_runtime(dice: Random) -> None:
    """From columns that were read; entries of maps in any order, as the runtime has another one in each language."""
    schema = drawn_schema(dice)
    rules = ProtobufRules(-1, dice.random() < 0.5, False, dice.random() < 0.5)
    descriptor = message_of(schema)
    raw = [drawn_message(dice, descriptor, 0.7).SerializeToString(deterministic=True) for _ in range(3)]
    read = ProtobufDecoder(schema, None, rules).decode(pa.array(raw, pa.binary()))
    encoded = ProtobufEncoder(schema, read.column.type).encode(read.column)
    assert encoded.bad == {}
    if not has_maps(column_of(descriptor, rules)):
        assert encoded.values.to_pylist() == raw
    parsed = [GetMessageClass(descriptor).FromString(one) for one in encoded.values.to_pylist()]
    assert [one.SerializeToString(deterministic=True) for one in parsed] == raw


@pytest.mark.parametrize("schema", [SCHEMA, OLD], ids=["proto3", "proto2"])
@settings(some, max_examples=15)
@given(DICE)
def test_without_the_kernel_it_is_the_same(schema: Any, dice: Random) -> None:
    raw = pa.array([drawn_message(dice, message_of(schema)).SerializeToString() for _ in range(2)], pa.binary())
    fast = ProtobufDecoder(schema).decode(raw)
    written = ProtobufEncoder(schema, fast.column.type, b"p").encode(fast.column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernel", None)
        slow = ProtobufDecoder(schema).decode(raw)
        again = ProtobufEncoder(schema, fast.column.type, b"p").encode(fast.column)
    assert rows(slow.column) == rows(fast.column)
    assert again == written


@pytest.fixture(params=["kernel", "runtime"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "runtime":
        monkeypatch.setattr(native, "kernel", None)


def sized(tag: bytes, data: bytes) -> bytes:
    return tag + bytes([len(data)]) + data


@pytest.mark.usefixtures("_both_ways")
def test_an_entry_of_a_map_with_fields_of_a_newer_schema_is_kept() -> None:
    """upb takes such an entry out of the map; for Java's runtime and Python's own the last entry of a key counts."""
    newer = b"\x0a\x01k\x11" + struct.pack("<d", 2.5) + b"\x1a\x03new"  # key, value, field 3
    plain = b"\x0a\x01k\x11" + struct.pack("<d", 1.5)
    raw = [
        sized(b"\x8a\x01", b"".join(sized(b"\x22", one) for one in entries))
        for entries in ([newer], [plain, newer], [newer, plain], [newer, plain, newer], [newer, newer])
    ]
    decoded = ProtobufDecoder(SCHEMA).decode(pa.array(raw, pa.binary()))
    assert decoded.bad == {}
    assert [row["one_inner"]["m"] for row in decoded.column.to_pylist()] == [
        [("k", value)] for value in (2.5, 2.5, 1.5, 2.5, 2.5)
    ]


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([b"\x08\x01\x12\x02\x08\x05"], None),
        ([b""], "required fields are missing"),
        ([b"\x08\x01"], "required fields are missing"),
        ([b"\x08\x01\x12\x00"], "required fields are missing"),
        ([b"\x08\x01\x12\x02\x08\x05", b"\x08\x01"], "required fields are missing"),
        ([b"\x08\x01\x12\x00\x18\x01"], "required fields are missing"),  # with a field of a newer schema
        ([b"\x08\x01\x18\x01"], "required fields are missing"),
        ([b"\x08\x01\x12\x00\x18\x01", b"\x08\x01\x12\x02\x08\x05"], None),
        ([b"\x08\x01\x15\x00\x00\x00\x00"], "has a key or a value that its schema lacks"),
    ],
)
def test_a_value_of_a_map_has_its_required_fields(entries: list[bytes], why: str | None) -> None:
    """Also one that its entry leaves out, which is an empty message."""
    value, whole = DescriptorProto(name="V"), DescriptorProto(name="M")
    add(value, "a", 1, "int32").label = FieldDescriptorProto.LABEL_REQUIRED
    add_map(whole, "m", 1, "int32", "t.V", "t.M")
    schema = schema_with(file_with(whole, value, syntax="proto2"), message="t.M")
    decoded = ProtobufDecoder(schema).decode(pa.array([b"".join(sized(b"\x0a", one) for one in entries)]))
    assert (decoded.bad == {}) if why is None else why in decoded.bad[0]
    assert decoded.column.to_pylist() == [{"m": [(1, {"a": 5})]} if why is None else None]


@pytest.mark.usefixtures("_both_ways")
def test_maps_are_no_groups_where_messages_are() -> None:
    """With `features.message_encoding = DELIMITED` of a file in an edition."""
    value, whole = DescriptorProto(name="V"), DescriptorProto(name="M")
    add(value, "a", 1, "int32")
    add(whole, "one", 1, "t.V")
    add(whole, "all", 2, "t.V", repeated=True)
    add_map(whole, "by", 3, "int32", "t.V", "t.M")
    file = file_with(whole, value, syntax="editions")
    file.edition = Edition.EDITION_2023
    file.options.features.message_encoding = FeatureSet.DELIMITED
    schema = schema_with(file, message="t.M")
    made = GetMessageClass(message_of(schema))(one={"a": 1}, all=[{"a": 2}], by={3: {"a": 4}})
    decoded = ProtobufDecoder(schema).decode(pa.array([made.SerializeToString()]))
    assert decoded.bad == {}
    assert decoded.column.to_pylist() == [{"one": {"a": 1}, "all": [{"a": 2}], "by": [(3, {"a": 4})]}]
