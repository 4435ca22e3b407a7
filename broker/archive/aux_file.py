"""The `.aux` object of an archived segment: all that a broker keeps of it beside the records, in one object.

Four sections are Kafka's files as they lie beside the segment, and empty where there is none. Big-endian:

    offset index        `.index`          offsets relative to `base` (int32), position (int32)
    time index          `.timeindex`      timestamp (int64), relative offset (int32)
    aborted             `.txnindex`       the aborted transactions whose markers are in the segment
    producer snapshot   `.snapshot`       the producers after all records before `end`: where a follower may begin
    leader epochs       epoch (int32), first offset (int64), of the whole log up to `end`
    marks               offset, position, timestamp (int64): all marks of the manifest, whose snapshots have fewer
    footer              base, end, size and CRC-32C of the `.log`; length and CRC-32C of each section; its own CRC-32C

The footer has one size and stands at the end, so a reader of one section reads the footer first. Pure; written by the
copier, read by a follower, by fetches and by Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from broker.archive.manifest import MOST_AUX, EpochStart, Mark
from broker.errors import PykafkaError
from broker.records.aborted_entries import AbortedEntry, decode_aborted
from broker.records.crc32c import crc32c

_MAGIC = b"pkaux"
_VERSION = 1
_HEAD = struct.Struct(">5sBqqqI")
_SECTION = struct.Struct(">QI")
_CRC = struct.Struct(">I")
_EPOCH = struct.Struct(">iq")
_MARK = struct.Struct(">qqq")
_SECTIONS = 6
OFFSET_INDEX, TIME_INDEX, ABORTED, PRODUCER_SNAPSHOT, EPOCHS, MARKS = range(_SECTIONS)
"""Numbers of the sections."""
_MOST_ROWS = 1 << 17
"""Epochs, or marks: of a segment of 2 GiB a mark for each 16 KiB."""
FOOTER_SIZE = _HEAD.size + _SECTIONS * _SECTION.size + _CRC.size
"""Bytes."""


class BrokenAux(PykafkaError):
    """Bytes that are no whole `.aux` object."""


@dataclass(frozen=True, slots=True)
class AuxFile:
    base: int
    end: int
    """The offset after the last record."""
    log_size: int
    """Bytes of the `.log` object."""
    log_crc: int
    """CRC-32C of the `.log` object."""
    offset_index: bytes
    time_index: bytes
    aborted: bytes
    producer_snapshot: bytes
    epochs: tuple[EpochStart, ...]
    marks: tuple[Mark, ...] = ()

    @property
    def aborted_entries(self) -> list[AbortedEntry]:
        """In the order of their markers. Raises BrokenAux."""
        return parse_aborted(self.aborted)


@dataclass(frozen=True, slots=True)
class AuxFooter:
    base: int
    end: int
    log_size: int
    log_crc: int
    lengths: tuple[int, ...]
    crcs: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole object."""
        return sum(self.lengths) + FOOTER_SIZE

    def check_size(self, size: int) -> None:
        """Raises BrokenAux unless this is the footer of an object of so many bytes: the lengths may be anything."""
        if self.size != size:
            raise BrokenAux(f"it has {size} bytes, and its footer says {self.size}")

    def range_of(self, section: int) -> tuple[int, int]:
        """(first byte, byte after the last) of a section in the object."""
        start = sum(self.lengths[:section])
        return start, start + self.lengths[section]

    def checked(self, section: int, data: bytes) -> bytes:
        """The bytes of a section, if they are. Raises BrokenAux."""
        if len(data) != self.lengths[section] or crc32c(data) != self.crcs[section]:
            raise BrokenAux(f"section {section} is not as it was written")
        return data


def encode_aux(aux: AuxFile) -> bytes:
    epochs = b"".join(_EPOCH.pack(*epoch) for epoch in aux.epochs)
    marks = b"".join(_MARK.pack(*mark) for mark in aux.marks)
    sections = (aux.offset_index, aux.time_index, aux.aborted, aux.producer_snapshot, epochs, marks)
    head = _HEAD.pack(_MAGIC, _VERSION, aux.base, aux.end, aux.log_size, aux.log_crc)
    footer = head + b"".join(_SECTION.pack(len(section), crc32c(section)) for section in sections)
    return b"".join((*sections, footer, _CRC.pack(crc32c(footer))))


def decode_footer(tail: bytes) -> AuxFooter:
    """The footer at the end of `tail`, which are the last bytes of an object. Raises BrokenAux."""
    footer, crc = tail[-FOOTER_SIZE : -_CRC.size], tail[-_CRC.size :]
    if len(tail) < FOOTER_SIZE or crc32c(footer) != _CRC.unpack(crc)[0]:
        raise BrokenAux("it has no whole footer")
    magic, version, base, end, log_size, log_crc = _HEAD.unpack_from(footer)
    if magic != _MAGIC or version != _VERSION:
        raise BrokenAux(f"{magic!r}, version {version}, is not {_MAGIC!r}, version {_VERSION}")
    lengths, crcs = zip(*_SECTION.iter_unpack(footer[_HEAD.size :]), strict=True)
    found = AuxFooter(base, end, log_size, log_crc, lengths, crcs)
    rows = lengths[MARKS] // _MARK.size, lengths[EPOCHS] // _EPOCH.size
    if found.size > MOST_AUX or max(rows) > _MOST_ROWS:
        raise BrokenAux(f"its sections have {lengths} bytes: no segment has so much")
    return found


def decode_aux(data: bytes) -> AuxFile:
    """Raises BrokenAux for anything that `encode_aux` did not give, whatever the bytes are."""
    footer = decode_footer(data)
    footer.check_size(len(data))
    bounds = [0, *accumulate(footer.lengths)]
    index, times, aborted, producers, epochs, marks = (
        footer.checked(number, data[start:end]) for number, (start, end) in enumerate(pairwise(bounds))
    )
    head = (footer.base, footer.end, footer.log_size, footer.log_crc)
    return AuxFile(*head, index, times, aborted, producers, parse_epochs(epochs), parse_marks(marks))


def parse_epochs(section: bytes) -> tuple[EpochStart, ...]:
    """Of the bytes of the section EPOCHS. Raises BrokenAux."""
    if len(section) % _EPOCH.size:
        raise BrokenAux(f"{len(section)} bytes of epochs")
    epochs = tuple(EpochStart(*row) for row in _EPOCH.iter_unpack(section))
    if not _grow(epochs):
        raise BrokenAux("its epochs do not grow")
    return epochs


def parse_marks(section: bytes) -> tuple[Mark, ...]:
    """Of the bytes of the section MARKS. Raises BrokenAux."""
    if len(section) % _MARK.size:
        raise BrokenAux(f"{len(section)} bytes of marks")
    marks = tuple(Mark(*row) for row in _MARK.iter_unpack(section))
    if not all(a.offset < b.offset and a.position < b.position for a, b in pairwise(marks)):
        raise BrokenAux("its marks do not grow")
    return marks


def parse_aborted(section: bytes) -> list[AbortedEntry]:
    """Of the bytes of the section ABORTED. Raises BrokenAux."""
    try:
        return decode_aborted(section) if section else []
    except ValueError as error:
        raise BrokenAux(f"its aborted transactions: {error}") from None


def _grow(epochs: Sequence[EpochStart]) -> bool:
    return all(a.epoch < b.epoch and a.start < b.start for a, b in pairwise(epochs))
