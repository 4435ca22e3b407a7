"""Which fields of the decoded values some record has: a field that no record has is misspelt, or of another schema.

A load gives one FieldWatch to each task (bad_record_rows.py) and adds up what they have seen. A field counts as had if
a row has a value for it; of JSON also if a record has its name; of Avro in a registry if a writer's schema has it. So a
null that a record says is no reason for a warning. Plain Avro is written by the very schema, and CSV has no names.

A field is looked for until it is found, so that a batch costs nothing once all are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.value_format import REGISTERED, ReadFormats

if TYPE_CHECKING:
    from spark_connector.formats.value_decoder import ValueDecoder

Path = tuple[str, ...]
"""The column, then the names of fields. Lists are no part of it."""

_FIRST = 64 << 10  # bytes
_AT_ONCE = 32  # names: RE2 is slow once its table of states is full


@dataclass(frozen=True)
class FieldsSeen:
    """`valued`: the paths that have a value in some row. `named`: those that some record has otherwise."""

    valued: frozenset[Path] = frozenset()
    named: frozenset[Path] = frozenset()

    def __add__(self, other: FieldsSeen) -> FieldsSeen:
        return FieldsSeen(self.valued | other.valued, self.named | other.named)

    def absent(self, formats: ReadFormats, types: Mapping[str, pa.DataType]) -> list[Path]:
        """The fields of columns of these types that no record has, though some record has a value where they belong."""
        return [
            path
            for path in watched(formats, types)
            if path not in self.valued and path not in self.named and len(path) > 1 and path[:-1] in self.valued
        ]


NOTHING_SEEN = FieldsSeen()


def watched(formats: ReadFormats, types: Mapping[str, pa.DataType]) -> list[Path]:
    """The fields that a task looks for, each behind the one that it is in."""
    found: list[Path] = []
    for name, one in formats.columns.items():
        if name in types and one.name in REGISTERED and (one.name != "avro" or formats.registry is not None):
            depth = 2 if one.name == "avro" else None
            found += [path for path in _paths(types[name], (name,)) if depth is None or len(path) <= depth]
    return found


class FieldWatch:
    """Looks for the fields in the batches of one task."""

    def __init__(self, formats: ReadFormats) -> None:
        self._formats = formats
        self._left: dict[str, set[Path]] = {}
        self._valued: set[Path] = set()
        self._named: set[Path] = set()

    @property
    def seen(self) -> FieldsSeen:
        return FieldsSeen(frozenset(self._valued), frozenset(self._named))

    def look(self, name: str, raw: pa.Array, column: pa.Array, decoder: ValueDecoder) -> None:
        """`column` is what `decoder` made of the values `raw` of a batch."""
        if name not in self._left:
            self._left[name] = set(watched(self._formats, {name: column.type}))
        left = self._left[name]
        if not left or not len(column):
            return
        self._look_for_values(column, (name,), left)
        if self._formats.columns[name].name == "json":
            self._look_for_names(raw, left)
        elif self._formats.columns[name].name == "avro":
            self._look_at_writers(decoder, left)

    def _look_at_writers(self, decoder: ValueDecoder, left: set[Path]) -> None:
        from spark_connector.formats.avro_decoder import AvroDecoder  # each task imports this module

        if isinstance(decoder, AvroDecoder):
            self._named |= {path for path in left if len(path) == 2 and decoder.was_written(path[1])}
            left -= self._named

    def _look_for_values(self, column: pa.Array, path: Path, left: set[Path]) -> None:
        if column.null_count == len(column):
            return
        if path in left:
            self._valued.add(path)
            left.discard(path)
        if pa.types.is_list(column.type):
            self._look_for_values(column.flatten(), path, left)
        elif pa.types.is_struct(column.type) and any(one[: len(path)] == path for one in left):
            for field, child in zip(column.type, column.flatten(), strict=True):
                self._look_for_values(child, (*path, field.name), left)

    def _look_for_names(self, raw: pa.Array, left: set[Path]) -> None:
        """What most records have is in the first ones. Of the others, in one pass for many; then in one for each."""
        texts = {path: _spellings(path[-1]) for path in left if len(path) > 1}
        if not texts:
            return
        data = _bytes_of(raw)
        self._named |= {path for path, spelt in texts.items() if any(data.find(one, 0, _FIRST) >= 0 for one in spelt)}
        others = sorted(texts.keys() - self._named)
        for some in (others[first : first + _AT_ONCE] for first in range(0, len(others), _AT_ONCE)):
            pattern = "|".join(re.escape(one.decode()) for path in some for one in texts[path])
            if pc.any(pc.match_substring_regex(raw, pattern)).as_py():
                self._named |= {path for path in some if any(one in data for one in texts[path])}
        left -= self._named


def _spellings(name: str) -> set[bytes]:
    """How JSON may write a name; other escapes are rare, and cost a warning."""
    return {json.dumps(name, ensure_ascii=is_ascii).encode() for is_ascii in (True, False)}


def _bytes_of(raw: pa.Array) -> bytes:
    """The values, one behind the other."""
    data = raw.buffers()[2]
    if data is None or not len(raw):
        return b""
    ends = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw) + 1]
    return bytes(data.slice(int(ends[0]), int(ends[-1] - ends[0])))


def _paths(kind: pa.DataType, path: Path) -> Iterator[Path]:
    yield path
    while pa.types.is_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _paths(field.type, (*path, field.name))
