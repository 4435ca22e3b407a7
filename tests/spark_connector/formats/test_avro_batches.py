"""Avro by the kernel: what it decodes is what the decoder in Python decodes, and it refuses the rest."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.records import native
from broker.records.native import Kernel
from spark_connector.formats.avro_batches import BatchProgram
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.kernel_columns import NotByColumns
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import AvroSchema
from tests.support.arrow_values import exact
from tests.support.avro_cases import Case, cases, long
from tests.support.avro_fuzz import sanitized
from tests.support.codec_choice import BUILT, using
from tests.support.example_search import search, search_on
from tests.support.randomness import seed_of
from tests.support.requirements import Unavailable, give_up

pytestmark = pytest.mark.skipif(not BUILT, reason="the kernel was not built: no C compiler, or switched off")

BAD = "bad"
LEVELS = 2
SEED = seed_of(33)
HOUR_S = 3600


@pytest.fixture
def kernel() -> Kernel:
    with using("native"):
        assert native.kernel is not None
        return native.kernel


class Pair:
    """A writer's schema and a reader's, with both decoders."""

    def __init__(self, writer: str, reader: str) -> None:
        """Raises ConfigError, NotByColumns."""
        ours = parse_avro(AvroSchema(reader))
        self.kind = column_of(ours, LEVELS)
        step = resolve(parse_avro(AvroSchema(writer)), ours)
        self._single = Program(step, self.kind)
        self._batch = BatchProgram(step, self.kind)

    def one(self, raw: bytes, begin: int = 0) -> Any:
        try:
            (found,) = exact(pa.array([self._single.read(raw, begin)], self.kind))
        except (BadValue, pa.ArrowException, OverflowError, UnicodeEncodeError):
            return BAD
        return found

    def all(self, kernel: Kernel, values: pa.Array, begin: int = 0) -> list[Any]:
        column, refused = self._batch.decode(kernel, values, begin)
        column.validate(full=True)
        assert column.type == self.kind
        assert len(column) == len(values)
        found = exact(column)
        assert [found[row] for row in refused] == [None] * len(refused)
        for row in refused:
            found[row] = BAD
        return found


def pair(case: Case) -> Pair | None:
    try:
        return Pair(case.writer, case.reader)
    except (ConfigError, NotByColumns):
        return None


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": avro} for one, avro in fields]}


def schema_pair(avro: Any) -> Pair:
    return Pair(json.dumps(avro), json.dumps(avro))


def compare(kernel: Kernel, drawn: tuple[Case, list[bytes], int], counts: Counter[str]) -> None:
    """Values of the case, whole, cut at every place and with wrong bytes in them; and bytes that are none."""
    case, hostile, begin = drawn
    counts["pairs"] += 1
    both = pair(case)
    if both is None:
        counts["pairs not by columns"] += 1
        return
    values = [*case.values, *hostile]
    for raw in case.values:
        values += [raw[:end] for end in range(len(raw))]
        values += [raw + b"\0", *(raw[:at] + b"\xff" + raw[at + 1 :] for at in range(len(raw)))]
    batch = pa.array([b"?" * begin + raw for raw in values] + [None], pa.binary())
    *found, tombstone = both.all(kernel, batch, begin)
    assert tombstone is None
    for row, raw in enumerate(values):
        expected = both.one(raw)
        if found[row] == BAD and expected != BAD:
            counts["good, but left to Python"] += 1
        else:
            counts["bad" if expected == BAD else "good"] += 1
            assert found[row] == expected, (case, raw)


DRAWN = st.tuples(cases(), st.lists(st.binary(max_size=40), max_size=3), st.integers(0, 3))


def search_kernel(kernel: Kernel, examples: int, number: int) -> Counter[str]:
    counts = search(number, examples, DRAWN, functools.partial(compare, kernel))
    assert counts["good, but left to Python"] < counts["good"] / 20
    assert counts["pairs not by columns"] < counts["pairs"] / 4
    return counts


def test_the_kernel_decodes_as_python_does(kernel: Kernel) -> None:
    print(f"seed {SEED}: {dict(search_kernel(kernel, 150, SEED))}")


@pytest.mark.slow
@pytest.mark.timeout(HOUR_S)
def test_ten_minutes_of_values_are_decoded_as_python_does(kernel: Kernel) -> None:
    search_on(HOUR_S / 6, SEED, functools.partial(search_kernel, kernel, 1000))


@pytest.mark.slow
@pytest.mark.timeout(HOUR_S)
def test_no_value_makes_the_kernel_leave_its_memory(tmp_path: Path) -> None:
    """Under the sanitizers of gcc."""
    try:
        print(sanitized(tmp_path, SEED, 2000))
    except Unavailable as error:
        give_up(f"sanitizers: {error}")


NODE = record(("v", "long"), ("next", ["null", "Node"]), name="Node")
MAP = {"type": "map", "values": "long"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}


def entries(count: int) -> bytes:
    return long(count) + b"".join(long(len(str(n))) + str(n).encode() + long(n) for n in range(count)) + b"\0"


@pytest.mark.parametrize(
    ("avro", "raw", "expected"),
    [
        ({"type": "array", "items": "long"}, long(100_000) + long(-3) * 100_000 + b"\0", [-3] * 100_000),
        ({"type": "array", "items": ["null", "string"]}, long(-3) + long(9) + b"\0\2\2a\0\0", [None, "a", None]),
        ({"type": "array", "items": "string"}, (b"\2" + long(500) + b"x" * 500) * 1000 + b"\0", ["x" * 500] * 1000),
        (MAP, entries(3000), [(str(n), n) for n in range(3000)]),
        ("string", long(2_000_000) + "é".encode() * 1_000_000, "é" * 1_000_000),
        (MONEY, long(16) + (10**38 - 1).to_bytes(16), 10**38 - 1),
        (MONEY, long(2) + (-300).to_bytes(2, signed=True), -300),
        (MONEY, long(16) + (10**38).to_bytes(16), BAD),
        (MONEY, long(16) + b"\x80" + bytes(15), BAD),
        ("long", b"\xff" * 9 + b"\1", -(2**63)),
        ("int", long(2**31), BAD),
        ("boolean", b"\2", True),
        ("string", b"\6\xed\xa0\x80", BAD),
        ("string", b"\4\xc0\x80", BAD),
        ("string", b"\x08\xf4\x90\x80\x80", BAD),
        ("string", b"\x08\xf4\x8f\xbf\xbf", "\U0010ffff"),
        ("string", b"\3", BAD),
        ({"type": "array", "items": "long"}, b"\xff" * 9 + b"\1", BAD),
    ],
)
def test_values_at_their_limits(kernel: Kernel, avro: Any, raw: bytes, expected: Any) -> None:
    """Between others of the batch, which must not change, and which must not be read."""
    schema = record(("f", avro), ("z", "int"))
    both = schema_pair(schema)
    whole, short = raw + b"\4", raw[: len(raw) // 2]
    shown = BAD if expected == BAD else {"f": expected, "z": 2}
    values = pa.array([short, whole, None, short, whole, raw + b"\4\0"], pa.binary())
    assert both.all(kernel, values) == [BAD, shown, None, BAD, shown, BAD]
    assert both.all(kernel, values[1:5]) == [shown, None, BAD, shown]
    assert (both.one(whole), both.one(short)) == (shown, BAD)


@pytest.mark.parametrize(
    ("avro", "raw"),
    [
        ({"type": "map", "values": "long"}, b"\4\2k\2\2k\4\0"),
        ({"type": "map", "values": "long"}, entries(20)[:-1] + b"\2\0021\4\0"),
        ("long", b"\xff" * 9 + b"\3"),
        (MONEY, long(17) + bytes(17)),
    ],
)
def test_what_the_kernel_leaves_to_python_is_decoded(kernel: Kernel, avro: Any, raw: bytes) -> None:
    text = json.dumps(record(("f", avro)))
    good, both = both_ways(text, raw)
    assert both.all(kernel, pa.array([raw])) in ([BAD], [good])
    decoded = AvroDecoder(AvroSchema(text)).decode(pa.array([b"", raw, None, raw], pa.binary()))
    assert exact(decoded.column) == [None, good, None, good]
    assert list(decoded.bad) == [0]


def both_ways(text: str, raw: bytes) -> tuple[Any, Pair]:
    both = Pair(text, text)
    return both.one(raw), both


def test_a_recursive_value_is_read_by_the_kernel_unless_it_is_very_deep(kernel: Kernel) -> None:
    for levels in (1, 10, 5000):
        raw = b"\2\2" * levels + b"\2\0"
        shown = {"v": 1, "next": {"v": 1}}
        flat = Pair(json.dumps(NODE), json.dumps(record(("v", "long"), name="Node")))
        assert flat.all(kernel, pa.array([raw, raw[:-1]])) == ([BAD, BAD] if levels > 1000 else [{"v": 1}, BAD])
        assert schema_pair(NODE).all(kernel, pa.array([raw])) == ([BAD] if levels > 1000 else [shown])
        assert schema_pair(NODE).one(raw) == shown


def test_records_of_a_union_that_lack_different_fields_are_left_to_python() -> None:
    one = {**record(("a", "long"), name="x.R")}
    other = {**record(("b", "long"), name="y.R")}
    reader = record(("a", "long"), ("b", "long"), name="R")
    for each in reader["fields"]:
        each["default"] = 5
    with pytest.raises(NotByColumns):
        Pair(json.dumps([one, other]), json.dumps(reader))
    same = {**record(("a", "long"), name="y.R")}
    both = Pair(json.dumps([one, same]), json.dumps(reader))
    with using("native"):
        assert native.kernel is not None
        found = both.all(native.kernel, pa.array([b"\0\2", b"\2\4", b"\4\4"]))
    assert found == [{"a": 1, "b": 5}, {"a": 2, "b": 5}, BAD]


# --- arguments that do not fit each other


def call(kernel: Kernel, code: list[int], columns: list[tuple[int, int]], **changed: Any) -> int:
    given: dict[str, Any] = {
        "code": np.array(code, np.int64),
        "columns": np.array(columns, np.int64),
        "state": np.zeros(2 + 3 * len(columns), np.int64),
        "buffers": [[bytearray(64), bytearray(64), bytearray(64)] for _ in columns],
        "values": (np.array([0, 1, 2], np.int32), None, b"\2\4", 0),
        "rows": 2,
        "begin": 0,
        "refused": np.zeros(2, np.int32),
    } | changed
    return kernel.decode_avro(*given.values())


LONG_CODE, LONG_COLUMN = [4, 0, 0, 0], [(3, 1)]


def test_the_buffer_that_is_too_small_is_told(kernel: Kernel) -> None:
    assert call(kernel, LONG_CODE, LONG_COLUMN) == -1
    for buffers in ([bytearray(1), bytearray(8), None], [bytearray(0), bytearray(64), None]):
        assert call(kernel, LONG_CODE, LONG_COLUMN, buffers=[buffers]) == 0
    text = np.array([0, 2, 4], np.int32), None, b"\2a\2b", 0
    assert (
        call(kernel, [12, 0, 0, 0], [(5, 1)], buffers=[[bytearray(1), bytearray(12), bytearray(1)]], values=text) == 1
    )


@pytest.mark.parametrize(
    ("code", "columns", "why"),
    [
        ([], LONG_COLUMN, "no program"),
        ([4, 0, 0], LONG_COLUMN, "no program"),
        ([4, 0, 0, 1], LONG_COLUMN, "without an end"),
        ([4, 0, 0, -1], LONG_COLUMN, "without an end"),
        ([28, 0, 0, 0], LONG_COLUMN, "nothing known"),
        ([-1, 0, 0, 0], LONG_COLUMN, "nothing known"),
        ([4, 1, 0, 0], LONG_COLUMN, "column that it cannot fill"),
        ([4, -1, 0, 0], LONG_COLUMN, "column that it cannot fill"),
        ([3, 0, 0, 0], LONG_COLUMN, "column that it cannot fill"),
        ([22, 0, 0, 0], LONG_COLUMN, "column that it cannot fill"),
        ([4, 0, 0, 1, 0], LONG_COLUMN, "too few operands or too many"),
        ([15, 0, -1, 0], [(4, 1)], "too few operands or too many"),
        ([14, 0, -1, 0], [(5, 1)], "size below 0"),
        ([19, -1, 0, 1, 1], LONG_COLUMN, "leads to none"),
        ([19, -1, 0, 1, 5], LONG_COLUMN, "leads to none"),
        ([19, -1, 0, 1, -5], LONG_COLUMN, "leads to none"),
        ([20, 0, 0, 1, 5, 4, 1, 0, 0], [(7, 3), (3, 2), (3, 3)], "none of its node"),
        ([21, 0, 0, 1, 5, 4, 1, 0, 0], [(7, 2), (3, 2)], "none of its node"),
        ([21, 0, 0, 1, 5, 4, 1, 0, 0], [(7, 3), (3, 2), (3, 3)], "none of its node"),
        (LONG_CODE, [], "no column"),
        (LONG_CODE, [(10, 1)], "no kind"),
        (LONG_CODE, [(3, 2)], "no kind"),
        (LONG_CODE, [(3, 0)], "no kind"),
        (LONG_CODE, [(7, 1)], "children that it cannot have"),
        (LONG_CODE, [(3, 2), (3, 2)], "children that it cannot have"),
        (LONG_CODE, [(6, 2), (3, 3), (3, 3)], "no tree"),
    ],
)
def test_programs_that_are_none_are_refused(
    kernel: Kernel, code: list[int], columns: list[tuple[int, int]], why: str
) -> None:
    with pytest.raises(SystemError, match=why):
        call(kernel, code, columns)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rows": -1}, "rows that are none"),
        ({"begin": -1}, "rows that are none"),
        ({"rows": 3}, "too small"),
        ({"refused": np.zeros(1, np.int32)}, "too small"),
        ({"state": np.zeros(4, np.int64)}, "too small"),
        ({"state": np.array([3, 0, 0, 0, 0], np.int64)}, "does not leave"),
        ({"state": np.array([0, 1, 0, 0, 0], np.int64)}, "does not leave"),
        ({"state": np.array([0, 0, 9, 0, 0], np.int64)}, "fuller than its buffers"),
        ({"state": np.array([0, 0, 0, 65, 0], np.int64)}, "fuller than its buffers"),
        ({"buffers": [[None, None]]}, "three buffers"),
        ({"values": (np.array([0, 1, 3], np.int32), None, b"\2\4", 0)}, "leaves its data"),
        ({"values": None}, "does not leave"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kernel: Kernel, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(SystemError, match=why):
        call(kernel, LONG_CODE, LONG_COLUMN, **changed)


PARTS = {"type": "array", "items": ["null", record(*((f"f{n}", "long") for n in range(100)), name="P")]}


def test_a_short_value_of_many_null_items_is_bad_before_it_fills_the_memory() -> None:
    raw = long(200_000) + b"\0" * 200_000 + b"\0"
    few = long(2) + b"\0" * 2 + b"\0"
    decoded = AvroDecoder(AvroSchema(json.dumps(record(("parts", PARTS))))).decode(pa.array([few, raw, few[:-1], None]))
    assert list(decoded.bad) == [1, 2]
    assert "memory" in decoded.bad[1]
    assert "end too early" in decoded.bad[2]
    assert decoded.column.to_pylist() == [{"parts": [None, None]}, None, None, None]


def test_columns_of_one_array_grow_together(kernel: Kernel) -> None:
    """A value is begun again after each growth: a hundred columns must not make it a hundred times as often."""

    class Counting:
        calls = 0

        def decode_avro(self, *args: Any) -> int:
            self.calls += 1
            return kernel.decode_avro(*args)

    step = parse_avro(AvroSchema(json.dumps(record(("parts", PARTS)))))
    kind, counting = column_of(step), Counting()
    raw = long(10_000) + (long(1) + bytes(100)) * 10_000 + b"\0"
    column, refused = BatchProgram(resolve(step, step), kind).decode(cast(Kernel, counting), pa.array([raw]), 0)
    assert (len(refused), len(column[0]["parts"])) == (0, 10_000)
    assert counting.calls < 30
