"""UTF-8 text to a string column, copying nothing. Made by decoders.py for `string`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_connector.formats.decoding import BadValue, Decoded, by_halves, skipping_nulls

__all__ = ["StringDecoder"]


class StringDecoder:
    """Bytes that are no UTF-8 are a bad record: Spark's own cast to string would pass them on."""

    @property
    def type(self) -> pa.DataType:
        return pa.string()

    def decode(self, values: pa.Array) -> Decoded:
        """See ValueDecoder."""
        return skipping_nulls(values, lambda there: by_halves(there, pa.string(), _whole, _one))


def _whole(values: pa.Array) -> pa.Array | None:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _one(raw: bytes) -> Any:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"no UTF-8: {error}") from None
