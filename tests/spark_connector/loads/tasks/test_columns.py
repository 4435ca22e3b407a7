"""The columns of a table made of those of a read: flattened, nested, renamed, and refused with what to do."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.loads.grammar import parse_columns, parse_partition_by, parse_sort_by
from spark_connector.loads.tasks.columns import TableColumns, check_sort_by, refuse_alike_fields, refuse_empty_structs

VALUE = pa.struct(
    [
        ("id", pa.int64()),
        ("address", pa.struct([("city", pa.string()), ("zip", pa.string())])),
        ("tags", pa.list_(pa.string())),
    ]
)
SOURCE = pa.schema(
    [
        *[("key", pa.binary()), ("value", VALUE), ("topic", pa.string()), ("partition", pa.int32())],
        *[("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("_corrupt_record", pa.binary())],
    ]
)
ROWS = pa.Table.from_pylist(
    [
        {"value": {"id": 1, "address": {"city": "Bonn", "zip": "53"}, "tags": ["a"]}, "offset": 7},
        {"value": {"id": 2, "address": None, "tags": None}, "offset": 8},
        {"value": None, "offset": 9, "_corrupt_record": b"bad"},
    ],
    SOURCE,
)


def made(columns: str | None, rows: pa.Table = ROWS, partition_by: str | None = None) -> pa.Table:
    columns_of = TableColumns.of(parse_columns(columns), SOURCE, parse_partition_by(partition_by))
    table = pickle.loads(pickle.dumps(columns_of)).apply(rows)
    assert table.schema == columns_of.schema
    return table


def test_without_the_option_the_table_has_the_columns_of_the_read() -> None:
    assert made(None).equals(ROWS)


def test_a_star_flattens_one_level_and_a_path_takes_one_field() -> None:
    found = made("value.*,value.address.city,value as raw,offset as position,_corrupt_record")
    assert found.column_names == ["id", "address", "tags", "city", "raw", "position", "_corrupt_record"]
    assert found["id"].to_pylist() == [1, 2, None]
    assert found["city"].to_pylist() == ["Bonn", None, None]
    assert found["address"].to_pylist() == [{"city": "Bonn", "zip": "53"}, None, None]
    assert found["raw"].to_pylist() == ROWS["value"].to_pylist()
    assert found["_corrupt_record"].to_pylist() == [None, None, b"bad"]


def test_slices_and_many_chunks_are_as_the_whole() -> None:
    rows = pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1), ROWS.slice(2, 0)])
    assert made("value.address.*,offset", rows).to_pylist() == made("value.address.*,offset").to_pylist()
    assert made("value.address.*,offset", ROWS.slice(1)).to_pylist()[0] == {"city": None, "zip": None, "offset": 8}
    assert made("value.id", ROWS.slice(0, 0)).num_rows == 0


def test_date_and_hour_are_of_the_record_in_utc_unless_the_table_has_such_columns() -> None:
    times = [-1000, 0, 253_402_300_800_000_000, -62_167_219_200_000_001]
    rows = pa.Table.from_pylist([{"offset": 0} for _ in times], SOURCE)
    rows = rows.set_column(5, SOURCE.field("timestamp"), pa.array(times, pa.timestamp("us", "UTC")))
    found = made("offset", rows, "date,hour")
    assert found["date"].cast(pa.int32()).to_pylist() == [-1, 0, 2_932_897, -719_529]
    assert found["hour"].to_pylist() == [23, 0, 0, 23]
    assert found["date"][0].as_py() == datetime.fromtimestamp(-1, UTC).date() == date(1969, 12, 31)
    with pytest.raises(ConfigError, match="'Date' and 'date' are one name to Spark"):
        made("offset as Date", partition_by="date")
    assert made("offset as date", partition_by="date").schema.field("date").type == pa.int64()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("valeu.id", "the read has no column 'valeu'. Did you mean 'value'?"),
        ("value.adress", "'value' has no field 'adress'. Did you mean 'address'?"),
        ("value.address.x", r"'value.address' has no field 'x'. There are city, zip"),
        ("value.tags.x", r"'value.tags' is of type list<.*>, which has no fields"),
        ("key.*", r"'key' is of type binary, which has no fields: set keyFormat \(--option\)"),
        ("value.*,offset as id", "'id' comes twice; rename one: id as other_name"),
        ("value.*,offset as ID", "'id' and 'ID' are one name to Spark"),
        ("offset as load", "'load' names the load of a row in every table"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(columns: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(columns)


def test_a_sort_is_by_columns_with_an_order() -> None:
    schema = TableColumns.of(parse_columns("value.*"), SOURCE).schema
    check_sort_by(parse_sort_by("id desc"), schema)
    with pytest.raises(ConfigError, match="the table has no column 'ids'. Did you mean 'id'"):
        check_sort_by(parse_sort_by("ids"), schema)
    with pytest.raises(ConfigError, match=r"of type list<.*>, which has no order"):
        check_sort_by(parse_sort_by("tags"), schema)


@pytest.mark.parametrize(
    ("type", "where"),
    [
        (pa.struct([]), "'v' is a record without fields"),
        (pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.struct([]))]))), r"'v\.value\.a' is"),
    ],
)
def test_a_record_without_fields_is_refused_before_a_row_is_written(type: pa.DataType, where: str) -> None:
    refuse_empty_structs(pa.schema([("k", pa.int64()), ("s", pa.struct([("a", pa.int64())]))]))
    with pytest.raises(ConfigError, match=where):
        refuse_empty_structs(pa.schema([("k", pa.int64()), ("v", type)]))


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"a": pa.struct([("id", pa.int64()), ("ID", pa.int64())])}, "'a' has the fields 'id' and 'ID'"),
        (
            {"a": pa.list_(pa.struct([("s", pa.struct([("Ä", pa.int8()), ("ä", pa.int8())]))]))},
            "'a.s' has .* 'Ä' and 'ä'",
        ),
        ({"a": pa.map_(pa.string(), pa.struct([("x", pa.int8()), ("y", pa.int8()), ("X", pa.int8())]))}, "'x' and 'X'"),
    ],
)
def test_fields_that_differ_only_in_case_are_refused(columns: dict[str, pa.DataType], where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        refuse_alike_fields(pa.schema(columns))
    refuse_alike_fields(pa.schema({"a": pa.struct([("id", pa.int64()), ("b", pa.struct([("ID", pa.int64())]))])}))
