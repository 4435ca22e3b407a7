"""The options that encode columns to keys and values of a write (`valueFormat`, `keyColumns`, …), checked and typed.

Called by write_options.py. What the DataFrame's columns decide is checked by write/input_columns.py, and schemas in
files and registries are loaded by formats/record_encoder.py. Raises ConfigError.
"""

from __future__ import annotations

import re

from broker.errors import ConfigError
from spark_connector.formats.value_format import Schema, SchemaFile, SchemaSubject
from spark_connector.formats.write_format import (
    ALL_COLUMNS,
    TO_JSON,
    WRITE_FORMATS,
    ColumnWrite,
    JsonText,
    SubjectStrategy,
    WriteFormats,
    WriteMode,
)
from spark_connector.options.option_table import OptionValues
from spark_connector.options.registry_options import ACCESS, URL, refuse_login, refuse_options, registry_settings

_WITH_SCHEMA = ("avro", "protobuf")
_JSON = ("ignoreNullFields", "timestampFormat", "timestampNTZFormat", "dateFormat")
_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]+))\s*(?:,|\Z)")


def parse_write_formats(values: OptionValues, topic: str | None) -> WriteFormats:
    """`topic`: of all rows, if the options name it."""
    registries: list[str] = []
    key, value = (_column_write(values, name, registries) for name in ("key", "value"))
    made = {"'keyFormat' or 'valueFormat'": {key.name, value.name}}
    _refuse_without(values, _JSON, made, ("json",))
    _refuse_without(values, (URL, *ACCESS), made, ("json", *_WITH_SCHEMA))
    _refuse_without(values, ("autoRegister",), made, ("json", *_WITH_SCHEMA))
    if values.boolean("autoRegister") and not any(_may_register(one) for one in (key, value)):
        raise ConfigError(
            "Option 'autoRegister' has no effect beside the id of a schema or its address in the registry: that one is "
            "registered"
        )
    mode, bad_rows_topic = _mode(values, topic)
    formats = WriteFormats(key, value, mode, bad_rows_topic, registry_settings(values, registries))
    if not formats.columns:
        refuse_options(values, ("mode", "badRowsTopic"), "needs 'valueFormat' or 'keyFormat'")
    if formats.registry is None:
        needy = (*(f"{name}{what}" for name in ("key", "value") for what in ("SchemaId", "SubjectStrategy")),)
        refuse_options(values, (*needy, "autoRegister"), f"needs '{URL}'")
    return formats


def _may_register(one: ColumnWrite) -> bool:
    """Whether the schema of a column can be new to the registry."""
    return one.name in {"json", *_WITH_SCHEMA} and one.schema_id is None and not isinstance(one.schema, SchemaSubject)


def _column_write(values: OptionValues, column: str, registries: list[str]) -> ColumnWrite:
    """How `column`, key or value, is made. If its schema is in a registry, appends the address to `registries`."""
    columns = _columns(values, f"{column}Columns")
    if column == "key" and columns == ALL_COLUMNS:
        raise ConfigError("Option 'keyColumns' must name the columns of the key, not '*'")
    if f"{column}Format" in values:
        name = values.one_of(f"{column}Format", WRITE_FORMATS)
    elif column == "key" and columns:
        name = "string" if len(columns) == 1 else "json"
    else:
        name = "binary"
        refuse_options(values, (f"{column}Columns",), f"needs '{column}Format'")
    made = {f"'{column}Format'": {name}}
    _refuse_without(values, (f"{column}Schema",), made, ("json", *_WITH_SCHEMA))
    _refuse_without(values, (f"{column}SchemaId", f"{column}SubjectStrategy"), made, ("json", *_WITH_SCHEMA))
    _refuse_without(values, (f"{column}Message",), made, ("protobuf",))
    if not columns and column == "key" and name != "binary":
        raise ConfigError(f"Option 'keyFormat'={name} needs option 'keyColumns': the columns that make the key")
    if name == "binary" and columns == ALL_COLUMNS:
        raise ConfigError(
            f"Option 'valueFormat'=binary takes one column: name it in 'valueColumns', or set 'valueFormat' to one of "
            f"{', '.join(WRITE_FORMATS[1:])}"
        )
    if name in {"binary", "string"} and len(columns) > 1:
        raise ConfigError(
            f"Option '{column}Format'={name} takes one column, but '{column}Columns' names {len(columns)}: "
            f"{', '.join(columns)}. Set '{column}Format' to json, avro or protobuf"
        )
    schema = _schema(values, f"{column}Schema", name, registries)
    for option, names_schema in (
        ("Schema", isinstance(schema, SchemaSubject)),
        ("SchemaId", f"{column}SchemaId" in values),
    ):
        if names_schema:
            why = f"chooses a subject, but '{column}{option}' names the schema in the registry"
            refuse_options(values, (f"{column}SubjectStrategy",), why)
    return ColumnWrite(
        name,
        columns if columns or name == "binary" else ALL_COLUMNS,
        schema,
        values.text(f"{column}Message"),
        values.optional_long(f"{column}SchemaId"),
        SubjectStrategy(values.one_of(f"{column}SubjectStrategy", tuple(one.value for one in SubjectStrategy))),
        values.boolean("autoRegister"),
        _json_text(values),
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
        if name in _WITH_SCHEMA and URL not in values:
            raise ConfigError(
                f"Option '{option.removesuffix('Schema')}Format'={name} needs option '{option}', or the registry that "
                f"has the schema ('{URL}')"
            )
        return None
    refuse_login(option, text)
    if name == "json" and URL not in values and not re.match(r"https?://", text, re.IGNORECASE):
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
    for option in _JSON[1:]:
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
    asked = (values.text("mode") or ("failfast" if bad_rows_topic is None else "dropmalformed")).lower()
    if asked not in {mode.value for mode in WriteMode}:
        raise ConfigError(f"Option 'mode' of a write must be FAILFAST or DROPMALFORMED, not '{values.text('mode')}'")
    mode = WriteMode(asked)
    if mode is WriteMode.FAILFAST and bad_rows_topic is not None:
        raise ConfigError("Option 'badRowsTopic' has no effect in mode FAILFAST: the first bad row fails the write")
    if mode is WriteMode.DROPMALFORMED and bad_rows_topic is None:
        raise ConfigError("Option 'mode'=DROPMALFORMED needs 'badRowsTopic': a write loses no row silently")
    return mode, bad_rows_topic


def _refuse_without(
    values: OptionValues, names: tuple[str, ...], made: dict[str, set[str]], needed: tuple[str, ...]
) -> None:
    """Refuse `names` unless a format in `made`, under the option it is named by, is one of those `needed`."""
    ((option, formats),) = made.items()
    if not formats & set(needed):
        refuse_options(values, names, f"needs {option} to be {' or '.join(needed)}")
