"""Whether the records of a batch are what its header says: walked piece by piece, as they are decompressed.

Called by the log's append checks, so that nothing is stored that readers cannot read. A record's length must be that
of its fields, its offset delta its place in the batch, its numbers such as Java reads (varints of at most 5 bytes, 10
for the timestamp); there must be as many records as the header says, and nothing behind them. What breaks that is
InvalidRecord. On the way two rules are looked at that a topic has for each record, and the newest timestamp is found.

The kernel does it in one pass over a piece (`_kernel_check.c`); where it is not in use record_walk.py does the same.
Idea: Kafka's `LogValidator` and `DefaultRecord.readFrom`, which are more lenient about offset deltas and lengths below
-1; our readers are not.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from broker.errors import BrokerError, ErrorCode
from broker.records import native
from broker.records.batch import NO_TIMESTAMP, BatchHeader
from broker.records.record_rules import MOST_FAULTS, Fault, RecordRules

if TYPE_CHECKING or native.kernel is None:  # numpy would hold up the first batch
    from broker.records.record_walk import RecordWalk

__all__ = ["RecordCheck", "is_slow"]

Buffer = bytes | bytearray | memoryview

_STATE: Final = struct.Struct("=17q")
_FAULT: Final = struct.Struct("=3q")
_NO_KEY: Final = 0


class RecordCheck:
    """The records of one batch. `feed` takes its plain bytes in any pieces, `finish` says that these were all."""

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
        """Check the next bytes; nobody needs them afterwards. Raises BrokerError `invalid_record`.

        Gives what it cost beyond the kernel's look at them, in bytes that are looked at so.
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
        """ms; -1 when no record has a later one."""
        return self._progress()[1]

    @property
    def fault_count(self) -> int:
        return self._progress()[2]

    @property
    def faults(self) -> list[Fault]:
        """The first `MOST_FAULTS` of them."""
        if self._kernel is None:
            return self._walk.faults
        count = min(self.fault_count, MOST_FAULTS)
        lines = _FAULT.iter_unpack(memoryview(self._lines)[: count * _FAULT.size])
        return [Fault(index, None if kind == _NO_KEY else time) for index, kind, time in lines]

    def _progress(self) -> tuple[int, int, int]:
        """Whole records so far, the newest timestamp, faults."""
        if self._kernel is None:
            return self._walk.index, self._walk.newest, self._walk.fault_count
        index, newest, faults = _STATE.unpack(self._state)[6:9]
        return index, newest, faults


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_record, message)


def is_slow() -> bool:
    """Whether the kernel is not in use, so that each record costs more than its bytes."""
    return native.kernel is None


def _walk(header: BatchHeader, rules: RecordRules) -> RecordWalk:
    from broker.records.record_walk import RecordWalk

    return RecordWalk(header, rules)
