"""Protobuf to columns and back: the kernel against protobuf's own runtime, on drawn schemas, messages and bytes.

hypothesis draws the seeds of dice, which draw the rest: a message has hundreds of choices.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pyarrow as pa
import pytest
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
from tests.support.protobuf_cases import drawn_message, drawn_schema, every_kind, has_maps, hostile, rows

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
    raw: list[bytes | None] = [hostile(dice, one) for one in sent]
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


@pytest.mark.parametrize("with_kernel", [True, False])
def test_an_entry_of_a_map_with_fields_of_a_newer_schema_is_kept(
    with_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protobuf's runtime takes such an entry out of the map, and keeps it with the unknown fields of the message."""
    if not with_kernel:
        monkeypatch.setattr(native, "kernel", None)
    newer = b"\x0a\x01k\x11" + struct.pack("<d", 2.5) + b"\x1a\x03new"  # key, value, field 3
    inner = b"\x22" + bytes([len(newer)]) + newer
    decoded = ProtobufDecoder(SCHEMA).decode(pa.array([b"\x8a\x01" + bytes([len(inner)]) + inner], pa.binary()))
    assert decoded.bad == {}
    assert decoded.column[0].as_py()["one_inner"]["m"] == [("k", 2.5)]
