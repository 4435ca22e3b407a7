"""JSON and text by columns: read back by Python's own libraries, and what is refused. test_json_encoder_spark.py
compares with Spark."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.base64_text import base64_texts
from spark_connector.formats.json_encoder import JsonEncoder
from spark_connector.formats.number_text import decimal_texts, float_texts
from spark_connector.formats.text_encoder import TextEncoder, narrowed
from spark_connector.formats.time_text import TimePattern
from spark_connector.formats.write_format import TO_JSON, JsonText
from tests.support.codec_choice import in_turn

INNER = pa.struct([("x", pa.int32()), ("é", pa.string())])
ROW = pa.struct(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("a", pa.list_(pa.string())),
        ("o", INNER),
        ("l", pa.list_(INNER)),
        ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ]
)


def entries_of(made: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(made.items())


LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=6)
OBJECTS = st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "é": st.none() | TEXTS})
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | LONGS,
        "s": st.none() | TEXTS,
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "a": st.none() | st.lists(st.none() | TEXTS, max_size=3),
        "o": st.none() | OBJECTS,
        "l": st.none() | st.lists(st.none() | OBJECTS, max_size=3),
        "m": st.none() | st.dictionaries(TEXTS, st.none() | st.lists(LONGS, max_size=2), max_size=3).map(entries_of),
    }
)


def encode(rows: pa.StructArray, text: JsonText = TO_JSON, prefix: bytes = b"") -> list[bytes]:
    """By the kernel and without it, which must agree."""
    made: list[list[bytes]] = []
    for _ in in_turn():
        encoded = JsonEncoder(rows.type, text, prefix).encode(rows)
        assert encoded.bad == {}
        assert encoded.values.type == pa.binary()
        assert encoded.values.null_count == 0
        encoded.values.validate(full=True)
        made.append(encoded.values.to_pylist())
    assert all(one == made[0] for one in made)
    return made[0]


def expected(value: Any, kind: pa.DataType, *, ignore: bool) -> Any:
    """What a reader of the JSON gets."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = {field.name: expected(value[field.name], field.type, ignore=ignore) for field in kind}
        return {name: one for name, one in fields.items() if not ignore or one is not None}
    if pa.types.is_map(kind):
        return {key: expected(one, kind.item_type, ignore=ignore) for key, one in value}
    if pa.types.is_list(kind):
        return [expected(one, kind.value_type, ignore=ignore) for one in value]
    return value


@settings(deadline=None)
@given(st.lists(ROWS, max_size=6), st.integers(0, 3), st.booleans())
def test_what_is_written_is_read_back(rows: list[dict[str, Any]], cut: int, ignore: bool) -> None:
    made = pa.array(rows, ROW).slice(cut)
    found = encode(made, JsonText(ignore))
    assert [json.loads(one) for one in found] == [expected(row, ROW, ignore=ignore) for row in rows[cut:]]


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=9)), st.integers(0, 2))
def test_bytes_are_base64(values: list[bytes | None], cut: int) -> None:
    texts = base64_texts(pa.array(values, pa.binary()).slice(cut)).to_pylist()
    assert texts == [None if one is None else base64.b64encode(one).decode() for one in values[cut:]]


FLAT = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), LONGS),
    "f32": (pa.float32(), st.floats(width=32)),
    "few": (pa.float64(), st.decimals(-(10**7), 10**7, places=4).map(float) | st.just(-0.0)),
    "any": (pa.float64(), st.floats() | st.integers(-(2**53), 2**53).map(float)),
    "text": (pa.string(), st.text(st.characters(max_codepoint=130) | st.sampled_from('"\\\x00\n🦀'), max_size=9)),
    "day": (pa.date32(), st.integers(-800_000, 3_000_000)),
    "local": (pa.timestamp("us"), st.integers(-(10**17), 10**18)),
    "utc": (pa.timestamp("us", "UTC"), st.integers(-(10**17), 10**18)),
    "paris": (pa.timestamp("us", "Europe/Paris"), st.integers(0, 10**16)),
}


@settings(max_examples=300)
@given(st.data(), st.integers(0, 3), st.booleans())
def test_the_kernel_writes_every_type_as_arrow_does(data: st.DataObject, cut: int, ignore: bool) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(FLAT)), min_size=1, max_size=5, unique=True))
    rows = data.draw(st.integers(0, 12))
    columns = []
    for name in names:
        kind, values = FLAT[name]
        drawn = data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        plain = pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
        columns.append(pa.array(drawn, plain).cast(kind))
    struct = pa.StructArray.from_arrays(columns, names=names)[cut:]
    assert len(encode(struct, JsonText(ignore_null_fields=ignore), b"\0id")) == len(struct)


@pytest.mark.parametrize("inner", [pa.struct({"a": pa.int32(), "b": pa.null()}), pa.list_(pa.null())], ids=str)
def test_maps_with_a_field_of_type_null_may_be_a_slice(inner: pa.DataType) -> None:
    item = [None] if pa.types.is_list(inner) else {"a": 1, "b": None}
    rows = pa.StructArray.from_arrays([pa.array([{"k": item}] * 9, pa.map_(pa.string(), inner))], names=["m"])
    assert encode(rows.slice(5)) == encode(rows)[5:]


def test_a_batch_of_longer_doubles_and_those_after_it_are_whole() -> None:
    """The kernel leaves these doubles to Arrow."""
    encoder = JsonEncoder(pa.struct([("d", pa.float64()), ("i", pa.int64())]))
    for doubles in ([0.5, 1.25], [0.5, 1 / 3], [1e300, -0.0], [2.0, math.nan]):
        rows = pa.StructArray.from_arrays([pa.array(doubles), pa.array([1, 2])], names=["d", "i"])
        found = [json.loads(one)["d"] for one in encoder.encode(rows).values.to_pylist()]
        assert found == [one if math.isfinite(one) else "NaN" for one in doubles]


def java(number: float, shortest: str) -> str:
    """Java's Double.toString from the shortest digits of numpy."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    sign, digits, power = Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    exponent = len(digits) - 1 + int(power) if number else 0
    if len(text) == 1 and abs(number) < 2.0**-1022 and number:
        text = f"{abs(number):.1e}"[0:3:2]
        exponent = int(f"{number:.1e}".partition("e")[2])
    dash = "-" if sign else ""
    if number and not 1e-3 <= abs(number) < 1e7:
        return f"{dash}{text[0]}.{text[1:] or 0}E{exponent}"
    if exponent < 0:
        return f"{dash}0.{'0' * (-exponent - 1)}{text}"
    text = text.ljust(exponent + 1, "0")
    return f"{dash}{text[: exponent + 1]}.{text[exponent + 1 :] or 0}"


@settings(deadline=None)
@given(st.lists(st.none() | st.floats() | st.floats(1e-7, 1e18) | st.integers(0, 9_999_999).map(lambda n: n / 10)))
def test_doubles_are_javas(numbers: list[float | None]) -> None:
    found = float_texts(pa.array(numbers, pa.float64())).to_pylist()
    assert found == [None if one is None else java(one, repr(one)) for one in numbers]


@settings(deadline=None)
@given(st.lists(st.floats(width=32).filter(lambda one: not 0 < abs(one) < 2.0**-126)))
def test_floats_are_javas(numbers: list[float]) -> None:
    found = float_texts(pa.array(numbers, pa.float32())).to_pylist()
    exact = [np.float32(one) for one in numbers]
    assert found == [java(float(one), str(one)) for one in exact]


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(10**20), 10**20)), st.integers(0, 20))
def test_decimals_of_a_cast_have_no_exponent(unscaled: list[int | None], scale: int) -> None:
    numbers = [None if one is None else Decimal(one).scaleb(-scale) for one in unscaled]
    found = decimal_texts(pa.array(numbers, pa.decimal128(38, scale)), plain=True).to_pylist()
    assert found == [None if one is None else f"{one:.{scale}f}" for one in numbers]


MICROS = st.integers(-62135596800_000000, 253402300799_999999)


@settings(deadline=None)
@given(
    st.lists(st.none() | MICROS),
    st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "UTC", "Pacific/Apia"]),
)
def test_times_have_the_offset_of_their_zone(micros: list[int | None], zone: str) -> None:
    kind = pa.timestamp("us", zone)
    found = TimePattern("o", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx", kind).texts(pa.array(micros, kind)).to_pylist()
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for one, text in zip(micros, found, strict=True):
        if one is None or not one > 2000 * 10**6:  # before, offsets may have seconds
            assert (one is None) is (text is None)
            continue
        try:
            local = (epoch + dt.timedelta(microseconds=one)).astimezone(ZoneInfo(zone))
        except OverflowError:
            continue
        assert text == local.isoformat(timespec="microseconds")


def test_years_of_five_digits_and_before_0_are_as_in_java() -> None:
    days = pa.array([2932897, -719529, None, 0, 10_000_000], pa.int32()).view(pa.date32())
    found = TimePattern("o", "dd.MM.yyyy", days.type).texts(days).to_pylist()
    assert found == ["01.01.+10000", "31.12.-0001", None, "01.01.1970", "26.01.+29349"]
    far = pa.array([253402300800_000000, 0], pa.timestamp("us", "Europe/Berlin"))
    assert TimePattern("o", "yyyy HH[X]", far.type).texts(far).to_pylist() == ["+10000 01+01", "1970 01+01"]


@pytest.mark.parametrize(
    ("style", "offsets"),
    [
        ("X", ["Z", "-03", "+0530"]),
        ("XX", ["Z", "-0300", "+0530"]),
        ("XXX", ["Z", "-03:00", "+05:30"]),
        ("x", ["+00", "-03", "+0530"]),
        ("xx", ["+0000", "-0300", "+0530"]),
        ("xxx", ["+00:00", "-03:00", "+05:30"]),
        ("XXXXX", ["Z", "-03:00", "+05:30"]),
        ("xxxx", ["+0000", "-0300", "+0530"]),
    ],
)
def test_offsets_have_six_styles(style: str, offsets: list[str]) -> None:
    for zone, offset in zip(["UTC", "GMT-3", "+05:30"], offsets, strict=True):
        kind = pa.timestamp("us", zone)
        assert TimePattern("o", f"'at'{style}", kind).texts(pa.array([0], kind)).to_pylist() == [f"at{offset}"]


@pytest.mark.parametrize(
    ("pattern", "kind", "said"),
    [
        ("EEE", pa.timestamp("us", "UTC"), "'EEE' cannot be written"),
        ("yyyy 'x", pa.timestamp("us", "UTC"), "''x' cannot be written, in 'yyyy 'x'"),
        ("yyyy]", pa.timestamp("us", "UTC"), "a ] without ["),
        ("HH", pa.date32(), "dates have no 'HH'"),
        ("HH XXX", pa.timestamp("us"), "timestamps without a zone have no 'XXX'"),
    ],
)
def test_patterns_that_cannot_be_written_are_refused(pattern: str, kind: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TimePattern("timestampFormat", pattern, kind)
    assert said in str(raised.value)
    assert "Option 'timestampFormat'" in str(raised.value)


def test_a_zone_that_nobody_knows_is_named() -> None:
    kind = pa.timestamp("us", "Mars/Base")
    with pytest.raises(ConfigError, match=r"time zone 'Mars/Base' is not known here.*spark\.sql\.session\.timeZone"):
        TimePattern("o", "yyyy", kind).texts(pa.array([0], kind))


def test_bytes_that_are_no_text_become_javas_replacement() -> None:
    raw = [
        b"a\xffb\xc3",
        b"ok",
        b"\xf0\x9f\x98\xe2",
        b"\xed\xa0\x80",
        b"\xe2\x82",
        b"\xc0\x80\xf5",
        b"\xf0\x80\x80\x80",
    ]
    texts = ["a\ufffdb\ufffd", "ok", *("\ufffd" * count for count in (2, 1, 1, 3, 4))]  # by Spark 4.3 on Java 17
    rows = pa.StructArray.from_arrays([pa.array(raw, pa.binary()).view(pa.string())], ["s"])
    assert encode(rows) == [f'{{"s":"{text}"}}'.encode() for text in texts]


def test_a_value_begins_with_its_prefix_also_where_nothing_is_left() -> None:
    rows = pa.array([{"x": None}, {"x": 1}], pa.struct([("x", pa.int8())]))
    assert encode(rows, prefix=b"\0\0\0\xff\x01") == [b"\0\0\0\xff\x01{}", b'\0\0\0\xff\x01{"x":1}']
    assert encode(pa.array([{}, {}], pa.struct([]))) == [b"{}", b"{}"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.duration("us"), "column 'x' of type duration"),
        (pa.struct([("y", pa.list_(pa.time64("us")))]), r"column 'x\.y\.element' of type time64"),
        (pa.map_(pa.binary(), pa.int32()), "column 'x': keys of type binary"),
        (
            pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]),
            "column 'x' of type variant",
        ),
    ],
)
def test_types_that_json_does_not_have_are_refused(kind: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        JsonEncoder(pa.struct([("x", kind)]))


def test_text_is_of_one_column_that_is_not_nested() -> None:
    numbers = pa.StructArray.from_arrays([pa.array([1, None])], ["x"])
    assert TextEncoder(numbers.type).encode(numbers).values.to_pylist() == [b"1", None]
    with pytest.raises(ConfigError, match="column 'x' of type int64 is neither text nor bytes"):
        TextEncoder(numbers.type, bytes_only=True)
    with pytest.raises(ConfigError, match="column 'x' of type list<item: int64> cannot be written as text"):
        TextEncoder(pa.struct([("x", pa.list_(pa.int64()))]))


def test_large_types_are_narrowed() -> None:
    large = pa.list_(pa.struct([("a", pa.large_string()), ("m", pa.map_(pa.large_string(), pa.large_binary()))]))
    batch = pa.record_batch({"x": pa.array([[{"a": "1", "m": [("k", b"v")]}]], large), "y": pa.array([1])})
    found = narrowed(batch)
    assert found.schema.field("x").type == pa.list_(
        pa.struct([("a", pa.string()), ("m", pa.map_(pa.string(), pa.binary()))])
    )
    assert found.to_pylist() == batch.to_pylist()
    assert narrowed(found) is found
