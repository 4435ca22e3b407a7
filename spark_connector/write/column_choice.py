"""The columns of a written DataFrame, checked on the driver before any task runs.

source.py passes Spark's types as text. The rules are those of Spark's `KafkaWriter`: `value` is required, `key topic
partition headers` are optional, other columns are not written. `timestamp`, the time of the record, is ours. Wrong
columns raise ConnectorError under Spark's condition names. With options of formats, key and value are made of other
columns (formats/record_encoder.py). Tasks take the columns with input_columns.py, which needs Arrow, as this does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats.write_format import ALL_COLUMNS, ROLES, ColumnWrite, WriteFormats
from spark_connector.options.option_table import did_you_mean
from spark_connector.options.write_options import WriteOptions

_BYTES: Final = ("string", "binary")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
_WRONG: Final = "_LEGACY_ERROR_TEMP_3080"


def chosen_columns(names: Sequence[str], options: WriteOptions) -> WriteOptions:
    """`options` with the columns that `*` means in a DataFrame of these columns. Raises ConfigError for one that is
    missing, or that there is twice."""
    formats = options.formats
    key, value = (_chosen(f"{name}Columns", one, names, formats) for name, one in formats.columns_of_both.items())
    return replace(options, formats=replace(formats, key=key, value=value))


def _chosen(option: str, one: ColumnWrite, names: Sequence[str], formats: WriteFormats) -> ColumnWrite:
    if one.columns == ALL_COLUMNS:
        roles = {*ROLES, *(() if formats.key.columns else ("key",))}
        one = replace(one, columns=tuple(name for name in names if name not in roles))
        if not one.columns:
            raise ConfigError(f"Option '{option}': there are only columns that have a role: {', '.join(names)}")
        if one.name == "string" and len(one.columns) > 1:
            raise ConfigError(
                f"Option 'valueFormat'=string takes one column, but there are {len(one.columns)}: name one in "
                f"'{option}', or set 'valueFormat' to json. Columns are: {', '.join(one.columns)}"
            )
    for name in one.columns:
        if name not in names:
            hint = did_you_mean(name, {known.lower(): known for known in names})
            raise ConfigError(f"Option '{option}': no column '{name}'. {hint} Columns are: {', '.join(names)}")
        if names.count(name) > 1:
            raise ConfigError(f"Option '{option}': there are {names.count(name)} columns '{name}': drop or rename one")
    return one


def check_columns(columns: Sequence[tuple[str, str]], options: WriteOptions) -> None:
    """Raise ConnectorError unless columns of these names and types (Spark's `simpleString`) can be written.

    A column to write must not occur twice, as after a join (Spark's own sink takes the first one). Names that differ in
    case are different columns, as in Spark's own sink. Columns that a format encodes are not looked at.
    """
    encoded = options.formats.columns
    columns = [(name, kind) for name, kind in columns if name not in {*encoded, *options.formats.value.columns}]
    for name, count in Counter(name for name, _ in columns).items():
        if count > 1 and name in _TYPES:
            raise ConnectorError(
                _WRONG, f"There are {count} columns '{name}': select one of them, and drop or rename the others."
            )
    types = dict(columns)
    if "value" not in types and "value" not in encoded:
        raise ConnectorError(
            _WRONG,
            f"Required attribute 'value' not found; there are: {', '.join(types) or 'none'}. To write typed columns, "
            "set option 'valueFormat' to json, avro, protobuf or string.",
        )
    if options.topic is None and "topic" not in types:
        raise ConnectorError(
            _WRONG,
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        )
    if options.include_headers and "headers" not in types:
        raise ConnectorError(_WRONG, f"includeHeaders=true needs a column headers of type {_HEADERS}.")
    for name, allowed in _TYPES.items():
        found = types.get(name)
        if found is None or found in allowed or (name == "topic" and found.startswith(("varchar(", "char("))):
            continue
        if name == "headers" and options.include_headers is False:
            continue
        raise ConnectorError(
            _WRONG, f"{name} attribute unsupported type {found}. {name} must be a {' or '.join(allowed)}: cast it."
        )
