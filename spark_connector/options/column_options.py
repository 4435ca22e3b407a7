"""The columns of a read and their formats: `columns`, `includeHeaders`, `keyFormat`, `valueFormat` and their options.

Called by read_options.py. Spark does not tell a Python source which columns a query uses, so a user who wants speed
names them: other columns are not decoded. A schema written in an option is parsed here, so that a wrong one fails at
`load()`. A schema in a file or a registry is only located here; formats/record_decoder.py loads it. An option without
effect is an error. Raises ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.value_format import (
    BINARY,
    FORMATS,
    MOST_LEVELS,
    ColumnFormat,
    ParseMode,
    ReadFormats,
    RegistrySettings,
    SchemaFile,
    SchemaSubject,
    registry_address,
)
from spark_connector.options.option_table import did_you_mean
from spark_connector.options.option_values import OptionValues
from spark_connector.options.subscription_options import Assign, Selection, Subscribe

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Every column of Spark's own Kafka source, in its order; headers only with includeHeaders."""

_BY_NAME = {name.lower(): name for name in COLUMNS}
_LEVELS = "recursiveFieldMaxDepth"
_URL = "schema.registry.url"
_USER_INFO = "schema.registry.basic.auth.user.info"
_TOKEN = "schema.registry.bearer.auth.token"
_CA = "schema.registry.ssl.ca.location"
_LOGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]*:[^/\s]*@", re.IGNORECASE)
_EXAMPLE = "Spark's DDL, e.g. 'id BIGINT, name STRING', or a file with it"
_FOR_ANY_FORMAT = ("mode", "columnNameOfCorruptRecord", "badRecordsTopic")
_FOR_REGISTRY = (_USER_INFO, _TOKEN, _CA)


def parse_columns(values: OptionValues) -> tuple[str, ...]:
    """The columns in the order of the option `columns`; those of Spark's own source when it is not set."""
    include_headers = values.boolean("includeHeaders")
    text = values.text("columns")
    if text is None:
        return COLUMNS if include_headers else COLUMNS[:-1]
    columns = tuple(_known_column(name.strip()) for name in text.split(","))
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(f"Option 'columns' names '{name}' twice")
    if "includeHeaders" in values and include_headers != ("headers" in columns):
        raise ConfigError(
            f"Option 'includeHeaders' is {str(include_headers).lower()}, option 'columns' says otherwise: '{text}'. "
            "Leave out 'includeHeaders'; 'columns' may name headers like any other column."
        )
    return columns


def _known_column(name: str) -> str:
    """The column as Spark spells it; `name` is in any case, as everywhere in Spark."""
    known = _BY_NAME.get(name.lower())
    if known is not None:
        return known
    if not name:
        raise ConfigError(f"Option 'columns' has an empty name. Columns are: {', '.join(COLUMNS)}")
    hint = f"{did_you_mean(name, _BY_NAME)} Columns are: {', '.join(COLUMNS)}".lstrip()
    raise ConfigError(f"Option 'columns': unknown column '{name}'. {hint}")


def parse_formats(values: OptionValues, columns: Sequence[str], selection: Selection) -> ReadFormats:
    registries: list[str] = []
    key, value = (_format(values, name, columns, registries) for name in ("key", "value"))
    if key == value == BINARY:
        _refuse(values, (*_FOR_ANY_FORMAT, "sep", _LEVELS, _URL, *_FOR_REGISTRY), "needs 'valueFormat' or 'keyFormat'")
        return ReadFormats()
    if "csv" not in {key.name, value.name}:
        _refuse(values, ("sep",), "needs 'valueFormat' or 'keyFormat' to be csv")
    mode = ParseMode(values.one_of("mode", tuple(mode.value for mode in ParseMode)))
    if mode is not ParseMode.PERMISSIVE:
        _refuse(values, ("columnNameOfCorruptRecord",), "needs 'mode' to be PERMISSIVE")
    registry = _registry(values, {key.name, value.name}, registries)
    if "avro" in {key.name, value.name}:
        # The registry may be there for Avro alone, so JSON beside it is read with and without a prefix.
        key, value = (replace(one, is_plain_too=True) if one.name == "json" else one for one in (key, value))
    else:
        _refuse(values, (_LEVELS,), "needs 'valueFormat' or 'keyFormat' to be avro")
    formats = ReadFormats(
        key,
        value,
        mode,
        values.text("columnNameOfCorruptRecord") or "_corrupt_record",
        _bad_records_topic(values, mode, selection),
        registry,
    )
    for name in formats.corrupt_columns.values():
        if name in COLUMNS:
            raise ConfigError(f"Option 'columnNameOfCorruptRecord': there is a column '{name}' already")
    return formats


def subscribed_topics(selection: Selection) -> tuple[str, ...] | None:
    """The topics that the options name; None for a pattern."""
    match selection.subscription:
        case Subscribe(topics):
            return topics
        case Assign(partitions):
            return tuple(dict.fromkeys(tp.topic for tp in partitions))
    return None


def _format(values: OptionValues, column: str, columns: Sequence[str], registries: list[str]) -> ColumnFormat:
    """The format of `column`. If its schema is in a registry, appends the registry's address to `registries`."""
    name = values.one_of(f"{column}Format", FORMATS)
    option = f"{column}Schema"
    text = values.text(option)
    if name != "binary" and column not in columns:
        raise ConfigError(f"Option '{column}Format' has no effect: option 'columns' leaves out {column}")
    if name in {"binary", "string"}:
        if text is not None:
            raise ConfigError(f"Option '{option}' has no effect on format {name}: set '{column}Format' as well")
        return ColumnFormat(name)
    if not text and (name != "avro" or _URL not in values):
        raise ConfigError(
            f"Option '{column}Format'={name} needs option '{option}': "
            + ("an Avro schema, a file, or a registry (schema.registry.url)" if name == "avro" else _EXAMPLE)
        )
    levels, separator = _levels(values), _separator(values)
    if not text:
        return ColumnFormat(name, SchemaSubject(), most_levels=levels)
    if _LOGIN.match(text):
        raise ConfigError(
            f"Option '{option}' has a user and a password in its URL, which Spark's plans would show: remove them. "
            f"For a schema registry set '{_URL}' to http(s)://user:password@host:port, which plans hide"
        )
    # These imports load fastavro, fsspec and an HTTP client, which reads without formats do not need.
    from spark_connector.formats.record_decoder import column_decoder
    from spark_connector.formats.schema_text import parse_registry_url, parse_schema_text

    try:
        if (found := parse_registry_url(text)) is not None:
            if name != "avro":
                raise ConfigError(f"schemas of format {name} cannot come from a registry: {_EXAMPLE}")
            registries.append(found[0])
            return ColumnFormat(name, found[1], most_levels=levels)
        schema = parse_schema_text(text, avro=name == "avro")
        made = ColumnFormat(name, schema, separator, levels)
        if not isinstance(made.schema, SchemaFile):
            column_decoder(made)
    except ConfigError as error:
        raise ConfigError(f"Option '{option}': {error}") from None
    return made


def _levels(values: OptionValues) -> int:
    levels = values.long(_LEVELS, least=-1)
    if levels > MOST_LEVELS:
        raise ConfigError(f"Option '{_LEVELS}' should not be greater than {MOST_LEVELS}, it is {levels}")
    return levels


def _separator(values: OptionValues) -> str:
    text = values.text("sep")
    if text is None:
        return ","
    separator = {"\\t": "\t"}.get(text, text)
    if len(separator) != 1 or not separator.isascii() or separator in '"\\\r\n\0':
        raise ConfigError(f"Option 'sep' must be one ASCII character, a tab written as \\t, not '{text}'")
    return separator


def _bad_records_topic(values: OptionValues, mode: ParseMode, selection: Selection) -> str | None:
    topic = values.text("badRecordsTopic")
    if topic is None:
        return None
    if mode is ParseMode.FAILFAST:
        raise ConfigError("Option 'badRecordsTopic' has no effect in mode FAILFAST: the first bad record ends the read")
    is_read = selection.subscription.selects(TopicPartition(topic, 0)) or topic in (subscribed_topics(selection) or ())
    if not topic or is_read:
        raise ConfigError(f"Option 'badRecordsTopic' must name a topic that is not itself read, not '{topic}'")
    return topic


def _registry(values: OptionValues, formats: set[str], registries: list[str]) -> RegistrySettings | None:
    given = [url.strip() for url in (values.text(_URL) or "").split(",") if url.strip()]
    if not formats & {"avro", "json"}:
        _refuse(values, (_URL, *_FOR_REGISTRY), "needs 'valueFormat' or 'keyFormat' to be avro or json")
        return None
    user_infos = {values.text(_USER_INFO)} - {None}
    urls: list[str] = []
    for url in given or registries:
        address, user_info = registry_address(url)
        if address not in urls:
            urls.append(address)
        user_infos |= {user_info} - {None}
    if not urls:
        _refuse(values, _FOR_REGISTRY, f"needs '{_URL}'")
        return None
    others = {registry_address(url)[0] for url in registries} - set(urls)
    if others or (len(urls) > 1 and not given):
        raise ConfigError(f"Schemas in more than one registry: {', '.join(sorted({*urls, *others}))}. Name one")
    if len(user_infos) > 1 or (user_infos and _TOKEN in values):
        raise ConfigError(f"Set one of '{_USER_INFO}', '{_TOKEN}' and user:password@ in '{_URL}', not several")
    return RegistrySettings(tuple(urls), next(iter(user_infos), None), values.text(_TOKEN), values.text(_CA))


def _refuse(values: OptionValues, names: Sequence[str], why: str) -> None:
    for name in names:
        if name in values:
            raise ConfigError(f"Option '{name}' has no effect: it {why}")
