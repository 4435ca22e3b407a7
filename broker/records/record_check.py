"""Checks the records of a batch against its header, piece by piece as they are decompressed.

Called by the log's append checks, so that the log contains only what readers can read. A record's length must match its
fields, its offset delta must be its place in the batch, and its varints must be short enough for Java (5 bytes, 10 for
the timestamp). There must be as many records as the header says, and no bytes after them. Everything else is
INVALID_RECORD. The same pass checks the topic's two rules for records and finds the newest timestamp.

The kernel (`_kernel_check.c`) or, without it, record_walk.py does the work. Idea: Kafka's `LogValidator` and
`DefaultRecord.readFrom`, which accept other offset deltas and lengths below -1; our readers do not.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from broker.errors import BrokerError, ErrorCode
from broker.records import native
from broker.records.batch import NO_TIMESTAMP, BatchHeader, Buffer
from broker.records.record_rules import MOST_FAULTS, Fault, RecordRules

if TYPE_CHECKING or native.kernel is None:  # else the first batch would wait for the import of numpy
    from broker.records.record_walk import RecordWalk


_STATE: Final = struct.Struct("=17q")
_FAULT: Final = struct.Struct("=3q")
_NO_KEY: Final = 0


class RecordCheck:
    """The check of one batch. Call `feed` with its plain bytes, in pieces of any size, then `finish`."""

    def __init__(self, header: BatchHeader, rules: RecordRules) -> None:
        self._count = header.record_count
        self._kernel = native.kernel
        if self._kernel is not None:
            start = (header.record_count, header.base_timestamp, *rules[1:], rules.needs_key, 0, NO_TIMESTAMP)
            self._state = bytearray(_STATE.pack(*start, *[0] * 9))
            self._lines = bytearray(MOST_FAULTS * _FAULT.size)
        else:
            self._walk = _walk(header, rules)

    def feed(self, piece: Buffer) -> int:
        """Check the next bytes. Raises BrokerError `invalid_record`.

        Returns the extra cost of a check without the kernel, as a number of bytes that the kernel checks in that time.
        """
        try:
            if self._kernel is None:
                return self._walk.feed(piece)
            self._kernel.check_records(piece, self._state, self._lines)
            return 0
        except ValueError as error:
            raise _invalid(f"record {self._progress()[0]} of the batch cannot be read: {error}") from None

    def finish(self) -> None:
        """Raises BrokerError `invalid_record` when records are missing."""
        index = self._progress()[0]
        if index < self._count:
            raise _invalid(f"the batch ends after {index} whole records; its header says {self._count}")

    @property
    def newest_timestamp(self) -> int:
        """In ms; -1 when no record has one."""
        return self._progress()[1]

    @property
    def fault_count(self) -> int:
        return self._progress()[2]

    @property
    def faults(self) -> list[Fault]:
        """The first `MOST_FAULTS` faults."""
        if self._kernel is None:
            return self._walk.faults
        count = min(self.fault_count, MOST_FAULTS)
        lines = _FAULT.iter_unpack(memoryview(self._lines)[: count * _FAULT.size])
        return [Fault(index, None if kind == _NO_KEY else time) for index, kind, time in lines]

    def _progress(self) -> tuple[int, int, int]:
        """(whole records so far, newest timestamp, number of faults)."""
        if self._kernel is None:
            return self._walk.index, self._walk.newest, self._walk.fault_count
        index, newest, faults = _STATE.unpack(self._state)[6:9]
        return index, newest, faults


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_record, message)


def is_slow() -> bool:
    """Whether checks run without the kernel, so that each record costs more than its bytes."""
    return native.kernel is None


def _walk(header: BatchHeader, rules: RecordRules) -> RecordWalk:
    from broker.records.record_walk import RecordWalk

    return RecordWalk(header, rules)
