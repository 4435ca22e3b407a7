"""Copies the records of a closed segment into the archive: two objects, of which no manifest knows yet.

archive_manager.py calls `copy` in a thread. The file is read once, in blocks, while it is put: so memory is bounded by
a block and what the store's client holds of an upload. The walk over the batches' headers on the way gives the marks,
the indexes and the CRC. The `.log` object has the bytes as they are on the leader's disk. The `.aux` object is put
after it, because it names its CRC; a segment without both was not copied.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from broker.archive.aux_file import AuxFile, encode_aux
from broker.archive.layout import PartitionPlace, new_object_name
from broker.archive.manifest import MARK_BYTES, ArchivedSegment, EpochStart, Mark
from broker.errors import CorruptBatch, PykafkaError
from broker.log.index import OFFSET_ENTRY, TIME_ENTRY
from broker.records.aborted_entries import decode_aborted, encode_aborted
from broker.records.batch import HEADER_SIZE, BatchHeader, parse_header
from broker.records.crc32c import crc32c
from broker.storage.storage import discard_output

BLOCK: Final = 4 << 20
"""Bytes that are read and put at a time."""
_LONGEST_WAIT_S: Final = 0.5
"""Of one look at whether the broker stops."""


class CopyFailed(PykafkaError):
    """The segment cannot be copied as it is: the text says why."""


class CopyStopped(PykafkaError):
    """The broker stops."""


class Store(Protocol):
    def open_output(self, path: str) -> Any: ...

    def sync(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A closed segment of the leader's log, and where its producers' state comes from."""

    log: Path
    """Its `.log` file; the others have its name with their suffix."""
    size: int
    """Bytes of whole batches."""
    base: int
    """The first offset to copy. Batches before it are archived already."""
    end: int
    """The offset after the last record."""
    index_interval: int
    """Bytes between two entries of an index."""
    producers: Callable[[], bytes]
    """The producers' state after all records before `end`, in the format of a `.snapshot` file. Blocks."""


class Throttle:
    """Holds threads to a rate of bytes in all. Thread-safe."""

    def __init__(self, rate: Callable[[], int], stop: threading.Event) -> None:
        """`rate` gives bytes per second; it is asked for each block. Threads wait until `stop`, at most."""
        self._rate = rate
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int) -> None:
        """Wait until `size` bytes may be sent. Raises CopyStopped."""
        with self._lock:
            now = time.monotonic()
            begins = max(self._free_at, now)
            self._free_at = begins + size / self._rate()
        while (remaining := begins - time.monotonic()) > 0 or self._stop.is_set():
            if self._stop.wait(min(remaining, _LONGEST_WAIT_S)):
                raise CopyStopped("the broker stops")


class Copier:
    """Puts segments into one store. Several threads may use it."""

    def __init__(self, store: Store, throttle: Throttle, on_step: Callable[[str], None] = lambda step: None) -> None:
        """`on_step` hears what is about to happen: "put", "block" of a put, "put aux"; tests stop there."""
        self._store = store
        self._throttle = throttle
        self._on_step = on_step

    def copy(
        self,
        files: SegmentFiles,
        place: PartitionPlace,
        epoch: int,
        epochs: Sequence[EpochStart] = (),
        asks: Callable[[bool], None] = lambda store: None,
    ) -> ArchivedSegment:
        """Put the objects of a segment, as the leader of `epoch`; returns what a manifest says about it.

        `epochs` are those of the archived records before it. `asks(True)` is called before each call of the store, and
        `asks(False)` before a wait for anything else.

        Raises OSError when the disk or the store fails, CorruptBatch, CopyFailed, CopyStopped. What was put until then
        stays, under a name that nobody knows.
        """
        name = new_object_name(files.base, epoch)
        walk = Walk(files.base, files.index_interval)
        descriptor = os.open(files.log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            first = _first_batch(descriptor, files)
            self._on_step("put")
            with self._output(place.segment(name), asks) as output:
                for block in _blocks(descriptor, first, files.size):
                    asks(False)
                    self._throttle.take(len(block))
                    self._on_step("block")
                    asks(True)
                    output.write(block)
                    walk.take(block)
        finally:
            os.close(descriptor)
        walk.finish(files.end)
        aborted = _aborted_in(files)
        known = [one for one in epochs if one.start < files.base]
        known += [one for one in walk.epochs if not known or one.epoch > known[-1].epoch]
        aux = encode_aux(
            AuxFile(
                base=files.base,
                end=files.end,
                log_size=walk.size,
                log_crc=walk.crc,
                offset_index=bytes(walk.offset_index),
                time_index=bytes(walk.time_index),
                aborted=aborted,
                producer_snapshot=files.producers(),
                epochs=tuple(known),
                marks=tuple(walk.marks),
            )
        )
        self._on_step("put aux")
        with self._output(place.aux(name), asks) as output:
            output.write(aux)
        return ArchivedSegment(
            name=name,
            base=files.base,
            end=files.end,
            size=walk.size,
            aux_size=len(aux),
            crc=walk.crc,
            min_timestamp=walk.min_timestamp,
            max_timestamp=walk.max_timestamp,
            epochs=tuple(walk.epochs),
            marks=tuple(walk.marks),
            aborted=bool(aborted),
            transactional=walk.is_transactional,
        )

    @contextmanager
    def _output(self, path: str, asks: Callable[[bool], None]) -> Iterator[Any]:
        """An object that is there, and will survive a power failure, when the block has ended without an error."""
        asks(True)
        output = self._store.open_output(path)
        try:
            yield output
        except BaseException:
            discard_output(output)
            raise
        asks(True)
        output.close()
        self._store.sync(path)
        asks(False)


@dataclass
class Walk:
    """What the headers of consecutive batches say, which come in blocks that are cut anywhere."""

    base: int
    index_interval: int
    size: int = 0
    """Bytes so far."""
    crc: int = 0
    min_timestamp: int = -1
    """The smallest time at the head of a batch; -1 without times. A record within a batch may be older."""
    max_timestamp: int = -1
    is_transactional: bool = False
    marks: list[Mark] = field(default_factory=list)
    epochs: list[EpochStart] = field(default_factory=list)
    offset_index: bytearray = field(default_factory=bytearray)
    time_index: bytearray = field(default_factory=bytearray)
    _next: int = 0
    """Position of the next header."""
    _end: int = -1
    """The offset after the last batch."""
    _head: bytes = b""
    """The first bytes of the next header, if a block was cut there."""
    _indexed: int = 0
    """Position up to which the indexes have entries."""
    _newest: tuple[int, int] = (-1, -1)
    """(newest timestamp, the last offset of its batch)."""
    _last_time: int = -1

    def take(self, block: bytes) -> None:
        """The next bytes. Raises CorruptBatch."""
        self.crc = crc32c(block, self.crc)
        begin = self.size
        self.size += len(block)
        if self._head:
            block = self._head + block
            begin -= len(self._head)
            self._head = b""
        while self._next + HEADER_SIZE <= self.size:
            self._note(parse_header(block, self._next - begin))
        if self._next < self.size:
            self._head = bytes(block[self._next - begin :])

    def _note(self, header: BatchHeader) -> None:
        position = self._next
        if header.length < HEADER_SIZE - 12 or header.base_offset < self._end:
            raise CorruptBatch(f"at byte {position} is no batch that follows offset {self._end - 1}")
        self._mark(header, position)
        last = header.last_offset
        if not self.epochs or header.leader_epoch > self.epochs[-1].epoch:
            self.epochs.append(EpochStart(header.leader_epoch, self._end if self.epochs else self.base))
        if header.max_timestamp > self._newest[0]:
            self._newest = header.max_timestamp, last
            self.max_timestamp = header.max_timestamp
        if header.base_timestamp >= 0 and not 0 <= self.min_timestamp <= header.base_timestamp:
            self.min_timestamp = header.base_timestamp
        if header.is_transactional:
            self.is_transactional = True
        if position - self._indexed > self.index_interval:
            self.offset_index += OFFSET_ENTRY.pack(last - self.base, position)
            self._index_time()
            self._indexed = position
        self._end, self._next = header.next_offset, position + header.size

    def _mark(self, header: BatchHeader, position: int) -> None:
        if not self.marks:
            self.marks.append(Mark(self.base, 0, -1))
        elif position - self.marks[-1].position >= MARK_BYTES:
            self.marks.append(Mark(header.base_offset, position, self.max_timestamp))

    def _index_time(self) -> None:
        timestamp, last = self._newest
        if timestamp > self._last_time:
            self.time_index += TIME_ENTRY.pack(timestamp, last - self.base)
            self._last_time = timestamp

    def finish(self, end: int) -> None:
        """All blocks were taken. Raises CorruptBatch unless they are whole batches below offset `end`."""
        if self._next != self.size or not 0 <= self._end <= end:
            raise CorruptBatch(f"{self.size} bytes up to offset {self._end - 1} are no whole batches below {end}")
        self._index_time()


def _blocks(descriptor: int, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        block = os.pread(descriptor, min(BLOCK, end - position), position)
        if not block:
            raise CopyFailed(f"the segment ends at byte {position}, not at {end}")
        yield block
        position += len(block)


def _first_batch(descriptor: int, files: SegmentFiles) -> int:
    """The position of the first batch to copy. Raises CopyFailed where `base` lies within a batch."""
    position = 0
    while position < files.size:
        header = parse_header(os.pread(descriptor, HEADER_SIZE, position))
        if header.base_offset >= files.base:
            return position
        if header.last_offset >= files.base:
            raise CopyFailed(f"{files.log}: the archive ends at {files.base}, which is within a batch of this log")
        position += header.size
    raise CopyFailed(f"{files.log} has no record from offset {files.base} on")


def _aborted_in(files: SegmentFiles) -> bytes:
    """The aborted transactions whose markers are copied, as in a `.txnindex` file; empty without one."""
    try:
        data = files.log.with_suffix(".txnindex").read_bytes()
    except FileNotFoundError:
        return b""
    try:
        entries = decode_aborted(data)
    except ValueError as error:
        raise CopyFailed(f"{files.log.with_suffix('.txnindex')}: {error}") from error
    return encode_aborted(entry for entry in entries if files.base <= entry.last_offset < files.end)
