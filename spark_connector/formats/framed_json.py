"""JSON in Confluent's wire format (JSON_SR): a zero byte, the id of a JSON schema in four bytes, JSON.

The schema itself is not needed: the column's type is `valueSchema`. But the registry is asked for each id once, as for
Avro, so that data of another type is not taken for JSON. An id that the registry does not know, or that is no JSON
schema, makes a bad record; a registry that does not answer fails the task in every mode.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.json_decoder import JsonDecoder
from spark_connector.formats.schema_registry import FRAME, SchemaRegistry, UnknownSchema, unframed
from spark_connector.formats.value_decoder import BadValue, Decoded


class FramedJson:
    """Decodes what follows the prefix with `json`. `is_plain_too`: values that do not begin with a zero byte are JSON
    without a prefix."""

    def __init__(self, json: JsonDecoder, registry: SchemaRegistry, *, is_plain_too: bool) -> None:
        self._json = json
        self._registry = registry
        self._is_plain_too = is_plain_too
        self.type = json.type

    def decode(self, values: pa.Array) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        prefixes = pc.dictionary_encode(pc.binary_slice(values, 0, FRAME))
        plain, bad = [], []
        reasons: dict[int, str] = {}
        for index, prefix in enumerate(prefixes.dictionary.to_pylist()):
            if self._is_plain_too and prefix[:1] != b"\0":
                plain.append(index)
            elif (why := self._refusal(prefix)) is not None:
                bad.append(index)
                reasons[index] = why
        indices = prefixes.indices
        data = pc.binary_replace_slice(values, 0, FRAME, b"")  # binary_slice fails on some batches
        if plain:
            data = pc.if_else(pc.is_in(indices, pa.array(plain, indices.type)), values, data)
        if not bad:
            return self._json.decode(data)
        is_bad = pc.is_in(indices, pa.array(bad, indices.type))
        decoded = self._json.decode(pc.if_else(is_bad, pa.scalar(None, data.type), data))
        rows = pc.indices_nonzero(is_bad).to_pylist()
        refused = {row: reasons[indices[row].as_py()] for row in rows}
        return Decoded(decoded.column, dict(sorted({**decoded.bad, **refused}.items())))

    def _refusal(self, prefix: bytes) -> str | None:
        """Why values with this prefix cannot be read."""
        try:
            schema_id, _ = unframed(prefix)
        except BadValue as error:
            return str(error)
        try:
            self._registry.check_json(schema_id)
        except UnknownSchema as error:
            return f"schema id {schema_id}: {error}"
        return None
