"""JSON and text of every type, against Spark's own to_json and cast: the same rows through both, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_connector.formats.json_encoder import JsonEncoder
from spark_connector.formats.text_encoder import TextEncoder
from spark_connector.formats.write_format import JsonText

ROWS = 2000
_ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "+05:30")
_FLOAT = re.compile(r'("f":)(-?[\d.]+(?:E-?\d+)?)')
_DOUBLE = re.compile(r"-?\d+\.\d+E-?\d+|-?\d+\.\d{9,}")


def numbers(random: np.random.Generator) -> np.ndarray:
    """Doubles of all sizes, the odd ones first."""
    odd = [0.0, -0.0, 1.0, 0.001, 0.00099999, 9999999.0, 1e7, 12345678.5, -1e15, 1e16, 1e21, 1.5e-7, 1e-5, 100.0, 1e22]
    odd += [
        np.nan,
        np.inf,
        -np.inf,
        2.0**53,
        123456789012345680.0,
        1.7976931348623157e308,
        3.4e38,
        0.1,
        1 / 3,
        2**-1022,
    ]
    scaled = np.round(random.standard_normal(ROWS - len(odd)), 3) * 10.0 ** random.integers(-12, 20, ROWS - len(odd))
    return np.concatenate([odd, [float(f"{number:.9g}") for number in scaled]])


def texts(random: np.random.Generator) -> list[str]:
    alphabet = [*map(chr, range(40)), "\\", "é", "\x7f", "\u2028", "😀", "a", "b", "/", "<", "\ufeff", "\ud7ff"]
    return ["".join(random.choice(alphabet, int(size))) for size in random.integers(0, 12, ROWS)]


def table(seed: int) -> pa.Table:
    """A column of each type, with nulls."""
    random = np.random.default_rng(seed)

    def holes(made: pa.Array) -> pa.Array:
        return made.take(pa.array(np.arange(len(made)), mask=random.random(len(made)) < 0.2))

    doubles, words = pa.array(numbers(random)), pa.array(texts(random))
    integers = pa.array(random.integers(-(2**63), 2**63 - 1, ROWS))
    micros = random.integers(-62135596800_000000, 253402300799_999999, ROWS)
    micros[:40] = np.arange(40) * 1_000_000 - 20_000_000
    micros[40:400] = random.integers(-(2**40), 2**51, 360)
    days = random.integers(-719162, 2932896, ROWS).astype(np.int32)
    unscaled = random.integers(-(10**14), 10**14, ROWS) // 10 ** random.integers(0, 14, ROWS)
    small = pa.array([Decimal(int(one)).scaleb(-18) for one in unscaled], pa.decimal128(38, 18))
    cents = pa.array([Decimal(int(one) % 1999 - 999).scaleb(-2) for one in unscaled], pa.decimal128(9, 2))
    sizes = random.integers(0, 4, ROWS)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    many = int(sizes.sum())
    flat = holes(pa.array(np.resize(numbers(random), many)))
    short = holes(pa.array(np.resize(np.array(texts(random), object), many)))
    keys = pa.array([f'k{n}"' for n in range(many)])
    dates = pa.array(np.arange(many).astype(np.int32)).view(pa.date32())
    columns = {
        "id": pa.array(np.arange(ROWS)),
        "l": holes(integers),
        "i": holes(pa.array(random.integers(-(2**31), 2**31 - 1, ROWS).astype(np.int32))),
        "y": holes(pa.array(random.integers(-128, 127, ROWS).astype(np.int8))),
        "d": holes(doubles),
        "f": holes(doubles.cast(pa.float32(), safe=False)),
        "p": holes(small),
        "p2": holes(cents),
        "ok": holes(pa.array(random.random(ROWS) < 0.5)),
        "s": holes(words),
        "b": holes(words.cast(pa.binary())),
        "t": holes(pa.array(micros).cast(pa.timestamp("us", "UTC"))),
        "n": holes(pa.array(micros).cast(pa.timestamp("us"))),
        "dt": holes(pa.array(days).view(pa.date32())),
        "ad": holes(pa.ListArray.from_arrays(offsets, flat)),
        "as": holes(pa.ListArray.from_arrays(offsets, short)),
        "m": holes(pa.MapArray.from_arrays(offsets, keys, short).cast(pa.map_(pa.string(), pa.string()))),
        "md": holes(pa.MapArray.from_arrays(offsets, dates, flat)),
        'o "x': holes(
            pa.StructArray.from_arrays(
                [holes(integers), holes(words), holes(pa.ListArray.from_arrays(offsets, flat))], ["q", "r\t", "z"]
            )
        ),
        "ao": holes(
            pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([holes(flat), holes(short)], ["x", "é"]))
        ),
    }
    return pa.table(columns)


def frame_of(spark: SparkSession, rows: pa.Table, directory: Path) -> DataFrame:
    """Through a file, because createDataFrame makes timestamps without a zone to such with one."""
    pq.write_table(rows, directory / "rows.parquet")
    return spark.read.parquet(str(directory / "rows.parquet"))


@pytest.fixture
def zoned(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def in_zone(rows: pa.Table, zone: str) -> pa.StructArray:
    """As Spark hands rows to a Python sink: timestamps have the session's zone."""
    schema = pa.schema(
        [
            field.with_type(pa.timestamp("us", zone)) if pa.types.is_timestamp(field.type) and field.type.tz else field
            for field in rows.schema
        ]
    )
    return rows.cast(schema).combine_chunks().to_struct_array().combine_chunks()


def differences(ours: list[str | None], spark: list[str | None]) -> list[tuple[str | None, str | None]]:
    """Where texts differ in more than digits of doubles that older Javas write needlessly."""
    return [(a, b) for a, b in zip(ours, spark, strict=True) if a != b and _shortest(a) != _shortest(b)]


def _shortest(text: str | None) -> str | None:
    """`text` with its doubles, and the floats of the field `f`, as numpy writes them."""
    if text is None:
        return None
    text = _FLOAT.sub(lambda found: f"{found[1]}{np.float32(found[2])!r}", text)
    return _DOUBLE.sub(lambda found: repr(float(found[0])), text)


@pytest.mark.parametrize("zone", _ZONES)
def test_json_is_that_of_to_json(zoned: SparkSession, zone: str, tmp_path: Path) -> None:
    zoned.conf.set("spark.sql.session.timeZone", zone)
    rows = table(_ZONES.index(zone))
    frame = frame_of(zoned, rows, tmp_path)
    every = F.struct(*[F.col(f"`{name}`") for name in frame.columns])
    pattern = {"timestampFormat": "yyyy/MM/dd'T''Z' HH.mm.ss.SSSSSSS[ xx]", "dateFormat": "dd.MM.yyyy[ HH]"}
    given = [
        ({}, JsonText()),
        (
            {"ignoreNullFields": "false", "timestampNTZFormat": "HH:mm[XXX]", **pattern},
            JsonText(False, pattern["timestampFormat"], "HH:mm[XXX]", pattern["dateFormat"]),
        ),
    ]
    found = frame.select("id", *[F.to_json(every, options).alias(f"j{n}") for n, (options, _) in enumerate(given)])
    by_spark = found.sort("id").toArrow().combine_chunks()
    for n, (_, text) in enumerate(given):
        batch = in_zone(rows, zone)
        ours = JsonEncoder(batch.type, text).encode(batch)
        assert ours.bad == {}
        wrong = differences(ours.values.cast(pa.string()).to_pylist(), by_spark[f"j{n}"].to_pylist())
        assert wrong == [], wrong[0]


@pytest.mark.parametrize("zone", _ZONES[:2])
def test_text_is_that_of_a_cast(zoned: SparkSession, zone: str, tmp_path: Path) -> None:
    zoned.conf.set("spark.sql.session.timeZone", zone)
    rows = table(7)
    frame = frame_of(zoned, rows, tmp_path)
    names = ["l", "i", "y", "d", "f", "p", "p2", "ok", "s", "b", "t", "n", "dt"]
    by_spark = frame.selectExpr("id", *[f"CAST({name} AS STRING) AS {name}" for name in names]).sort("id").toArrow()
    batch = in_zone(rows, zone)
    for name in names:
        column = batch.field(name)
        one = pa.StructArray.from_arrays([column], [name])
        ours = TextEncoder(one.type).encode(one).values.cast(pa.string()).to_pylist()
        theirs = by_spark[name].to_pylist()
        if name == "f":
            ours, theirs = ([one and f'"f":{one}' for one in both] for both in (ours, theirs))
        wrong = differences(ours, theirs)
        assert wrong == [], (name, wrong[0])
