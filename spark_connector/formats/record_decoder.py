"""Applies the formats of a read: its schema on the driver, and the decoding of its record batches on executors.

The driver asks for the schema (read/schema.py) and loads schemas from files and registries (source.py). On executors
read/fetch.py makes a RecordDecoder for read/arrow_batches.py in a task of a read with formats.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.csv_decoder import CsvDecoder
from spark_connector.formats.json_decoder import FramedJson, JsonDecoder
from spark_connector.formats.registries import registry_of
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.schema_text import read_schema
from spark_connector.formats.single_object import Containers, SingleObjects
from spark_connector.formats.unavailable import PlaceholderFinder
from spark_connector.formats.value_decoder import BadValue, Decoded, FramedDecoder, ValueDecoder, by_halves
from spark_connector.formats.value_format import (
    CONTAINER,
    SINGLE_OBJECT,
    AvroSchema,
    ColumnFormat,
    ParseMode,
    ProtobufSchema,
    ReadFormats,
    RegistrySettings,
    SchemaFile,
    SchemaSubject,
    UnfitRows,
)

logger = logging.getLogger("pykafka.spark")


class BadRecords(Protocol):
    """Where the bad records of a read go, besides what its mode does with them: a topic, or rows of a load."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The source columns of a record that `write` expects."""

    @property
    def is_quiet(self) -> bool:
        """Whether its caller is told of the bad records in another way than by a warning in the log."""

    def write(self, tp: TopicPartition, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Take the bad records of a batch, one or more, in order of offset, and why each is bad."""

    def look(self, name: str, raw: pa.Array, column: pa.Array, decoder: ValueDecoder) -> None:
        """Called with each column that is decoded, as it was and as it is; a bad value is null there."""


class RecordDecoder:
    """Decodes the records of one partition for one task."""

    def __init__(
        self,
        formats: ReadFormats,
        source: pa.Schema,
        tp: TopicPartition,
        bad_records: BadRecords | None = None,
        unfit: UnfitRows | None = None,
    ) -> None:
        """`source`: the columns of the read as Kafka has them. With `bad_records`, those of `unfit` are bad, too, and
        never rows. Raises ConfigError."""
        self._formats = formats
        self._tp = tp
        self._bad_records = bad_records
        self._unfit = unfit if bad_records is not None else None
        self._decoders = decoders(formats)
        self._finders = _finders(formats, self._decoders)
        self._schema = decoded_schema(formats, source)
        headers = ("headers",) if any(map(_reads_headers, self._decoders.values())) else ()
        needed = (*source.names, "offset", *headers, *(bad_records.needs if bad_records is not None else ()))
        self.needs = tuple(dict.fromkeys(needed))
        """The source columns that `decode` expects: those of the read, and those that identify bad records."""

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with typed keys and values; bad records are treated by the mode of the read.

        Raises ConnectorError (MALFORMED_RECORD_IN_PARSING) in FAILFAST mode, and errors of writing bad records.
        """
        decoded = {name: self._decoded(name, batch) for name in self._decoders}
        reasons = _reasons(decoded)
        columns = [
            decoded[name].column if name in decoded else batch[name]
            for name in self._schema.names[: len(self._schema) - len(self._formats.corrupt_columns)]
        ]
        columns += [_raw_where_bad(batch[name], decoded[name]) for name in self._formats.corrupt_columns]
        made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        unfit = dict(self._unfit(made)) if self._unfit is not None else {}
        if bad := dict(sorted({**unfit, **reasons}.items())):
            self._report(batch, bad, dropped=len(unfit) == len(bad))
        left_out = bad if self._formats.mode is ParseMode.DROPMALFORMED else unfit
        return _without(made, left_out) if left_out else made

    def _decoded(self, name: str, batch: pa.RecordBatch) -> Decoded:
        decoder, raw = self._decoders[name], batch[name]
        decoded = decoder.decode(raw, batch["headers"]) if _reads_headers(decoder) else decoder.decode(raw)
        placeholder = self._formats.unavailable
        if self._bad_records is not None:
            self._bad_records.look(name, raw, decoded.column, decoder)
        hits = self._finders[name].find(decoded.column) if name in self._finders else {}
        if not hits or placeholder is None:
            return decoded
        bad = {**decoded.bad, **{row: placeholder.reason(path) for row, path in hits.items()}}
        rows = np.arange(len(raw), dtype=np.int64)
        column = decoded.column.take(pa.array(rows, mask=np.isin(rows, list(hits))))
        return Decoded(column, dict(sorted(bad.items())))

    def _report(self, batch: pa.RecordBatch, reasons: dict[int, str], *, dropped: bool = False) -> None:
        """Raise in FAILFAST mode; otherwise hand the bad records over, if anybody takes them, and log how many there
        are, unless they are told of in another way."""
        first = next(iter(reasons))
        offset = batch["offset"][first].as_py()
        if self._formats.mode is ParseMode.FAILFAST:
            raise ConnectorError(
                "MALFORMED_RECORD_IN_PARSING",
                f"Malformed record at offset {offset} of topic '{self._tp.topic}', partition {self._tp.partition}: "
                f"{reasons[first]}. Parse mode is FAILFAST. To process malformed records as null, set the option "
                "'mode' to 'PERMISSIVE'.",
            )
        if self._bad_records is not None:
            bad = batch.select(list(self._bad_records.needs)).take(pa.array(list(reasons), pa.int64()))
            self._bad_records.write(self._tp, bad, list(reasons.values()))
            if self._bad_records.is_quiet:
                return
        dropped = dropped or self._formats.mode is ParseMode.DROPMALFORMED
        logger.warning(
            "%s of topic '%s', partition %d: %d malformed records %s, the first at offset %d: %s",
            "badRecordsTopic" if self._bad_records is not None else "Records",
            self._tp.topic,
            self._tp.partition,
            len(reasons),
            "dropped" if dropped else "set to null",
            offset,
            reasons[first],
        )


def _finders(formats: ReadFormats, made: Mapping[str, ValueDecoder]) -> dict[str, PlaceholderFinder]:
    """What finds placeholders in each column that may have some."""
    if formats.unavailable is None:
        return {}
    placeholder = formats.unavailable
    finders = {
        name: PlaceholderFinder(placeholder, decoder.type, "", placeholder.paths_in(name))
        for name, decoder in made.items()
    }
    return {name: finder for name, finder in finders.items() if finder.is_needed and placeholder.paths_in(name)}


def _without(batch: pa.RecordBatch, rows: Mapping[int, str]) -> pa.RecordBatch:
    kept = np.ones(len(batch), bool)
    kept[list(rows)] = False
    return batch.filter(pa.array(kept))


def _reasons(decoded: dict[str, Decoded]) -> dict[int, str]:
    """The reasons by row, in order; both reasons if key and value of a record are bad."""
    reasons: dict[int, str] = {}
    for name, one in decoded.items():
        for row, why in one.bad.items():
            reasons[row] = f"{reasons[row]}; {name}: {why}" if row in reasons else f"{name}: {why}"
    return dict(sorted(reasons.items()))


def _raw_where_bad(raw: pa.Array, decoded: Decoded) -> pa.Array:
    if not decoded.bad:
        return pa.nulls(len(raw), pa.binary())
    bad = np.zeros(len(raw), bool)
    bad[list(decoded.bad)] = True
    return pc.if_else(pa.array(bad), raw, pa.scalar(None, pa.binary()))


def _reads_headers(decoder: ValueDecoder) -> TypeGuard[FramedDecoder]:
    return isinstance(decoder, FramedDecoder) and decoder.reads_headers


def column_decoder(one: ColumnFormat, registry: SchemaRegistry | None = None, column: str = "value") -> ValueDecoder:
    """The decoder of a format other than binary, for keys or values (`column`). Raises ConfigError for a schema that
    the format cannot use."""
    if one.name == "string":
        return StringDecoder()
    if isinstance(one.schema, AvroSchema):
        if one.encoding == SINGLE_OBJECT:
            return AvroDecoder(one.schema, SingleObjects((one.schema, *one.writers)), one.most_levels)
        if one.encoding == CONTAINER:
            return AvroDecoder(one.schema, Containers(), one.most_levels)
        return AvroDecoder(one.schema, registry, one.most_levels, column)
    if isinstance(one.schema, ProtobufSchema):
        decoder: ValueDecoder = _protobuf().ProtobufDecoder(one.schema, registry, one.rules, column)
        return decoder
    if one.name == "csv":
        return CsvDecoder(one.schema, one.separator)
    json = JsonDecoder(one.schema)
    return json if registry is None else FramedJson(json, registry, column, is_plain_too=one.is_plain_too)


def decoders(formats: ReadFormats) -> dict[str, ValueDecoder]:
    """The decoders by column, made once per task. Raises ConfigError."""
    registry = _registry(formats.registry)
    return {name: column_decoder(one, registry, name) for name, one in formats.columns.items()}


def decoded_schema(formats: ReadFormats, source: pa.Schema) -> pa.Schema:
    """The schema of a read of the columns `source`. Raises ConfigError."""
    types = {name: decoder.type for name, decoder in decoders(formats).items()}
    fields = [pa.field(one.name, types.get(one.name, one.type)) for one in source]
    return pa.schema([*fields, *(pa.field(name, pa.binary()) for name in formats.corrupt_columns.values())])


def loaded(formats: ReadFormats, topics: Sequence[str] | None) -> ReadFormats:
    """`formats` with the schemas loaded from files and the registry. For the driver only.

    `topics`: the topics of the read; None if they are only known when it runs. Raises ConfigError, ConnectorError.
    """
    registry = _registry(formats.registry)
    key, value = (
        _loaded(column, one, topics, registry) for column, one in (("key", formats.key), ("value", formats.value))
    )
    return replace(formats, key=key, value=value)


def _registry(settings: RegistrySettings | None) -> SchemaRegistry | None:
    return None if settings is None else registry_of(settings)


def _loaded(
    column: str, one: ColumnFormat, topics: Sequence[str] | None, registry: SchemaRegistry | None
) -> ColumnFormat:
    place = one.schema
    if one.writers:
        one = replace(one, writers=tuple(read_schema(each, avro=True, registry=None) for each in one.writers))
    if not isinstance(place, SchemaFile | SchemaSubject):
        return one
    if isinstance(place, SchemaSubject) and place.subject is None:
        if topics is None or len(topics) != 1:
            raise ConfigError(
                f"Option '{column}Schema' must be set unless the read has exactly one topic: to a schema, or to "
                "<schema.registry.url>/subjects/NAME/versions/latest"
            )
        assert registry is not None
        place = SchemaSubject(registry.topic_subject(topics[0], column))
    if one.name == "protobuf":
        made = replace(one, schema=_protobuf().read_protobuf_schema(place, one.message, registry))
    else:
        made = replace(one, schema=read_schema(place, avro=one.name == "avro", registry=registry))
    column_decoder(made, registry, column)
    return made


def _protobuf() -> Any:
    """protobuf_decoder.py. Raises ConfigError where its library is not installed."""
    try:
        from spark_connector.formats import protobuf_decoder
    except ImportError as error:
        raise ConfigError(f"Format protobuf needs the extra: pip install 'pykafka-spark[protobuf]' ({error})") from None
    return protobuf_decoder


class StringDecoder:
    """UTF-8 text to a string column, without a copy. Bytes that are not UTF-8 make a bad record; Spark's own cast to
    string would pass them on."""

    type = pa.string()

    def decode(self, values: pa.Array) -> Decoded:
        return by_halves(values, pa.string(), _whole, _one)  # both keep nulls


def _whole(values: pa.Array) -> pa.Array | None:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _one(raw: bytes) -> Any:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"not UTF-8: {error}") from None
