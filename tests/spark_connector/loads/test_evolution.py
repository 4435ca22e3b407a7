"""What a load may change in a table's schema: the steps, and the refusals with their ways out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.loads.evolution import (
    AddColumn,
    Step,
    WidenColumn,
    evolve,
    evolved,
    layout_schema,
    type_name,
)
from spark_connector.loads.grammar import Evolution

NONE, ADD, WIDEN = (Evolution.parse(text) for text in ("none", "add", "add,widen"))

TABLE = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("price", pa.decimal128(10, 2)),
        ("customer", pa.struct([("name", pa.string()), ("score", pa.float32())])),
        ("items", pa.list_(pa.struct([("sku", pa.string())]))),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("load", pa.string()),
    ]
)


def changed(**types: pa.DataType | None) -> pa.Schema:
    """The columns of TABLE, some with another type, some left out (None), some new."""
    found = {field.name: field.type for field in TABLE} | types
    return pa.schema([(name, type) for name, type in found.items() if type is not None])


def steps_of(incoming: pa.Schema, policy: Evolution = WIDEN, *, widens: bool = True) -> tuple[Step, ...]:
    return evolve(TABLE, incoming, policy, where="the table T", widens=widens)


@pytest.mark.parametrize("policy", [NONE, ADD, WIDEN])
def test_the_same_columns_need_no_step(policy: Evolution) -> None:
    other_forms = changed(load=pa.large_string(), items=pa.large_list(TABLE.field("items").type.value_type))
    assert steps_of(TABLE, policy) == steps_of(other_forms, policy) == ()


def test_a_column_that_the_rows_lack_stays() -> None:
    assert steps_of(changed(price=None, tags=None, customer=pa.struct([("name", pa.string())]))) == ()


def test_a_new_column_is_added_as_optional() -> None:
    incoming = pa.schema([*TABLE, pa.field("note", pa.string(), nullable=False)])
    steps = steps_of(incoming, ADD)
    assert steps == (AddColumn(("note",), pa.string()),)
    assert evolved(TABLE, steps) == pa.schema([*TABLE, ("note", pa.string())])


def test_a_new_field_of_a_struct_is_added_at_every_depth() -> None:
    incoming = changed(
        customer=pa.struct([("score", pa.float32()), ("mail", pa.struct([("host", pa.string())]))]),
        items=pa.list_(pa.struct([("count", pa.int64()), ("sku", pa.string())])),
    )
    steps = steps_of(incoming, ADD)
    assert steps == (
        AddColumn(("customer", "mail"), pa.struct([("host", pa.string())])),
        AddColumn(("items", "element", "count"), pa.int64()),
    )
    assert evolve(evolved(TABLE, steps), incoming, NONE, where="T") == ()


def test_types_grow_where_the_policy_says_so() -> None:
    incoming = changed(
        id=pa.int64(),
        price=pa.decimal128(12, 2),
        customer=pa.struct([("name", pa.string()), ("score", pa.float64())]),
        tags=pa.map_(pa.string(), pa.int64()),
    )
    steps = steps_of(incoming)
    assert [step.path for step in steps] == [("id",), ("price",), ("customer", "score"), ("tags", "value")]
    assert all(isinstance(step, WidenColumn) for step in steps)
    after = evolved(TABLE, steps)
    assert not after.field("id").nullable
    assert evolve(after, incoming, NONE, where="T") == ()


@pytest.mark.parametrize("policy", [NONE, ADD, WIDEN])
def test_narrower_rows_fit_a_table_that_was_widened(policy: Evolution) -> None:
    narrow = changed(id=pa.int16(), price=pa.decimal128(4, 2))
    assert steps_of(narrow, policy) == ()
    layout = layout_schema(TABLE, narrow)
    assert (layout.field("id").type, layout.field("price").type) == (pa.int32(), pa.decimal128(10, 2))


@pytest.mark.parametrize(
    ("incoming", "policy", "message"),
    [
        (changed(note=pa.string()), NONE, "no column 'note': add it .schema_evolution=add does., or leave it out"),
        (changed(ID=pa.int32()), WIDEN, "has a column 'id', which is 'ID' to Spark: rename it"),
        (
            changed(id=pa.int64()),
            NONE,
            "'id' as integer, not long: set schema_evolution=add,widen, or load",
        ),
        (changed(id=pa.int64()), ADD, "'id' as integer, not long: set schema_evolution=add,widen"),
        (changed(id=pa.string()), WIDEN, "'id' as integer, not string: load into another table, or leave it out"),
        (changed(price=pa.decimal128(12, 3)), WIDEN, r"'price' as decimal\(10,2\), not decimal\(12,3\): load"),
        (changed(tags=pa.map_(pa.int32(), pa.int32())), WIDEN, "'tags' as map<string, integer>, not map<integer"),
        (changed(items=pa.string()), WIDEN, "'items' as array<struct<sku: string>>, not string"),
        (changed(id=None), WIDEN, "columns that a load cannot fill: id"),
        (changed(load=pa.int32()), WIDEN, "a column 'load' of its own, of type string"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_ways_out(incoming: pa.Schema, policy: Evolution, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        steps_of(incoming, policy)


def test_a_table_whose_types_cannot_change_says_so() -> None:
    with pytest.raises(ConfigError, match="'id' as integer, not long, and the type of a column cannot change there"):
        steps_of(changed(id=pa.int64()), WIDEN, widens=False)


@pytest.mark.parametrize("text", ["", "widen", "all", "add;widen", "none,add"])
def test_an_unknown_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"none, add or add,widen"):
        Evolution.parse(text)


def test_policies_ignore_case_and_spaces() -> None:
    assert Evolution.parse(" Widen , ADD") == WIDEN


def test_types_have_the_names_of_spark() -> None:
    names = [
        type_name(type) for type in (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.large_binary(), pa.date32())
    ]
    assert names == ["timestamp", "timestamp_ntz", "binary", "date"]
