"""Rows as JSON, an object a line, byte for byte as Spark's own writer of files has them.

Times are in the time zone of the load. Fields that are null are left out. By columns: no Python per row.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from spark_connector.formats.json_encoder import JsonEncoder
from spark_connector.formats.time_text import TimePattern
from spark_connector.loads.column_bounds import Path
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.rows_file import Ending
from spark_connector.loads.times import schema_in_zone

_AT_ONCE = 20_000  # rows
_BLOCK = 128 << 10  # bytes that Hadoop's readers of blocks have room for
_END = b"\n"  # of a line


def encoder(schema: pa.Schema, layout: FileLayout) -> JsonEncoder:
    """What writes rows of this schema. Raises ConfigError for a column that JSON does not have, for a pattern that
    cannot be written, and for an unknown time zone."""
    zone = layout.time_zone
    TimePattern("timeZone", "yyyy", pa.timestamp("us", zone)).texts(pa.array([0], pa.timestamp("us", zone)))
    return JsonEncoder(pa.struct(list(schema_in_zone(schema, zone))), layout.text, _END)


class JsonRows:
    """See `RowsFile`."""

    def __init__(self, file: Any, schema: pa.Schema, layout: FileLayout, without_bounds: frozenset[Path]) -> None:
        self._schema = schema_in_zone(schema, layout.time_zone)
        self._encoder = encoder(schema, layout)
        self._out = _COMPRESSED[layout.compression](file)
        self._lines = 0

    def write(self, rows: pa.Table) -> None:
        for batch in rows.cast(self._schema).to_batches(_AT_ONCE):
            objects = self._encoder.encode(batch.to_struct_array()).values
            _, ends, data = objects.buffers()
            first, last = np.frombuffer(ends, np.int32, len(objects) + 1, objects.offset * 4)[[0, -1]].tolist()
            self._out.write(memoryview(data)[first + len(_END) : last])  # each begins with the end of the one before
            self._out.write(_END)
            self._lines += len(objects)

    def close(self) -> Ending:
        self._out.close()
        return Ending(self._lines)

    def abort(self) -> None:
        pass


class _Out(Protocol):
    """Compresses what is written into a file object, which stays open."""

    def write(self, data: Any) -> object: ...

    def close(self) -> object: ...


class _Compressor(Protocol):
    """That of zlib, bz2 and the like."""

    def compress(self, data: Any, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Stream:
    """One stream of a compressor."""

    def __init__(self, file: Any, compressor: _Compressor | None) -> None:
        self._file = file
        self._compressor = compressor

    def write(self, data: Any) -> None:
        self._put(data if self._compressor is None else self._compressor.compress(data))

    def close(self) -> None:
        if self._compressor is not None:
            self._put(self._compressor.flush())

    def _put(self, data: Any) -> None:
        if len(data):
            self._file.write(data)


class _Blocks:
    """Blocks as Hadoop has them: how long they are, how long compressed, and the compressed bytes."""

    def __init__(self, file: Any, codec: str) -> None:
        self._file = file
        self._codec = pa.Codec(codec)
        self._waiting = bytearray()

    def write(self, data: Any) -> None:
        self._waiting += data
        whole = len(self._waiting) // _BLOCK * _BLOCK
        for start in range(0, whole, _BLOCK):
            self._put(self._waiting[start : start + _BLOCK])
        del self._waiting[:whole]

    def close(self) -> None:
        if self._waiting:
            self._put(self._waiting)

    def _put(self, block: bytearray) -> None:
        compressed = self._codec.compress(bytes(block), asbytes=True)
        self._file.write(struct.pack(">II", len(block), len(compressed)) + compressed)


class _Zstd:
    """A frame of zstd for each piece, which readers take as one stream. Arrow has no compressor that goes on."""

    def compress(self, data: Any) -> bytes:
        return bytes(pa.Codec("zstd").compress(data, asbytes=True))

    def flush(self) -> bytes:
        return b""


_COMPRESSED: Final[Mapping[str, Callable[[Any], _Out]]] = {
    "none": lambda file: _Stream(file, None),
    "gzip": lambda file: _Stream(file, zlib.compressobj(wbits=31)),
    "deflate": lambda file: _Stream(file, zlib.compressobj()),
    "bzip2": lambda file: _Stream(file, bz2.BZ2Compressor()),
    "zstd": lambda file: _Stream(file, _Zstd()),
    "snappy": lambda file: _Blocks(file, "snappy"),
    "lz4": lambda file: _Blocks(file, "lz4_raw"),
}
