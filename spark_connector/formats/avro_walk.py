"""A reader of Avro's encoding in Python, for the schemas that fastavro's C code must not read (avro_program.py).

It takes the same schemas and returns the same objects. What is only passed over is passed over without recursion, so a
list of any length is read in constant space, and an array of items that take no bytes in constant time: it returns one
item for any number. A field that is marked `skip` has no value.
"""

from __future__ import annotations

import struct
from typing import Any, Final

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LONGEST: Final = 10
"""Bytes of a long."""


def walk(schema: Any, raw: bytes, begin: int) -> tuple[Any, int]:
    """(value, its end). Raises EOFError, KeyError, ValueError, RecursionError for bytes that are not Avro."""
    reader = _Reader(raw, begin)
    return reader.value(schema), reader.at


class _Reader:
    def __init__(self, raw: bytes, begin: int) -> None:
        self._raw = raw
        self.at = begin

    def value(self, node: Any) -> Any:
        kind = node if isinstance(node, str) else node["type"]
        match kind:
            case "record":
                return self._record(node["fields"])
            case "union":
                return self.value(node[self._long()])
            case "array":
                items: list[Any] = []
                while (count := self._count()) > 0:
                    items.extend(self.value(node["items"]) for _ in range(1 if node["empty"] else count))
                return items[:1] if node["empty"] else items
            case "map":
                entries: dict[str, Any] = {}
                while (count := self._count()) > 0:
                    for _ in range(count):
                        key = self._take(self._long()).decode("utf-8")
                        entries[key] = self.value(node["values"])
                return entries
            case "enum":
                return node["symbols"][self._long()]
            case "fixed":
                return self._take(node["size"])
            case "int" | "long":
                return self._long()
            case "bytes":
                return self._take(self._long())
            case "string":
                return self._take(self._long()).decode("utf-8")
            case "boolean":
                return self._take(1) != b"\0"
            case "float":
                return struct.unpack("<f", self._take(4))[0]
            case "double":
                return struct.unpack("<d", self._take(8))[0]
        return None

    def _record(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        made = {}
        for one in fields:
            if "skip" in one:
                self._pass_over(one["type"])
            else:
                made[one["name"]] = self.value(one["type"])
        return made

    def _pass_over(self, node: Any) -> None:
        """Without recursion: `left` has what is still to be passed over, and how often."""
        left: list[tuple[Any, int]] = [(node, 1)]
        while left:
            node, count = left.pop()
            if count > 1:
                left.append((node, count - 1))
            kind = node if isinstance(node, str) else node["type"]
            if kind == "record":
                left.extend((one["type"], 1) for one in reversed(node["fields"]))
            elif kind == "union":
                left.append((node[self._long()], 1))
            elif kind == "array":  # or a map, which is passed over as an array of its entries
                count = self._count()
                if count > 0:
                    left.append((node, 1))  # another block may follow
                    if not node["empty"]:
                        left.append((node["items"], count))
            elif kind in {"int", "long"}:
                self._long()
            else:
                self._take(self._long() if kind == "bytes" else node["size"] if kind == "fixed" else _SIZES[kind])

    def _count(self) -> int:
        """Of the items of the next block; 0 at the end."""
        count = self._long()
        if count < 0:
            self._long()  # the block's size in bytes
        return abs(count)

    def _long(self) -> int:
        found = shift = 0
        for at in range(self.at, min(self.at + _LONGEST, len(self._raw))):
            byte = self._raw[at]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self.at = at + 1
                return (found >> 1) ^ -(found & 1)
        if len(self._raw) - self.at < _LONGEST:
            raise EOFError
        raise ValueError("a number of more than 10 bytes")

    def _take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._raw):
            raise EOFError
        self.at += size
        return self._raw[self.at - size : self.at]
