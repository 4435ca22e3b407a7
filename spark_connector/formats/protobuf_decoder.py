"""Protobuf data to a typed column, by the rules of from_protobuf (protobuf_columns.py).

Without a registry a value is a plain message. With a registry it says which schema wrote it (frames.py), and the place
of the message in that schema. The registry is asked once per
worker process for a writer's schema, to see that the value is of our message; the message is read by our schema, since
Protobuf resolves by the fields' numbers. An id that the registry does not know makes a bad record; a registry that does
not answer fails the task in every mode.

The kernel decodes a batch in one go (protobuf_program.py). Without it, protobuf's own runtime decodes message by
message.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.errors import ConfigError
from broker.records import native
from broker.storage.url_secrets import without_secrets
from spark_connector.formats.frames import LONGEST_PATH, Group, Key, SchemaId, decoded_by_schema
from spark_connector.formats.protobuf_columns import Message, column_of
from spark_connector.formats.protobuf_descriptors import (
    OnlyText,
    message_at,
    message_of,
    place_of,
    schema_of_file,
    schema_of_registry,
)
from spark_connector.formats.protobuf_program import Program
from spark_connector.formats.protobuf_rows import RowReader
from spark_connector.formats.schema_registry import UNASKED, SchemaRegistry, UnknownSchema
from spark_connector.formats.schema_text import read_file
from spark_connector.formats.value_decoder import BadValue, Decoded, one_by_one, scattered
from spark_connector.formats.value_format import (
    PLAIN_RULES,
    ProtobufRules,
    ProtobufSchema,
    SchemaFile,
    SchemaSubject,
)

_MOST_PREFIXES: Final = 64
"""So many kinds of prefix are looked for in a batch as a whole; what is left is read row by row."""
_LONGEST_PLACE: Final = 10 * LONGEST_PATH
"""Bytes."""
_LEFT_OUT: Final = -1

Array = np.ndarray[Any, Any]


def read_protobuf_schema(
    place: SchemaFile | SchemaSubject, message: str | None, registry: SchemaRegistry | None
) -> ProtobufSchema:
    """Load the schema at `place`. Raises ConfigError, ConnectorError."""
    if isinstance(place, SchemaFile):
        data = read_file(place.url)
        try:
            return schema_of_file(data, message)
        except ConfigError as error:
            raise ConfigError(f"'{without_secrets(place.url)}': {error}") from None
    assert registry is not None
    assert place.subject is not None
    try:
        return schema_of_registry(registry.protobuf_version(place.subject, place.version)[1], message)
    except (UnknownSchema, ConfigError) as error:
        where = f"schema {place.subject}, version {place.version}"
        raise ConfigError(f"Schema registry has no {where}, that can be used: {error}") from None


class ProtobufDecoder:
    """Decodes messages of `schema`, or of writers' schemas in `registry` that have the same message."""

    def __init__(
        self,
        schema: ProtobufSchema,
        registry: SchemaRegistry | None = None,
        rules: ProtobufRules = PLAIN_RULES,
        column: str = "value",
    ) -> None:
        """Raises ConfigError for a message without a Spark type."""
        self._frames = None if registry is None else registry.framing(column, "protobuf")
        self.reads_headers = self._frames is not None and self._frames.reads_headers
        self._message = _message(schema, rules)
        self._registry = registry
        self.type = self._message.type
        self._program = Program(self._message)
        self._reader = RowReader(self._message)
        self._writers: dict[tuple[Key, Hashable], str | None] = {}
        """By the writer's schema id and the place of the message in it: why it is not ours, None if it is."""

    def decode(self, values: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        if self._frames is not None:
            frames = self._frames.split(values, headers)
            return decoded_by_schema(frames, len(values), self.type, self._group)
        decoded = self._decoded(values, None)
        bad = {row: why + (UNASKED if _begins_with_zero(values, row) else "") for row, why in decoded.bad.items()}
        return Decoded(decoded.column, bad)

    def _decoded(self, values: pa.Array, skips: Array | None) -> Decoded:
        """`skips`: as `_prefixes` returns them."""
        if native.kernel is not None:
            decoded, hard = self._program.decode(values, skips)
        else:
            rows = np.ones(len(values), bool) if skips is None else skips >= 0
            decoded, hard = Decoded(pa.nulls(len(values), self.type)), np.flatnonzero(rows).tolist()
        if hard:
            decoded = self._with_hard(values, skips, decoded, np.array(hard, np.int64))
        return Decoded(decoded.column, dict(sorted(decoded.bad.items())))

    def _with_hard(self, values: pa.Array, skips: Array | None, decoded: Decoded, hard: Array) -> Decoded:
        """`decoded` with the rows that the runtime has to read."""
        begins = iter((np.zeros(len(hard), np.int64) if skips is None else skips[hard]).tolist())
        picked = values.take(pa.array(hard))
        there = picked.is_valid().to_numpy(zero_copy_only=False)
        begins = iter(np.array(list(begins))[there].tolist())
        read = one_by_one(picked, self.type, lambda raw: self._reader.read(raw, next(begins)))
        if len(hard) == len(values):
            return read
        others = np.setdiff1d(np.arange(len(values)), hard)
        rest = Decoded(decoded.column.take(pa.array(others)))
        made = scattered(len(values), [(hard, read), (others, rest)])
        return Decoded(made.column, {**decoded.bad, **made.bad})

    # ---- which message of a writer's schema a value is

    def _group(self, group: Group) -> Decoded | str:
        found = group.schema
        assert found is not None
        if found.message is not None:
            why = self._why_not(found, found.message)
            return why or self._decoded(group.values, np.full(len(group.values), found.begin, np.int32))
        skips, bad = self._prefixes(group.values, found)
        decoded = self._decoded(group.values, skips)
        return Decoded(decoded.column, dict(sorted({**bad, **decoded.bad}.items())))

    def _prefixes(self, values: pa.Array, found: SchemaId) -> tuple[Array, dict[int, str]]:
        """How long each row's prefix is, negative for rows that are bad; and why they are bad."""
        skips = np.full(len(values), _LEFT_OUT, np.int32)
        _, edges, content = values.buffers()
        offsets = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        data = np.frombuffer(content or b"", np.uint8)
        begins, lengths = offsets[:-1], np.diff(offsets)
        todo = np.arange(len(values))
        bad: dict[int, str] = {}
        for _ in range(_MOST_PREFIXES):
            if not len(todo):
                return skips, bad
            row = int(todo[0])
            head = data[begins[row] : begins[row] + lengths[row]][: found.begin + _LONGEST_PLACE].tobytes()
            length, why = self._prefix(head, found)
            is_cut = why is not None and length == len(head)  # what begins so may go on
            same = lengths[todo] == lengths[row] if is_cut else lengths[todo] >= length
            for index in range(found.begin, length):
                at = todo[same]
                same[same] = data[begins[at] + index] == data[begins[row] + index]
            if why is None:
                skips[todo[same]] = length
            else:
                bad.update(dict.fromkeys(todo[same].tolist(), why))
            todo = todo[~same]
        for row in todo.tolist():
            length, why = self._prefix(data[begins[row] : begins[row] + lengths[row]].tobytes(), found)
            if why is None:
                skips[row] = length
            else:
                bad[row] = why
        return skips, bad

    def _prefix(self, raw: bytes, found: SchemaId) -> tuple[int, str | None]:
        """(its length, why the value is bad)."""
        assert self._frames is not None
        try:
            message, length = self._frames.message(raw, found.begin)
        except BadValue as error:
            return len(raw), str(error)
        return length, self._why_not(found, message)

    def _why_not(self, found: SchemaId, place: Hashable) -> str | None:
        """Why a value with the message at that place of the writer's schema is not of ours."""
        assert self._registry is not None
        key = found.key, place
        if key in self._writers:
            return self._writers[key]
        try:
            files = self._registry.protobuf(found.key)
        except UnknownSchema as error:  # a later value may find it
            return f"{found.name}: {error}"
        own = self._message.proto
        try:
            name = message_at(schema_of_registry(files, None), place)
            why = None if name == own.full_name else f"it is a message {name}, not {own.full_name}"
        except OnlyText:
            mine = place_of(own, place)
            other = f"it is the message at {_shown(place)}, not {own.full_name} at {_shown(mine)}"
            why = None if place == mine else other
        except ConfigError as error:
            why = str(error)
        self._writers[key] = None if why is None else f"{found.name}: {why}"
        return self._writers[key]


def _shown(place: Hashable) -> object:
    return list(place) if isinstance(place, tuple) else place


@functools.lru_cache(maxsize=64)
def _message(schema: ProtobufSchema, rules: ProtobufRules) -> Message:
    return column_of(message_of(schema), rules)


def _begins_with_zero(values: pa.Array, row: int) -> bool:
    return bool(values[row].as_py()[:1] == b"\0")
