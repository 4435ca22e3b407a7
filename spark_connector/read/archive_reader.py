"""The batches of archived ranges, read from the store: what a Spark task does instead of a fetch.

Ranges of 8 MiB are read, the next one while Spark consumes the last, so memory holds two of them and a batch that they
cut. Each comes as a `Fetched`, as from a broker, and is decoded in the same way (fetch.py).

Readers of committed records leave out those of aborted transactions. A transaction's marker may be in a later segment
than its records, so the abort lists of the following segments are read, too, until one says that everything before the
end of the range was decided. What the archive's end cuts the driver has asked a broker for (StoredRange.aborted).

An object that is gone raises FileNotFoundError: retention has passed it, and the caller asks the broker what is left.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from broker.archive.aux_file import ABORTED, AuxFooter, BrokenAux, decode_footer, parse_aborted
from broker.archive.layout import PartitionPlace
from broker.archive.manifest import ArchivedSegment, Manifest
from broker.archive.manifest_store import ManifestStore
from broker.client.fetcher import Fetched
from broker.errors import CorruptBatch
from broker.records.aborted_entries import AbortedEntry
from broker.records.batch import HEADER_SIZE, find_last_batch, parse_header
from broker.storage.storage import Storage, open_storage
from broker.storage.url_secrets import text_without_secrets, without_secrets
from spark_connector.errors import ConnectorError
from spark_connector.options.archive_options import ArchiveOptions
from spark_connector.read.archive_plan import Piece, StoredRange

READ_BYTES: Final = 8 << 20
"""Of a request: an object store needs as long for 256 KiB as for 2 MiB."""

_TAIL: Final = 256 << 10
"""Bytes of the end of an `.aux` that are read at once: footer, epochs, producers, and most lists of transactions."""

_MOST_STORES: Final = 8


class StoredBatches:
    """Iterates over a range from `planned.from_offset` on. `position` follows the last batch that was given.

    Raises FileNotFoundError, CorruptBatch for bytes that are not what the manifest says, and ConnectorError
    `PYKAFKA_ARCHIVE_UNAVAILABLE` where the store does not answer.
    """

    def __init__(self, archive: ArchiveOptions, planned: StoredRange, *, committed: bool) -> None:
        self._planned = planned
        self._storage = open_store(planned.url, archive)
        self._transactions = _Transactions(self._storage, planned) if committed else None
        self.position = planned.from_offset

    def __iter__(self) -> Iterator[Fetched]:
        with store_errors(self._planned.url):
            for piece in self._planned.pieces:
                path = self._planned.place.segment(piece.segment)
                try:
                    yield from self._batches_of(piece, path)
                except CorruptBatch as error:
                    raise CorruptBatch(f"{self._planned.tp}, archived in {path}: {error.message}") from error

    def left(self, position: int) -> StoredRange:
        """What may be left of the range where the object with `position` is gone: from the archive's start on, or from
        the next object on if the manifest still names this one.

        Raises ConnectorError where nothing of the cluster is there: a store that is not mounted here has lost nothing.
        """
        planned = self._planned
        with store_errors(planned.url):
            start = load_manifest(self._storage, planned.place).start
            if not self._storage.names(planned.place.cluster_id):
                raise ConnectorError(
                    "PYKAFKA_ARCHIVE_UNAVAILABLE",
                    f"Nothing of cluster {planned.place.cluster_id} is in the archive '{without_secrets(planned.url)}' "
                    "as this task sees it. Is it mounted on all executors?",
                )
        if start <= position:
            start = next(piece.until for piece in planned.pieces if piece.until > position)
        start = min(start, planned.until_offset)
        pieces = tuple(piece for piece in planned.pieces if piece.until > start)
        return replace(planned, from_offset=start, pieces=pieces)

    def _batches_of(self, piece: Piece, path: str) -> Iterator[Fetched]:
        aborted = self._transactions.aborted_in(piece) if self._transactions is not None else []
        expected: int | None = piece.first
        for batches in whole_batches(functools.partial(self._storage.read_range, path), piece.start, piece.end):
            first = parse_header(batches).base_offset
            if expected is not None and first != expected:
                raise CorruptBatch(f"the batch at byte {piece.start} begins at offset {first}, not {expected}")
            expected = None
            if first >= piece.until:
                break  # the object holds more where a truncation has cut the segment
            following = min(parse_header(batches, find_last_batch(batches)[0]).next_offset, piece.until)
            self.position = max(self.position, following)
            here = sorted({(one.producer_id, one.first_offset) for one in aborted if one.last_offset >= first})
            yield Fetched(batches, -1, -1, -1, [*here, *self._planned.aborted], following)
        if self.position < piece.until:
            raise CorruptBatch(f"it ends at offset {self.position}, and should hold those up to {piece.until - 1}")


def whole_batches(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[memoryview]:
    """The bytes [start, end), which begin and end with a batch, in parts of whole batches; the next part is read ahead.

    `read(start, end)` gives bytes of the object. Raises its errors, and CorruptBatch where the bytes end in a batch.
    """
    with ThreadPoolExecutor(1, "pykafka-archive") as thread:
        edges = [*range(start, end, READ_BYTES), end]
        ahead = [thread.submit(read, edges[0], edges[1])] if start < end else []
        left = b""
        for number, edge in enumerate(edges[1:], 2):
            data = ahead.pop().result()
            if number < len(edges):
                ahead.append(thread.submit(read, edge, edges[number]))
            if data:
                left = left + data if left else data
                last, count = find_last_batch(left)
                if count:
                    whole = last + parse_header(left, last).size
                    yield memoryview(left)[:whole]
                    left = left[whole:]
                if len(left) >= HEADER_SIZE and parse_header(left).size > len(left) + end - edge:
                    raise CorruptBatch(f"the batch at byte {edge - len(left)} ends after byte {end}")
        if left:
            raise CorruptBatch(f"it ends in the middle of a batch, {len(left)} bytes after its begin")


class _Transactions:
    """The aborted transactions of one partition. Asks the store when it is asked."""

    def __init__(self, storage: Storage, planned: StoredRange) -> None:
        self._storage = storage
        self._place = planned.place
        self._known: dict[str, list[AbortedEntry]] = {}

    def aborted_in(self, piece: Piece) -> list[AbortedEntry]:
        """Those with records in the piece, as far as their markers are archived.

        Raises FileNotFoundError where retention has passed the piece: then nobody knows.
        """
        found: list[AbortedEntry] = []
        for segment in self._from(piece) if piece.transactional else ():
            entries = self._entries(segment)
            found += [one for one in entries if one.first_offset < piece.until and one.last_offset >= piece.first]
            if any(one.last_stable_offset >= piece.until for one in entries):
                break
        return found

    def _from(self, piece: Piece) -> Iterator[ArchivedSegment]:
        """The segment of the piece and those after it that have abort lists."""
        manifest = self._manifest
        if manifest.start >= piece.until:
            raise FileNotFoundError(self._place.segment(piece.segment))
        for segment in manifest.segments_between(piece.until - 1, manifest.end):
            if segment.aborted:
                yield segment

    @functools.cached_property
    def _manifest(self) -> Manifest:
        return load_manifest(self._storage, self._place)

    def _entries(self, segment: ArchivedSegment) -> list[AbortedEntry]:
        """A truncated segment has entries of markers that do not count."""
        if segment.name not in self._known:
            entries = parse_aborted(read_section(self._storage, self._place, segment, ABORTED)[1])
            self._known[segment.name] = [one for one in entries if one.last_offset < segment.end]
        return self._known[segment.name]


def load_manifest(storage: Storage, place: PartitionPlace) -> Manifest:
    """As it is now. Raises BrokenManifest, OSError."""
    return ManifestStore(storage, place.cluster_id, place.topic_id, place.partition).load()


def read_section(
    storage: Storage, place: PartitionPlace, segment: ArchivedSegment, section: int
) -> tuple[AuxFooter, bytes]:
    """The footer and a section of a segment's `.aux`: one request for most of those behind the indexes.

    Raises BrokenAux, OSError.
    """
    path, size = place.aux(segment.name), segment.aux_size
    tail_at = max(size - _TAIL, 0)
    tail = storage.read_range(path, tail_at, size)
    try:
        footer = decode_footer(tail)
        if footer.size != size:
            raise BrokenAux(f"it has {size} bytes, and its footer says {footer.size}")
        start, end = footer.range_of(section)
        data = tail[start - tail_at : end - tail_at] if start >= tail_at else storage.read_range(path, start, end)
        return footer, footer.checked(section, data)
    except BrokenAux as error:
        raise BrokenAux(f"{path}: {error}") from None


def open_store(url: str, archive: ArchiveOptions) -> Storage:
    """The root of the archive; kept by this process, because an object store's client takes a while to make.

    Raises ConfigError, without secrets.
    """
    return _open(url, tuple(sorted(archive.storage_options.items())), os.getpid())


@functools.lru_cache(maxsize=_MOST_STORES)
def _open(url: str, options: tuple[tuple[str, str], ...], process: int) -> Storage:
    """`process`: a forked child must not use its parent's connections."""
    return open_storage(url, dict(options))


@contextlib.contextmanager
def store_errors(url: str) -> Iterator[None]:
    """What the store fails with becomes ConnectorError; FileNotFoundError stays."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConnectorError(
            "PYKAFKA_ARCHIVE_UNAVAILABLE",
            f"The archive '{without_secrets(url)}' cannot be read: {text_without_secrets(str(error))}. Check options "
            "'archive.option.*', or read through the brokers (archive=broker).",
        ) from None
