"""A table's columns as the columns of the topics' records: what may differ is how a type is written, not what it says.
Arrow's cast finds the fields of a struct by name. It also casts between types that say something else (text to
numbers), so `fits` is asked first. Pure.
"""

from __future__ import annotations

import pyarrow as pa

_WIDER = {
    pa.int8(): {pa.int16(), pa.int32(), pa.int64()},
    pa.int16(): {pa.int32(), pa.int64()},
    pa.int32(): {pa.int64()},
    pa.float32(): {pa.float64()},
}


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the type has one that is equal in `wanted`."""
    given = _plain(given)
    if pa.types.is_struct(wanted):
        if not pa.types.is_struct(given):
            return False
        there = {given.field(at).name: given.field(at).type for at in range(given.num_fields)}
        fields = [wanted.field(at) for at in range(wanted.num_fields)]
        return there.keys() <= {one.name for one in fields} and all(
            fits(there[one.name], one.type) for one in fields if one.name in there
        )
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(given) and fits(given.key_type, wanted.key_type) and fits(given.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return pa.types.is_list(given) and fits(given.value_type, wanted.value_type)
    if pa.types.is_large_list(wanted):
        return fits(given, _plain(wanted))
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None)
    return given == _plain(wanted) or _plain(wanted) in _WIDER.get(given, ())


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that both fit; None when there is none."""
    if fits(one, other):
        return other
    return _deeply_plain(one) if fits(other, one) else None


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the schema, null where the batch has none. Raises pa.ArrowInvalid for a value without an equal."""
    arrays = [
        batch.column(one.name).cast(one.type) if one.name in batch.schema.names else pa.nulls(batch.num_rows, one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(type: pa.DataType) -> pa.DataType:
    """The type without how it is stored."""
    if pa.types.is_dictionary(type):
        return _plain(type.value_type)
    if pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_large_binary(type) or pa.types.is_binary_view(type):
        return pa.binary()
    if pa.types.is_large_list(type) or pa.types.is_list_view(type):
        return pa.list_(type.value_field)
    return type


def _deeply_plain(type: pa.DataType) -> pa.DataType:
    """As the batches of a read have it: no wide offsets, no metadata, everything nullable."""
    type = _plain(type)
    if pa.types.is_struct(type):
        return pa.struct([pa.field(one.name, _deeply_plain(one.type)) for one in type])
    if pa.types.is_map(type):
        return pa.map_(_deeply_plain(type.key_type), _deeply_plain(type.item_type))
    return pa.list_(_deeply_plain(type.value_type)) if pa.types.is_list(type) else type
