"""Times as texts: Spark's own for all years, and PostgreSQL's, which must read them back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_connector.loads.audit.verify_keys import KeyCounts
from spark_connector.loads.database.sql import as_copy, as_rows, open_engine
from spark_connector.loads.times import as_text, fits_python, in_words, without_times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC_US, DAY = pa.timestamp("us", "UTC"), pa.date32()
YEAR_10000, YEAR_0, LAST = 253_402_300_800_000_000, -62_167_219_200_000_000, 2**63 - 1
MOMENTS = [0, -1, 4, YEAR_10000 - 1, YEAR_10000, YEAR_0, YEAR_0 - 1, 1_795_222_923_000_004, LAST, -(2**63) + 10**15]
NESTED = pa.list_(pa.struct([("at", UTC_US), ("on", DAY), ("of", pa.map_(pa.string(), pa.timestamp("us")))]))


@settings(deadline=None)
@given(st.datetimes(), st.dates())
def test_where_python_has_a_time_the_text_is_pythons(moment: datetime, day: date) -> None:
    numbers = pa.array([moment], pa.timestamp("us")).cast(pa.int64()).to_pylist()
    assert as_text(numbers[0], pa.timestamp("us")) == str(moment)
    assert as_text(numbers[0], UTC_US) == str(moment.replace(tzinfo=UTC))
    assert as_text((day - date(1970, 1, 1)).days, DAY) == str(day)


def test_in_all_years_the_text_is_sparks(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(moment,) for moment in MOMENTS], "micros long")
    found = rows.selectExpr(
        "micros", "cast(timestamp_micros(micros) as string) text", "cast(timestamp_micros(micros) as date) day"
    ).selectExpr("micros", "text", "cast(day as string) day", "cast(unix_date(day) as int) days")
    for row in found.collect():
        assert as_text(row.micros, pa.timestamp("us")).rstrip("0") == row.text.rstrip("0")
        assert as_text(row.days, DAY) == row.day


def test_postgresql_reads_every_time_back(postgres: str) -> None:
    """Before 4714 BC it has none, and says so."""
    moments = [moment for moment in MOMENTS if moment > -(2**62)]
    days = [moment // 86_400_000_000 for moment in moments]
    values = [[{"at": moment, "on": day, "of": [("x", moment)]}] for moment, day in zip(moments, days, strict=True)]
    batch = pa.record_batch(
        [pa.array(moments).cast(UTC_US), pa.array(days, pa.int32()).cast(DAY), pa.array(values, NESTED)],
        names=["at", "on", "nested"],
    )
    epoch = "extract(epoch from (at - timestamptz 'epoch'))"
    with open_engine(postgres).begin() as connection:
        connection.execute(sqlalchemy.text('CREATE TEMPORARY TABLE x (at TIMESTAMPTZ, "on" DATE, nested JSONB)'))
        with connection.connection.cursor().copy("COPY x FROM STDIN (FORMAT csv)") as copy:
            copy.write(as_copy(batch))
        query = f"SELECT {epoch} * 1000000, \"on\" - date 'epoch', nested->0->>'at', nested->0->>'on' FROM x"
        found = connection.execute(sqlalchemy.text(query)).all()
    assert [(int(micros), days) for micros, days, *_ in found] == list(zip(moments, days, strict=True))
    assert [row[2] for row in found] == [as_text(moment, UTC_US) for moment in moments]
    assert [row[3] for row in found] == [as_text(day, DAY) for day in days]


def test_rows_hold_nested_times_that_python_lacks() -> None:
    batch = pa.record_batch([pa.array([[{"at": LAST, "on": None, "of": None}], None], NESTED)], names=["v"])
    assert as_rows(batch) == [
        {"v": [{"at": "+294247-01-10 04:00:54.775807+00:00", "on": None, "of": None}]},
        {"v": None},
    ]


@pytest.mark.parametrize(("moment", "fits"), [(YEAR_10000 - 1, True), (YEAR_10000, False), (YEAR_0, False), (0, True)])
def test_pythons_years_are_1_to_9999(moment: int, fits: bool) -> None:
    assert fits_python(pa.array([None, moment, 0]).cast(UTC_US)) is fits
    assert fits_python(pa.array([None, moment // 86_400_000_000], pa.int32()).cast(DAY)) is fits


def test_types_without_times_hold_the_same_numbers() -> None:
    values = [[{"at": LAST, "on": 2**31 - 1, "of": [("x", -1)]}]]
    assert pa.array(values, NESTED).cast(without_times(NESTED)).to_pylist() == values


@pytest.mark.parametrize(
    ("number", "type", "words"),
    [
        (YEAR_10000, UTC_US, "+10000-01-01 00:00:00+00:00"),
        (3_000_000, DAY, "+10183-09-21"),
        (LAST, pa.int64(), f"{LAST}"),
    ],
)
def test_a_message_names_values_that_python_does_not_have(number: int, type: pa.DataType, words: str) -> None:
    column = pa.array([number], without_times(type)).cast(type)
    assert in_words(column[0]) == words
    counts = KeyCounts()
    counts.add("are missing", pa.table({"key": column}))
    assert counts.problems == (f"1 keys are missing, such as key={words}",)
