"""How values of a writer's schema become values of a reader's schema: the rules of Avro, decided once per pair.

`resolve` returns a tree of steps, one for each type of the writer; avro_program.py turns it into a decoder. It knows
nothing of bytes, Arrow or Spark. Where Avro's specification and its library for Java differ, the library counts,
because Spark and Confluent's deserializers read by it (`org.apache.avro.Resolver` and `Schema.applyAliases`):

- Names of records count only in unions: two records match by their fields. Names of enums and fixed types match without
  their namespaces.
- A branch of a union finds the branch of the reader with its full name; then a record that it fits, best one with its
  simple name; then a type that it can be promoted to. Two unions that are equal, but for namespaces, match branch by
  branch.
- An alias of the reader renames the writer's type, and an alias of a field counts in records of the reader's name.
- What does not match is an error only when a value gets there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import NO_DEFAULT, AvroType, Field, takes_no_bytes, union_of

_PROMOTED: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Reader's type → writer's types that can be promoted to it."""


@dataclass(eq=False, slots=True)
class Fail:
    """No value can be read; `why` names the field."""

    writer: AvroType
    why: str


@dataclass(eq=False, slots=True)
class Skip:
    """The reader has no such field."""

    writer: AvroType


@dataclass(eq=False, slots=True)
class Atom:
    """A primitive or fixed type, perhaps promoted."""

    writer: AvroType
    reader: AvroType
    path: str


@dataclass(eq=False, slots=True)
class Symbols:
    """An enum: the reader's symbol for each symbol of the writer, None where it has neither that nor a default."""

    writer: AvroType
    symbols: tuple[str | None, ...]
    path: str


@dataclass(eq=False, slots=True)
class Items:
    """An array or a map."""

    writer: AvroType
    item: Step


@dataclass(eq=False, slots=True)
class Record:
    """`fields`: for each field of the writer the name of the reader's field, if it has one, and the step. `missing`:
    the reader's other fields, which take their defaults. `why`: set if the record cannot be read at all.

    A step of a recursive record is reached from its own fields."""

    writer: AvroType
    path: str
    fields: list[tuple[str | None, Step]] = field(default_factory=list, repr=False)
    missing: list[Field] = field(default_factory=list)
    why: str | None = None


@dataclass(eq=False, slots=True)
class FromUnion:
    """The writer has a union: a step for each of its branches."""

    writer: AvroType
    branches: tuple[Step, ...]


@dataclass(eq=False, slots=True)
class ToUnion:
    """The value becomes branch `index` of the reader's union."""

    writer: AvroType
    reader: AvroType
    index: int
    step: Step


Step = Fail | Skip | Atom | Symbols | Items | Record | FromUnion | ToUnion


def resolve(writer: AvroType, reader: AvroType) -> Step:
    """Raises ConfigError if the reader's aliases make no schema of the writer's."""
    for _ in range(2):  # Java does it twice, which matters where one name's alias is another name
        writer = writer if _equal(writer, reader, set()) else _Aliases(reader).applied(writer)
    return _Resolver().step(writer, reader, "")


class _Resolver:
    def __init__(self) -> None:
        self._records: dict[tuple[AvroType, AvroType], Record] = {}

    def step(self, writer: AvroType, reader: AvroType, path: str) -> Step:
        """`path`: the names of the fields that lead here, joined by dots."""
        if writer.kind == "union":
            return self._from_union(writer, reader, path)
        if reader.kind == "union":
            index = self._branch(writer, reader, path)
            if index is None:
                return _mismatch(writer, reader, path)
            return ToUnion(writer, reader, index, self.step(writer, reader.branches[index], path))
        if writer.kind == reader.kind:
            return self._same_kind(writer, reader, path)
        if writer.kind in _PROMOTED.get(reader.kind, ()):
            return Atom(writer, reader, path)
        return _mismatch(writer, reader, path)

    def _same_kind(self, writer: AvroType, reader: AvroType, path: str) -> Step:
        match writer.kind:
            case "record":
                return self._record(writer, reader, path)
            case "array" | "map":
                assert writer.item is not None
                assert reader.item is not None
                if writer.kind == "array" and takes_no_bytes(writer.item):
                    why = f"{_at(path)}an array of items that take no bytes, so its length cannot be trusted"
                    return Items(writer, Fail(writer.item, why))
                return Items(writer, self.step(writer.item, reader.item, f"{path}[]"))
            case "enum" if writer.simple_name == reader.simple_name:
                known, default = set(reader.symbols), reader.default_symbol
                return Symbols(writer, tuple(one if one in known else default for one in writer.symbols), path)
            case "fixed" if writer.simple_name != reader.simple_name or writer.size != reader.size:
                sizes = "" if writer.size == reader.size else f" of {writer.size} bytes, not {reader.size}"
                return _mismatch(writer, reader, path, sizes)
            case "enum":
                return _mismatch(writer, reader, path)
        return Atom(writer, reader, path)

    def _record(self, writer: AvroType, reader: AvroType, path: str) -> Record:
        known = self._records.get((writer, reader))
        if known is not None:
            return known
        made = self._records[writer, reader] = Record(writer, path)  # before its fields, which may lead to it again
        wanted = {one.name: one for one in reader.fields}
        for one in writer.fields:
            found = wanted.pop(one.name, None)
            if found is None:
                made.fields.append((None, Skip(one.type)))
            else:
                inner = self.step(one.type, found.type, f"{path}.{one.name}" if path else one.name)
                made.fields.append((one.name, inner))
        made.missing.extend(wanted.values())
        absent = [one.name for one in made.missing if one.default is NO_DEFAULT]
        if absent:
            made.why = f"{_at(path)}{writer} was written without field {absent[0]}, which has no default"
        return made

    def _from_union(self, writer: AvroType, reader: AvroType, path: str) -> FromUnion:
        if _alike(writer, reader, set()):
            steps: list[Step] = [
                ToUnion(one, reader, index, self.step(one, reader.branches[index], path))
                for index, one in enumerate(writer.branches)
            ]
        else:
            steps = [self.step(one, reader, path) for one in writer.branches]
        return FromUnion(writer, tuple(steps))

    def _branch(self, writer: AvroType, reader: AvroType, path: str) -> int | None:
        """The branch of the reader's union for a value of `writer`."""
        fits: int | None = None
        for index, branch in enumerate(reader.branches):
            if branch.kind != writer.kind:
                continue
            if not writer.name or writer.name == branch.name:
                return index
            is_better = fits is None or writer.simple_name == branch.simple_name
            if writer.kind == "record" and self._fits(writer, branch, path) and is_better:
                fits = index
        if fits is not None:
            return fits
        promoted = (i for i, branch in enumerate(reader.branches) if writer.kind in _PROMOTED.get(branch.kind, ()))
        return next(promoted, None)

    def _fits(self, writer: AvroType, reader: AvroType, path: str) -> bool:
        made = self._record(writer, reader, path)
        return made.why is None and not any(
            isinstance(step, Fail) or (isinstance(step, Record) and step.why is not None) for _, step in made.fields
        )


def _mismatch(writer: AvroType, reader: AvroType, path: str, more: str = "") -> Fail:
    return Fail(writer, f"{_at(path)}{writer} was written{more}, which cannot be read as {reader}")


def _at(path: str) -> str:
    return f"field {path}: " if path else ""


def _alike(writer: AvroType, reader: AvroType, seen: set[tuple[AvroType, AvroType]]) -> bool:
    """Whether both have the same structure and names, but for namespaces."""
    if writer.kind != reader.kind or writer.simple_name != reader.simple_name or writer.size != reader.size:
        return False
    if writer is reader or (writer, reader) in seen:
        return True
    seen.add((writer, reader))
    if [one.name for one in writer.fields] != [one.name for one in reader.fields] or writer.symbols != reader.symbols:
        return False
    ours, theirs = _inner(writer), _inner(reader)
    return len(ours) == len(theirs) and all(_alike(a, b, seen) for a, b in zip(ours, theirs, strict=True))


def _equal(writer: AvroType, reader: AvroType, seen: set[tuple[AvroType, AvroType]]) -> bool:
    """Whether both are the same schema, but for aliases."""
    if writer is reader or (writer, reader) in seen:
        return True
    seen.add((writer, reader))
    for ours, theirs in zip(writer.fields, reader.fields, strict=False):
        if ours.name != theirs.name or ours.default != theirs.default:
            return False
    same = all(
        getattr(writer, name) == getattr(reader, name) for name in ("kind", "name", "symbols", "size", "logical")
    )
    left, right = _inner(writer), _inner(reader)
    return same and len(left) == len(right) and all(_equal(a, b, seen) for a, b in zip(left, right, strict=True))


def _inner(one: AvroType) -> Sequence[AvroType]:
    items = () if one.item is None else (one.item,)
    return (*items, *one.branches, *(field.type for field in one.fields))


class _Aliases:
    """The aliases in a reader's schema."""

    def __init__(self, reader: AvroType) -> None:
        self._types: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._made: dict[AvroType, AvroType] = {}
        self._collect(reader, set())

    def _collect(self, one: AvroType, seen: set[AvroType]) -> None:
        if one in seen:
            return
        seen.add(one)
        self._types.update(dict.fromkeys(one.aliases, one.name))
        for made in one.fields:
            if made.aliases:
                self._fields.setdefault(one.name, {}).update(dict.fromkeys(made.aliases, made.name))
            self._collect(made.type, seen)
        for inner in (*(() if one.item is None else (one.item,)), *one.branches):
            self._collect(inner, seen)
        if one.name in self._fields:
            self._fields.update(dict.fromkeys(one.aliases, self._fields[one.name]))

    def applied(self, writer: AvroType) -> AvroType:
        """The writer's schema with the reader's names."""
        return self._renamed(writer) if self._types or self._fields else writer

    def _renamed(self, one: AvroType) -> AvroType:
        if one.kind not in {"record", "enum", "fixed", "array", "map", "union"}:
            return one
        if one in self._made:
            return self._made[one]
        made = self._made[one] = AvroType(one.kind, self._types.get(one.name, one.name), logical=one.logical)
        made.symbols, made.default_symbol, made.size = one.symbols, one.default_symbol, one.size
        if one.item is not None:
            made.item = self._renamed(one.item)
        made.branches = tuple(self._renamed(branch) for branch in one.branches)
        if one.kind == "union":
            union_of(made.branches)
        names = self._fields.get(made.name, {})
        made.fields = tuple(
            Field(names.get(inner.name, inner.name), self._renamed(inner.type), default=inner.default)
            for inner in one.fields
        )
        twice = {inner.name for inner in made.fields if sum(other.name == inner.name for other in made.fields) > 1}
        if twice:
            raise ConfigError(
                f"an alias of field {min(twice)} names another field of {one}, so both would be one field"
            )
        return made
