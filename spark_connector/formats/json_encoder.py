"""Rows as JSON objects, byte for byte as Spark's to_json writes them, by columns."""

from __future__ import annotations

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.write_format import TO_JSON, JsonText


class JsonEncoder:
    def __init__(self, kind: pa.StructType, text: JsonText = TO_JSON, prefix: bytes = b"") -> None:
        """Raises ConfigError for a type that JSON does not have here."""
        raise ConfigError("json cannot be written yet")

    def encode(self, rows: pa.StructArray) -> Encoded:
        raise NotImplementedError
