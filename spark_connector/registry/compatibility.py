"""Whether two Avro schemas are compatible: whether every value of the one can be read with the other, by the rules by
which values are read (formats/avro_resolver.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.errors import ConfigError
from spark_connector.formats.avro_resolver import Fail, FromUnion, Items, Record, Step, Symbols, ToUnion, resolve
from spark_connector.formats.avro_schema import AvroType

LEVELS: Final = (
    *("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE"),
)


def complaints(newer: AvroType, older: AvroType, level: str) -> list[str]:
    """Why the schemas are not compatible at `level`. BACKWARD: the newer reads what the older wrote."""
    found: list[str] = []
    for reader, writer, levels in ((newer, older, ("BACKWARD", "FULL")), (older, newer, ("FORWARD", "FULL"))):
        if level.startswith(levels):
            try:
                found += _reasons(resolve(writer, reader), set())
            except ConfigError as error:
                found.append(str(error))
    return list(dict.fromkeys(found))


def _reasons(step: Step, seen: set[int]) -> Iterator[str]:
    if id(step) in seen:
        return
    seen.add(id(step))
    match step:
        case Fail(why=why):
            yield why
        case Symbols(writer=writer, symbols=symbols, path=path) if None in symbols:
            missing = [name for name, symbol in zip(writer.symbols, symbols, strict=True) if symbol is None]
            yield f"{f'field {path}: ' if path else ''}{writer} was written with {', '.join(missing)}, which is missing"
        case Items(item=item):
            yield from _reasons(item, seen)
        case Record(fields=fields, why=why):
            if why is not None:
                yield why
            for _, inner in fields:
                yield from _reasons(inner, seen)
        case FromUnion(branches=branches):
            for branch in branches:
                yield from _reasons(branch, seen)
        case ToUnion(step=inner):
            yield from _reasons(inner, seen)
