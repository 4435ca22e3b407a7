"""The options that encode columns to keys and values of a write (`valueFormat`, `keyColumns`, …), checked and typed.

Called by write_options.py. What the DataFrame's columns decide is checked by write/column_choice.py, and schemas in
files and registries are loaded by formats/record_encoder.py. Raises ConfigError.
"""

from __future__ import annotations

import re

from broker.errors import ConfigError
from spark_connector.formats.value_format import (
    CONTAINER,
    REGISTERED,
    VALUE_FORMATS,
    WRITE_FORMATS,
    Schema,
    SchemaFile,
    SchemaSubject,
)
from spark_connector.formats.write_format import (
    ALL_COLUMNS,
    TO_JSON,
    ColumnWrite,
    JsonText,
    SubjectStrategy,
    WriteFormats,
    WriteMode,
)
from spark_connector.options.option_values import OptionValues, check_rows, is_http
from spark_connector.options.registry_options import URL, avro_encoding, refuse_login, registry_settings
from spark_connector.options.write_option_table import WRITE_OPTIONS

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]+))\s*(?:,|\Z)")


def parse_write_formats(values: OptionValues, topic: str | None, scope: str) -> WriteFormats:
    """`topic`: of all rows, if the options name it; `scope`: batch or stream."""
    columns = {name: _columns(values, f"{name}Columns") for name in ("key", "value")}
    names = {name: _format(values, name, columns[name]) for name in columns}
    encoded = {name: one for name, one in names.items() if one != "binary" or columns[name]}
    check_rows(values, WRITE_OPTIONS, scope, encoded)
    registries: list[str] = []
    key, value = (_column_write(values, name, one, columns[name], registries) for name, one in names.items())
    if values.boolean("autoRegister") and not any(map(_may_register, (key, value))):
        raise ConfigError(
            "Option 'autoRegister' has no effect beside the id of a schema or its address in the registry: that one is "
            "registered"
        )
    return WriteFormats(key, value, *_mode(values, topic), registry_settings(values, registries))


def _may_register(one: ColumnWrite) -> bool:
    """Whether the schema of a column can be new to the registry."""
    return one.name in REGISTERED and one.schema_id is None and not isinstance(one.schema, SchemaSubject)


def _format(values: OptionValues, column: str, columns: tuple[str, ...]) -> str:
    if f"{column}Format" in values:
        return values.word(f"{column}Format")
    return "binary" if column == "value" or not columns else "string" if len(columns) == 1 else "json"


def _column_write(
    values: OptionValues, column: str, name: str, columns: tuple[str, ...], registries: list[str]
) -> ColumnWrite:
    """How `column`, key or value, is made. If its schema is in a registry, appends the address to `registries`."""
    if column == "key" and columns == ALL_COLUMNS:
        raise ConfigError("Option 'keyColumns' must name the columns of the key, not '*'")
    if not columns and column == "key" and name != "binary":
        raise ConfigError(f"Option 'keyFormat'={name} needs option 'keyColumns': the columns that make the key")
    if name == "binary" and columns == ALL_COLUMNS:
        raise ConfigError(
            f"Option 'valueFormat'=binary takes one column: name it in 'valueColumns', or set 'valueFormat' to one of "
            f"{', '.join(WRITE_FORMATS[1:])}"
        )
    if not VALUE_FORMATS[name].schema and len(columns) > 1:
        raise ConfigError(
            f"Option '{column}Format'={name} takes one column, but '{column}Columns' names {len(columns)}: "
            f"{', '.join(columns)}. Set '{column}Format' to json, avro or protobuf"
        )
    schema = _schema(values, f"{column}Schema", name, registries)
    for option, names_schema in (
        ("Schema", isinstance(schema, SchemaSubject)),
        ("SchemaId", f"{column}SchemaId" in values),
    ):
        if names_schema and f"{column}SubjectStrategy" in values:
            raise ConfigError(
                f"Option '{column}SubjectStrategy' has no effect: it chooses a subject, but '{column}{option}' names "
                "the schema in the registry"
            )
    encoding = avro_encoding(values, column, schema)
    if encoding == CONTAINER:
        raise ConfigError(f"Option '{column}Encoding'=container is for reads: write files, or single-object values")
    return ColumnWrite(
        name,
        columns if columns or name == "binary" else ALL_COLUMNS,
        schema,
        values.text(f"{column}Message"),
        values.text(f"{column}SchemaId"),
        SubjectStrategy(values.word(f"{column}SubjectStrategy")),
        values.boolean("autoRegister"),
        _json_text(values),
        values.word("schemaIdLocation") == "header",
        encoding,
    )


def _columns(values: OptionValues, option: str) -> tuple[str, ...]:
    """The names in the order given; empty when the option is not set."""
    text = values.text(option)
    if text is None:
        return ()
    names: list[str] = []
    position = 0
    while position < len(text) or not names or text[-1:] == ",":
        match = _COLUMN.match(text, position)
        name = match and (match[1].replace("``", "`") if match[1] else match[2].strip())
        if not match or not name:
            raise ConfigError(
                f"Option '{option}' must be names separated by commas, in backticks where they have commas, not "
                f"'{text}'"
            )
        names.append(name)
        position = match.end()
        if position == len(text) and text[-1] != ",":
            break
    if len(set(names)) < len(names):
        raise ConfigError(f"Option '{option}' names a column twice: '{text}'")
    if "*" in names and len(names) > 1:
        raise ConfigError(f"Option '{option}' must be '*' alone, or names without it, not '{text}'")
    return tuple(names)


def _schema(values: OptionValues, option: str, name: str, registries: list[str]) -> Schema:
    text = values.text(option)
    if not text:
        if VALUE_FORMATS[name].opaque and not values.has_registry:
            raise ConfigError(
                f"Option '{option.removesuffix('Schema')}Format'={name} needs option '{option}', or the registry that "
                f"has the schema ('{URL}')"
            )
        return None
    refuse_login(option, text)
    if name == "json" and not values.has_registry and not is_http(text):
        raise ConfigError(
            f"Option '{option}' has no effect on format json: it needs '{URL}', or a schema in a registry"
        )
    # These imports load fastavro, fsspec and an HTTP client, which plain writes do not need.
    from spark_connector.formats.schema_text import parse_json_text, parse_registry_url, parse_schema_text

    try:
        if (found := parse_registry_url(text)) is not None:
            registries.append(found[0])
            return found[1]
        if name == "json":
            return parse_json_text(text)
        return parse_schema_text(text, avro=True) if name == "avro" else SchemaFile(text)
    except ConfigError as error:
        raise ConfigError(f"Option '{option}': {error}") from None


def _json_text(values: OptionValues) -> JsonText:
    for option in ("timestampFormat", "timestampNTZFormat", "dateFormat"):
        if values.text(option) == "":
            raise ConfigError(
                f"Option '{option}' is empty: every time would be written as \"\"; leave it out, or set a pattern"
            )
    return JsonText(
        values.boolean("ignoreNullFields"),
        values.text("timestampFormat") or TO_JSON.timestamp_format,
        values.text("timestampNTZFormat") or TO_JSON.timestamp_ntz_format,
        values.text("dateFormat") or TO_JSON.date_format,
    )


def _mode(values: OptionValues, topic: str | None) -> tuple[WriteMode, str | None]:
    bad_rows_topic = values.text("badRowsTopic")
    if bad_rows_topic is not None and bad_rows_topic in {"", topic}:
        raise ConfigError(f"Option 'badRowsTopic' must name a topic other than the write's, not '{bad_rows_topic}'")
    unset = WriteMode.FAILFAST if bad_rows_topic is None else WriteMode.DROPMALFORMED
    mode = WriteMode(values.word("mode")) if values.text("mode") else unset
    if mode is WriteMode.FAILFAST and bad_rows_topic is not None:
        raise ConfigError("Option 'badRowsTopic' has no effect in mode FAILFAST: the first bad row fails the write")
    if mode is WriteMode.DROPMALFORMED and bad_rows_topic is None:
        raise ConfigError("Option 'mode'=DROPMALFORMED needs 'badRowsTopic': a write loses no row silently")
    return mode, bad_rows_topic
