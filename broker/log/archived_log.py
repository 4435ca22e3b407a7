"""What a log asks of its archive: the records before its first local segment, which an object store keeps.

The layer above (broker/archive) implements `ArchivedLog` and gives it to the log as `Log.archived`; this layer imports
nothing of it. The archive holds one range of offsets without gaps, [start, end). The local segments begin inside it, or
at its end: what is in both is read locally, so every client reads one log (A2). Where they begin behind it, the
manifest that was read last is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from broker.errors import BrokerError, ErrorCode
from broker.log.aborted_index import AbortedTransaction
from broker.log.producer_snapshot import decode_snapshot
from broker.log.producer_state import ProducerStates
from broker.log.segment_file import FileSlice


class ArchivedRange(Protocol):
    """An archived segment, as retention sees it."""

    @property
    def base(self) -> int:
        """Its first offset."""

    @property
    def end(self) -> int:
        """The offset after its last record."""

    @property
    def size(self) -> int:
        """Bytes of its `.log`."""

    @property
    def max_timestamp(self) -> int:
        """ms; -1 when no record has a timestamp."""


class ArchivedState(NamedTuple):
    """What a log needs to begin without the records before `offset`, all of which are archived."""

    offset: int
    """The end of an archived segment."""
    start: int
    """Where the archive starts: the first offset that readers see."""
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its first offset) of the records before `offset`, in order."""
    producers: bytes
    """The producers' state there, as in a `.snapshot` file; empty where no record before has a producer id."""

    def decode_producers(self, now_ms: int) -> ProducerStates:
        """Raises BrokerError `kafka_storage_error`."""
        try:
            return decode_snapshot(self.producers, now_ms) if self.producers else ProducerStates()
        except ValueError as error:
            text = f"the archived state of the producers before offset {self.offset} cannot be read: {error}"
            raise BrokerError(ErrorCode.kafka_storage_error, text) from error


class ArchivedLog(Protocol):
    """The archived part of one log, as its manifest was last read. The event loop's thread calls everything.

    Nothing here waits for the store: where an answer needs it, a method raises ColdRead, whose `warm` asks the store in
    a thread. It raises BrokerError `kafka_storage_error` where the store did not answer.
    """

    @property
    def start(self) -> int | None:
        """The first offset that readers see; None while nothing is archived."""

    @property
    def end(self) -> int:
        """The offset after the last archived record; 0 while nothing is archived."""

    @property
    def last(self) -> int:
        """The last record that was ever archived, also if it was deleted since; -1 if none is known."""

    @property
    def size(self) -> int:
        """Bytes of the archived segments."""

    @property
    def segments(self) -> Sequence[ArchivedRange]:
        """The archived segments, the oldest first."""

    def read(self, offset: int, max_bytes: int, up_to: int) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, all below offset `up_to`; None when there are none.

        About `max_bytes`, but at least one batch. `start` <= `offset` < `end`. Raises ColdRead, BrokerError.
        """

    def aborted_in(self, offset: int, found: FileSlice, up_to: int) -> list[AbortedTransaction]:
        """The aborted transactions in `found`, which `read` just returned for `offset` and `up_to`, and whose markers
        are archived, too; the log knows the others. There may be some from after `found`. Raises ColdRead, BrokerError.
        """

    def offset_for_timestamp(self, ms: int, start: int, up_to: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record in [`start`, `up_to`) with a timestamp of at least `ms`; None when
        there is none. Raises ColdRead, BrokerError."""

    def max_timestamp(self, start: int, up_to: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record in [`start`, `up_to`) with the newest timestamp there; None without
        timestamps. Raises ColdRead, BrokerError."""


def not_read_yet(directory: Path, offset: int) -> BrokerError:
    """A client shall ask again for the record at `offset`, which is in the archive, if anywhere."""
    text = f"offset {offset} of {directory.name} is not on this disk, and its archive is not read yet"
    return BrokerError(ErrorCode.kafka_storage_error, text)
