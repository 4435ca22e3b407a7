"""Rows as Avro files: by columns, a block of rows at a time. Every column can be null, as in Spark's own writer."""

from __future__ import annotations

import io
import json
import secrets
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_encoder import AvroEncoder
from spark_connector.formats.value_format import AvroSchema
from spark_connector.loads.column_bounds import Path
from spark_connector.loads.record import LoadError
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.required import Renamed
from spark_connector.loads.tasks.rows_file import Ending

_AT_ONCE = 20_000  # rows
_BLOCK = 64_000  # bytes before compression; what Java's writer has
_MARK = 16


class AvroRows:
    """See `RowsFile`."""

    def __init__(self, file: Any, schema: pa.Schema, layout: FileLayout, without_bounds: frozenset[Path]) -> None:
        self._file = file
        self._encoder, self._numbered = encoder(schema), _numbered(schema)
        self._compress = _COMPRESS[layout.compression]
        self._mark = secrets.token_bytes(_MARK)
        self._rows = 0
        header = io.BytesIO()
        fastavro.writer(header, avro_schema(schema), [], codec=layout.compression, sync_marker=self._mark)
        file.write(header.getvalue())

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches(_AT_ONCE):
            encoded = self._encoder.encode(pa.record_batch(Renamed(batch, self._numbered)).to_struct_array())
            for row, why in encoded.bad.items():
                raise LoadError(f"row {self._rows + row} of a file cannot be written as avro: {why}")
            _, edges, data = encoded.values.buffers()
            ends = np.frombuffer(edges, np.int32, batch.num_rows + 1, encoded.values.offset * 4)
            first = 0
            while first < batch.num_rows:
                last = max(int(np.searchsorted(ends, int(ends[first]) + _BLOCK, "right")) - 1, first + 1)
                self._write_block(last - first, memoryview(data)[ends[first] : ends[last]])
                first = last
            self._rows += batch.num_rows

    def close(self) -> Ending:
        return Ending(self._rows)

    def abort(self) -> None:
        pass

    def _write_block(self, count: int, data: memoryview) -> None:
        block = self._compress(data)
        self._file.write(b"".join((_long(count), _long(len(block)), block, self._mark)))


def encoder(schema: pa.Schema) -> AvroEncoder:
    """What writes rows of this schema. Raises ConfigError for a column that Avro does not have."""
    avro_schema(schema)  # which names the column
    numbered = _numbered(schema)
    return AvroEncoder(AvroSchema(json.dumps(avro_schema(numbered))), pa.struct(list(numbered)))


def _numbered(schema: pa.Schema) -> pa.Schema:
    """With numbers for names, at every depth: in a file names may be what they like, but the encoder looks for them."""
    return pa.schema([pa.field(f"f{number}", _numbered_type(field.type)) for number, field in enumerate(schema)])


def _numbered_type(type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct(list(_numbered(pa.schema(list(type)))))
    if pa.types.is_list(type):
        return pa.list_(_numbered_type(type.value_type))
    return pa.map_(type.key_type, _numbered_type(type.item_type)) if pa.types.is_map(type) else type


def _long(number: int) -> bytes:
    """A length, as Avro writes it."""
    made, left = bytearray(), number << 1
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*made, left))


def _snappy(data: memoryview) -> bytes:
    compressed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return compressed + struct.pack(">I", zlib.crc32(data))


def _deflate(data: memoryview) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


_COMPRESS: Final[Mapping[str, Callable[[memoryview], bytes]]] = {
    "snappy": _snappy,
    "deflate": _deflate,
    "null": bytes,
}


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The record `KafkaRecord` with a field per column. Raises ConfigError for a type that Avro does not have."""
    return {"type": "record", "name": "KafkaRecord", "fields": [_field(field, field.name) for field in schema]}


def _field(field: pa.Field, path: str) -> dict[str, Any]:
    return {"name": field.name, "type": ["null", _type(field.type, path)], "default": None}


def _type(type: pa.DataType, path: str) -> Any:
    """`path` names the column; a struct becomes a record of this name, which must be unique in an Avro schema."""
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        item = "Header" if path == "headers" else f"{path}_item"
        return {"type": "array", "items": ["null", _type(type.value_type, item)]}
    if pa.types.is_map(type):
        if not pa.types.is_string(type.key_type):
            raise ConfigError(f"avro output: the keys of map '{path}' must be strings, not {type.key_type}")
        return {"type": "map", "values": ["null", _type(type.item_type, f"{path}_value")]}
    if pa.types.is_struct(type):
        name = path.replace(".", "_")
        fields = [_field(type.field(index), f"{name}_{type.field(index).name}") for index in range(type.num_fields)]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_decimal(type):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    if pa.types.is_timestamp(type):
        return {"type": "long", "logicalType": "timestamp-micros" if type.tz is not None else "local-timestamp-micros"}
    if type in _SIMPLE:
        return _SIMPLE[type]
    raise ConfigError(f"avro output has no type for column '{path}' ({type}); use format=parquet")


_SIMPLE: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()), "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    **dict.fromkeys((pa.string(), pa.large_string()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary()), "bytes"),
    pa.date32(): {"type": "int", "logicalType": "date"},
}
