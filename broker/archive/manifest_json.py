"""The JSON of a manifest's entry.

    {"version": 1, "number": 7, "epoch": 3, "broker": 1, "kind": "add", "segment": {…}}
    {…, "kind": "start", "start": 500}   {…, "kind": "truncate", "end": 900}
    {…, "kind": "snapshot", "start": 0, "end": 900, "segments": [{…}, …]}

Fields that are not known are ignored; a `version` above ours is refused. Pure.
"""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from typing import Any

from broker.archive.layout import is_object_name
from broker.archive.manifest import (
    MOST_AUX,
    MOST_SEGMENT,
    Add,
    ArchivedSegment,
    BrokenManifest,
    Change,
    Entry,
    EpochStart,
    Mark,
    Snapshot,
    Start,
    Truncate,
)

_VERSION = 1
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def encode_entry(entry: Entry) -> bytes:
    head = {"version": _VERSION, "number": entry.number, "epoch": entry.epoch, "broker": entry.broker}
    body: dict[str, Any]
    match entry.change:
        case Add(segment):
            body = {"kind": "add", "segment": _segment_fields(segment)}
        case Start(start):
            body = {"kind": "start", "start": start}
        case Truncate(end):
            body = {"kind": "truncate", "end": end}
        case Snapshot(start, end, segments):
            body = {"kind": "snapshot", "start": start, "end": end, "segments": [*map(_segment_fields, segments)]}
    return json.dumps({**head, **body}, separators=(",", ":")).encode()


def _segment_fields(segment: ArchivedSegment) -> dict[str, Any]:
    return {field.name: getattr(segment, field.name) for field in fields(segment)}


def decode_entry(data: bytes) -> Entry:
    """Raises BrokenManifest for anything that is no entry, whatever the bytes are."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, a number of too many digits
        raise BrokenManifest(f"not JSON: {error}") from None
    entry = _object(found)
    if _number(entry, "version", 1) > _VERSION:
        raise BrokenManifest(f"version {entry['version']} is of a later pykafka; this one reads up to {_VERSION}")
    number, epoch, broker = _number(entry, "number", 0), _number(entry, "epoch", -1), _number(entry, "broker", -1)
    return Entry(number, epoch, broker, _change(entry))


def _change(found: dict[str, Any]) -> Change:
    match found.get("kind"):
        case "add":
            return Add(_segment(found.get("segment")))
        case "start":
            return Start(_number(found, "start", 0))
        case "truncate":
            return Truncate(_number(found, "end", 0))
        case "snapshot":
            segments = tuple(_segment(one) for one in _list(found, "segments"))
            return Snapshot(_number(found, "start", 0), _number(found, "end", 0), segments)
    raise BrokenManifest(f"unknown kind {found.get('kind')!r:.40}")


def _segment(found: object) -> ArchivedSegment:
    given = _object(found)
    name = given.get("name")
    if not (isinstance(name, str) and is_object_name(name)):
        raise BrokenManifest(f"no name of an object: {name!r:.60}")
    segment = ArchivedSegment(
        name=name,
        base=_number(given, "base", 0),
        end=_number(given, "end", 0),
        size=_number(given, "size", 0),
        aux_size=_number(given, "aux_size", 0),
        crc=_number(given, "crc", 0),
        min_timestamp=_number(given, "min_timestamp", -1),
        max_timestamp=_number(given, "max_timestamp", -1),
        epochs=tuple(EpochStart(*row) for row in _rows(given, "epochs", 2)),
        marks=tuple(Mark(*row) for row in _rows(given, "marks", 3)),
        aborted=_flag(given, "aborted"),
        transactional=_flag(given, "transactional"),
    )
    _check(segment)
    return segment


def _check(segment: ArchivedSegment) -> None:
    """What readers rely on: they search the columns, and cut the object at the positions."""
    marks, epochs = segment.marks, segment.epochs
    positions_grow = all(a.offset < b.offset and a.position < b.position for a, b in pairwise(marks))
    epochs_grow = all(a.epoch < b.epoch and a.start < b.start for a, b in pairwise(epochs))
    if segment.size > MOST_SEGMENT or segment.aux_size > MOST_AUX:
        raise BrokenManifest(f"{segment.name}: {segment.size} and {segment.aux_size} bytes are more than a segment has")
    if not segment.base < segment.end:
        raise BrokenManifest(f"{segment.name}: from {segment.base} to {segment.end} is no range")
    if not (marks and marks[0][:2] == (segment.base, 0) and positions_grow):
        raise BrokenManifest(f"{segment.name}: its marks do not grow from {segment.base} at position 0")
    if not (marks[-1].position < segment.size and marks[-1].offset < segment.end):
        raise BrokenManifest(f"{segment.name}: its marks leave the segment")
    if not (epochs and epochs[0].start == segment.base and epochs_grow and epochs[-1].start < segment.end):
        raise BrokenManifest(f"{segment.name}: its epochs do not grow from {segment.base} on")


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BrokenManifest(f"not an object: {found!r:.40}")
    return found


def _list(found: dict[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise BrokenManifest(f"{name} is no list: {value!r:.40}")
    return value


def _rows(found: dict[str, Any], name: str, columns: int) -> list[list[int]]:
    rows = _list(found, name)
    for row in rows:
        if not (isinstance(row, list) and len(row) == columns and all(map(_is_number, row))):
            raise BrokenManifest(f"{name} has a row that is not {columns} numbers: {row!r:.60}")
    return rows


def _number(found: dict[str, Any], name: str, lowest: int) -> int:
    value = found.get(name)
    if not (_is_number(value) and isinstance(value, int) and value >= lowest):
        raise BrokenManifest(f"{name} is no number from {lowest} on: {value!r:.40}")
    return value


def _flag(found: dict[str, Any], name: str) -> bool:
    value = found.get(name)
    if not isinstance(value, bool):
        raise BrokenManifest(f"{name} is neither true nor false: {value!r:.40}")
    return value


def _is_number(value: object) -> bool:
    return type(value) is int and _LOWEST <= value <= _HIGHEST
