"""Applies the formats of a write: its schemas on the driver, and the encoding of its rows on executors.

source.py calls `loaded` before any task runs, so what cannot be encoded at all fails there. In a task
write/rows_writer.py makes a RecordEncoder: typed columns in, the columns of Kafka's records out. What only Avro,
Protobuf or a registry needs is imported where it is used: a stream makes two processes per batch on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.client.dead_letter_headers import ERROR, LONGEST_ERROR, ORIGIN
from broker.errors import ConfigError
from broker.records.columns import HEADERS_TYPE
from spark_connector.errors import ConnectorError
from spark_connector.formats.json_encoder import JsonEncoder
from spark_connector.formats.text_encoder import TextEncoder, narrowed, narrowed_type
from spark_connector.formats.value_encoder import Encoded, ValueEncoder
from spark_connector.formats.value_format import VALUE_FORMATS
from spark_connector.formats.write_format import ROLES, ColumnWrite, WriteFormats, WriteMode

_LONGEST_ROW: Final = 300
"""Characters of a row that an error shows."""


class EncodedRows(NamedTuple):
    """`rows`: key, value and the columns of ROLES, as far as there are; `bad`: records for `badRowsTopic`, with key,
    value and headers, or None."""

    rows: pa.RecordBatch
    bad: pa.RecordBatch | None


class RecordEncoder:
    """Encodes the rows of one task. `topic`: of all rows, or None if they have a column. `partition`: of the task."""

    def __init__(self, formats: WriteFormats, topic: str | None, partition: int) -> None:
        self._formats = formats
        self._topic = topic
        self._partition = partition
        self._encoders: dict[str, ValueEncoder] = {}
        self._done = 0
        """Rows of earlier batches."""

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Raises ConnectorError (PYKAFKA_SINK_MALFORMED_ROW) for a bad row in FAILFAST mode, ConfigError for columns
        of a type that the format cannot write."""
        batch = narrowed(batch)
        encoded = {name: self._column(name, one, batch) for name, one in self._formats.columns.items()}
        columns = {
            name: batch[name]
            for name in ("key", "value", *ROLES)
            if name in batch.schema.names and name not in self._formats.value.columns
        }
        columns |= {name: one.values for name, one in encoded.items()}
        for name, one in self._formats.columns.items():
            if one.header is not None:
                columns["headers"] = with_header(columns.get("headers"), columns[name].is_valid(), *one.header)
        rows, bad = pa.record_batch(columns), None
        if reasons := _reasons(encoded):
            if self._formats.mode is WriteMode.FAILFAST:
                raise self._refusal(batch, reasons)
            bad = self._bad_records(batch, rows, reasons)
            kept = np.ones(batch.num_rows, bool)
            kept[list(reasons)] = False
            rows = rows.filter(pa.array(kept))
        self._done += batch.num_rows
        return EncodedRows(rows, bad)

    def _column(self, name: str, one: ColumnWrite, batch: pa.RecordBatch) -> Encoded:
        fields = [batch.schema.field(column) for column in one.columns]
        encoder = self._encoders.get(name)
        if encoder is None:
            encoder = self._encoders[name] = column_encoder(one, pa.struct(fields))
        return encoder.encode(pa.StructArray.from_arrays([batch[column] for column in one.columns], fields=fields))

    def _refusal(self, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> ConnectorError:
        row, why = next(iter(reasons.items()))
        shown = _as_json(batch.slice(row, 1))[0].as_py().decode()
        return ConnectorError(
            "PYKAFKA_SINK_MALFORMED_ROW",
            f"row {self._done + row} (counted from 0) of task partition {self._partition} cannot be written: {why}. "
            f"The row: {shown if len(shown) <= _LONGEST_ROW else shown[:_LONGEST_ROW] + '…'}. To write such rows to "
            "another topic instead, set option 'badRowsTopic'",
        )

    def _bad_records(self, batch: pa.RecordBatch, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
        """The rows as JSON of all their columns, under their key if it is good."""
        bad = pa.array(list(reasons), pa.int64())
        found, made = batch.take(bad), rows.take(bad)
        if self._topic is None and "topic" in made.schema.names:
            topics = made["topic"].to_pylist()
        else:
            topics = [self._topic] * len(bad)
        headers = [_headers(topic, why) for topic, why in zip(topics, reasons.values(), strict=True)]
        columns = {"value": _as_json(found), "headers": pa.array(headers, HEADERS_TYPE)}
        if "key" in made.schema.names:
            columns["key"] = made["key"]
        return pa.record_batch(columns)


def with_header(headers: pa.Array | None, rows: pa.BooleanArray, name: str, value: bytes) -> pa.Array:
    """`headers` (HEADERS_TYPE, or as Spark has it; None: of no record) with one more at the end of those of `rows`."""
    count = len(rows)
    headers = pa.nulls(count, HEADERS_TYPE) if headers is None else headers.cast(HEADERS_TYPE)
    before = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    more = rows.to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(before + more)])
    own = pc.list_flatten(headers)
    added = pa.array([{"key": name, "value": value}], HEADERS_TYPE.value_type)
    which = np.full(ends[-1], len(own), np.int64)
    kept = np.ones(ends[-1], bool)
    kept[ends[1:][more > 0] - 1] = False
    which[kept] = np.arange(len(own))
    entries = pa.concat_arrays([own, added]).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries).cast(HEADERS_TYPE)


def _reasons(encoded: Mapping[str, Encoded]) -> dict[int, str]:
    """The reasons by row, in order; both reasons if key and value of a row are bad."""
    reasons: dict[int, str] = {}
    for name, one in encoded.items():
        for row, why in one.bad.items():
            reasons[row] = f"{reasons[row]}; {name}: {why}" if row in reasons else f"{name}: {why}"
    return dict(sorted(reasons.items()))


def _headers(topic: str | None, why: str) -> list[Mapping[str, object]]:
    notes = {f"{ORIGIN}topic": topic, ERROR: why[:LONGEST_ERROR]}
    return [{"key": name, "value": text.encode("utf-8", "replace")} for name, text in notes.items() if text is not None]


def _as_json(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object; a column that JSON cannot show is left out."""
    # By place, because columns that are not written may have one name.
    shown = {index: field for index, field in enumerate(batch.schema) if _is_json(field)}
    if not shown:
        return pa.array([b"{}"] * batch.num_rows, pa.binary())
    rows = pa.StructArray.from_arrays([batch.column(index) for index in shown], fields=list(shown.values()))
    return JsonEncoder(rows.type).encode(rows).values


def _is_json(field: pa.Field) -> bool:
    try:
        JsonEncoder(pa.struct([field]))
    except ConfigError:
        return False
    return True


def column_encoder(one: ColumnWrite, kind: pa.StructType) -> ValueEncoder:
    """The encoder of a format for rows of type `kind`, the columns of `one` in their order. Raises ConfigError."""
    if one.name in {"binary", "string"}:
        return TextEncoder(kind, bytes_only=one.name == "binary")
    if one.name == "json" and one.schema is None:
        return JsonEncoder(kind, one.json, one.prefix)
    if one.name == "json":
        from spark_connector.formats.json_check import CheckedJson

        return CheckedJson(one.schema, kind, one.json, one.prefix)
    if one.name == "avro":
        from spark_connector.formats.avro_encoder import AvroEncoder

        return AvroEncoder(one.schema, kind, one.prefix)
    made: ValueEncoder = _protobuf().ProtobufEncoder(one.schema, kind, one.prefix)
    return made


def _protobuf() -> Any:
    """protobuf_encoder.py. Raises ConfigError where its library is not installed."""
    try:
        from spark_connector.formats import protobuf_encoder
    except ImportError as error:
        raise ConfigError(f"it needs the extra: pip install 'pykafka-spark[protobuf]' ({error})") from None
    return protobuf_encoder


def loaded(formats: WriteFormats, topic: str | None, columns: pa.Schema) -> WriteFormats:
    """`formats` with the schemas loaded from files and the registry, and checked against the DataFrame's `columns`.
    For the driver only: executors do not ask the registry.

    `topic`: of all rows; None if they have a column `topic`. Raises ConfigError, ConnectorError.
    """
    key, value = (
        one if one.is_plain else _loaded(name, one, formats, topic, columns)
        for name, one in formats.columns_of_both.items()
    )
    return replace(formats, key=key, value=value, registry=None)  # executors have no use for its password


def _loaded(name: str, one: ColumnWrite, formats: WriteFormats, topic: str | None, columns: pa.Schema) -> ColumnWrite:
    """`one` with schema and prefix; `name` is key or value."""
    fields = [columns.field(column) for column in one.columns]
    kind = pa.struct([field.with_type(narrowed_type(field.type)) for field in fields])
    try:
        made = VALUE_FORMATS[one.name]
        if made.opaque or (made.registered and formats.registry is not None):
            one = _registered(name, one, formats, topic, kind)
        column_encoder(one, kind)
    except ConfigError as error:
        raise ConfigError(f"Option '{name}Format'={one.name}: {error}") from None
    return one


def _registered(
    name: str, one: ColumnWrite, formats: WriteFormats, topic: str | None, kind: pa.StructType
) -> ColumnWrite:
    from spark_connector.formats.registered_schema import SinkColumn, registered_avro, registered_json
    from spark_connector.formats.registries import registry_of

    registry = None if formats.registry is None else registry_of(formats.registry)
    if registry is not None:
        registry.framing(name, one.name)  # refuses what readers of this registry could not tell
    written = SinkColumn(name, topic)
    if one.name == "avro":
        return registered_avro(one, registry, written, kind)
    if one.name == "json":
        assert registry is not None
        return registered_json(one, registry, written)
    made: ColumnWrite = _protobuf().registered_protobuf(one, registry, written)
    return made
