"""Protobuf data to a typed column, by the rules of from_protobuf (protobuf_columns.py).

Without a registry a value is a plain message. With a registry it is in Confluent's wire format: a zero byte, the id of
the writer's schema in four bytes, the place of the message in that schema, the message. The registry is asked once per
worker process for a writer's schema, to see that the value is of our message; the message is read by our schema, since
Protobuf resolves by the fields' numbers. An id that the registry does not know makes a bad record; a registry that does
not answer fails the task in every mode.

The kernel decodes a batch in one go (protobuf_program.py). Without it, protobuf's own runtime decodes message by
message.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.errors import ConfigError
from broker.records import native
from broker.storage.url_secrets import without_secrets
from spark_connector.formats.protobuf_columns import Message, column_of
from spark_connector.formats.protobuf_descriptors import (
    OnlyText,
    indexes_of,
    message_at,
    message_of,
    schema_of_file,
    schema_of_registry,
)
from spark_connector.formats.protobuf_program import Program
from spark_connector.formats.protobuf_rows import RowReader
from spark_connector.formats.schema_registry import UNASKED, SchemaRegistry, UnknownSchema
from spark_connector.formats.schema_text import read_file
from spark_connector.formats.value_decoder import BadValue, Decoded, one_by_one, scattered
from spark_connector.formats.value_format import (
    FRAME,
    NO_FRAME,
    PLAIN_RULES,
    ProtobufRules,
    ProtobufSchema,
    SchemaFile,
    SchemaSubject,
    framed_id,
)

_MOST_PREFIXES: Final = 64
"""So many kinds of prefix are looked for in a batch as a whole; what is left is read row by row."""
_LONGEST_PATH: Final = 64
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
        self, schema: ProtobufSchema, registry: SchemaRegistry | None = None, rules: ProtobufRules = PLAIN_RULES
    ) -> None:
        """Raises ConfigError for a message without a Spark type."""
        self._message = _message(schema, rules)
        self._registry = registry
        self.type = self._message.type
        self._program = Program(self._message)
        self._reader = RowReader(self._message)
        self._writers: dict[tuple[int, tuple[int, ...]], str | None] = {}
        """By the writer's schema id and the place of the message in it: why it is not ours, None if it is."""

    def decode(self, values: pa.Array) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        skips, bad = (None, {}) if self._registry is None else self._prefixes(values)
        if native.kernel is not None:
            decoded, hard = self._program.decode(values, skips)
        else:
            rows = np.ones(len(values), bool) if skips is None else skips >= 0
            decoded, hard = Decoded(pa.nulls(len(values), self.type)), np.flatnonzero(rows).tolist()
        if hard:
            decoded = self._with_hard(values, skips, decoded, np.array(hard, np.int64))
        if decoded.bad and skips is None:
            bad = {row: why + (UNASKED if _begins_with_zero(values, row) else "") for row, why in decoded.bad.items()}
        else:
            bad = {**bad, **decoded.bad}
        return Decoded(decoded.column, dict(sorted(bad.items())))

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

    # ---- Confluent's wire format

    def _prefixes(self, values: pa.Array) -> tuple[Array, dict[int, str]]:
        """How long each row's prefix is, negative for rows that are null or bad; and why they are bad."""
        skips = np.full(len(values), _LEFT_OUT, np.int32)
        _, edges, content = values.buffers()
        if len(values) == 0 or edges is None:
            return skips, {}
        offsets = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        data = np.frombuffer(content or b"", np.uint8)
        begins, lengths = offsets[:-1], np.diff(offsets)
        todo = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        framed = lengths[todo] > FRAME
        framed[framed] = data[begins[todo[framed]]] == 0
        bad = dict.fromkeys(todo[~framed].tolist(), NO_FRAME)
        todo = todo[framed]
        for _ in range(_MOST_PREFIXES):
            if not len(todo):
                return skips, bad
            row = int(todo[0])
            length, why = self._prefix(
                data[begins[row] : begins[row] + lengths[row]][: FRAME + 10 * _LONGEST_PATH].tobytes()
            )
            same = lengths[todo] >= length
            for index in range(length):
                at = todo[same]
                same[same] = data[begins[at] + index] == data[begins[row] + index]
            if why is None:
                skips[todo[same]] = length
            else:
                bad.update(dict.fromkeys(todo[same].tolist(), why))
            todo = todo[~same]
        for row in todo.tolist():
            length, why = self._prefix(data[begins[row] : begins[row] + lengths[row]].tobytes())
            if why is None:
                skips[row] = length
            else:
                bad[row] = why
        return skips, bad

    def _prefix(self, raw: bytes) -> tuple[int, str | None]:
        """(its length, why the value is bad)."""
        try:
            schema_id, indexes, length = unframed(raw)
            return length, self._why_not(schema_id, indexes)
        except BadValue as error:
            return len(raw), str(error)

    def _why_not(self, schema_id: int, indexes: tuple[int, ...]) -> str | None:
        assert self._registry is not None
        place = schema_id, indexes
        if place in self._writers:
            return self._writers[place]
        try:
            found = self._registry.protobuf(schema_id)
        except UnknownSchema as error:  # a later value may find it
            raise BadValue(f"schema id {schema_id}: {error}") from None
        own = self._message.proto
        try:
            name = message_at(schema_of_registry(found, None), indexes)
            why = None if name == own.full_name else f"it is a message {name}, not {own.full_name}"
        except OnlyText:
            mine = indexes_of(own)
            why = (
                None
                if indexes == mine
                else f"it is the message at {list(indexes)}, not {own.full_name} at {list(mine)}"
            )
        except ConfigError as error:
            why = str(error)
        self._writers[place] = None if why is None else f"schema id {schema_id}: {why}"
        return self._writers[place]


def unframed(raw: bytes) -> tuple[int, tuple[int, ...], int]:
    """(id of the writer's schema, place of the message in it, begin of the message) of a value in Confluent's wire
    format. Raises BadValue."""
    schema_id = framed_id(raw)
    if schema_id is None or len(raw) == FRAME:
        raise BadValue(NO_FRAME)
    count, at = _zigzag(raw, FRAME)
    if not 0 <= count <= _LONGEST_PATH:
        raise BadValue(f"its prefix has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(raw, at)
        indexes.append(index)
    return schema_id, tuple(indexes) or (0,), at


def _zigzag(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(raw):
            break
        number |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise BadValue("its prefix ends within the message indexes")


@functools.lru_cache(maxsize=64)
def _message(schema: ProtobufSchema, rules: ProtobufRules) -> Message:
    return column_of(message_of(schema), rules)


def _begins_with_zero(values: pa.Array, row: int) -> bool:
    return bool(values[row].as_py()[:1] == b"\0")
