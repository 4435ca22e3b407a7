"""Whether the records of a batch are what its header says: walked piece by piece, as they are decompressed.

Called by the log's append checks, so that nothing is stored that readers cannot read. A record's length must be that
of its fields, its offset delta its place in the batch, its numbers such as Java reads (varints of at most 5 bytes, 10
for the timestamp); there must be as many records as the header says, and nothing behind them. What breaks that is
InvalidRecord. On the way two rules are looked at that a topic has for each record, and the newest timestamp is found.

The kernel does it in one pass over a piece (`_kernel_check.c`); where it is not in use `_Walk` does the same in Python:
records that lie whole in a piece in one tight loop, those across two pieces, and all it is not sure of, step by step.
Idea: Kafka's `LogValidator` and `DefaultRecord.readFrom`, which are more lenient about offset deltas and lengths below
-1; our readers are not.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Generator
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.records import native
from broker.records.batch import NO_TIMESTAMP, BatchHeader
from broker.records.varint import MAX_VARINT_BYTES

__all__ = ["MOST_FAULTS", "Fault", "RecordCheck", "RecordRules"]

Buffer = bytes | bytearray | memoryview

MOST_FAULTS: Final = 100
"""Faults of a batch that are kept; all are counted."""

_INT_BYTES: Final = 5
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_STATE: Final = struct.Struct("=17q")
_FAULT: Final = struct.Struct("=3q")
_NO_KEY: Final = 0
_TOO_LONG: Final = "a number in it is too long"


class RecordRules(NamedTuple):
    """What a topic asks of each record. A timestamp of -1 is none; others must lie within the two bounds, ms."""

    needs_key: bool
    now_ms: int
    before_max_ms: int
    after_max_ms: int

    def forbid(self, timestamp: int) -> bool:
        """Whether a record's time is out of bounds. The difference wraps as Java's does."""
        age = (self.now_ms - timestamp + 2**63) % 2**64 - 2**63
        return timestamp != NO_TIMESTAMP and (age > self.before_max_ms or -age > self.after_max_ms)


class Fault(NamedTuple):
    """A record the topic's rules forbid, by its place in the batch; without a `timestamp` it lacks a key."""

    place: int
    timestamp: int | None


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
            self._walk = _Walk(header, rules)

    def feed(self, piece: Buffer) -> None:
        """Check the next bytes; nobody needs them afterwards. Raises BrokerError `invalid_record`."""
        try:
            if self._kernel is not None:
                self._kernel.check_records(piece, self._state, self._lines)
            else:
                self._walk.feed(piece)
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


class _Walk:
    """The same in Python. What is wrong with the record at `index` is a ValueError."""

    def __init__(self, header: BatchHeader, rules: RecordRules) -> None:
        self._count, self._base_time, self._rules = header.record_count, header.base_timestamp, rules
        self.index, self.newest, self.fault_count = 0, NO_TIMESTAMP, 0
        self.faults: list[Fault] = []
        self._piece, self._at = b"", 0
        self._before = 0  # bytes of the pieces before this one
        self._steps = self._all_records()
        next(self._steps)

    def feed(self, piece: Buffer) -> None:
        self._steps.send(piece)

    def _all_records(self) -> Generator[None, Buffer, None]:
        yield from self._more()
        while self.index < self._count:
            self._whole_records()
            if self.index < self._count:
                yield from self._one_record()
        while self._at == len(self._piece):
            yield from self._more()
        raise ValueError("bytes follow the last of them")

    def _more(self) -> Generator[None, Buffer, None]:
        self._before += len(self._piece)
        self._piece = bytes((yield))
        self._at = 0

    def _whole_records(self) -> None:
        """Those that lie whole in the piece and are well-formed, have no headers and only short numbers."""
        piece, size, count, base_time = self._piece, len(self._piece), self._count, self._base_time
        at, index = self._at, self.index
        try:
            while index < count:
                number, position = piece[at], at + 1
                if number > 0x7F:
                    number, position = _two_bytes(piece, at), at + 2
                end = position + (number >> 1)
                if number & 1 or end > size:
                    break
                position += 1  # attributes
                number, position = piece[position], position + 1
                shift = 7
                if number > 0x7F:
                    number &= 0x7F
                    while (byte := piece[position]) > 0x7F and shift < 49:
                        number |= (byte & 0x7F) << shift
                        position, shift = position + 1, shift + 7
                    if byte > 0x7F:
                        break
                    number, position = number | byte << shift, position + 1
                time = base_time + ((number >> 1) ^ -(number & 1))
                number, position = piece[position], position + 1
                if number > 0x7F:
                    number, position = _two_bytes(piece, position - 1), position + 1
                if number != index << 1:
                    break
                number, position = piece[position], position + 1
                if number > 0x7F:
                    number, position = _two_bytes(piece, position - 1), position + 1
                has_key = not number & 1
                if has_key:
                    position += number >> 1
                elif number != 1:
                    break
                number, position = piece[position], position + 1
                if number > 0x7F:
                    number, position = _two_bytes(piece, position - 1), position + 1
                if not number & 1:
                    position += number >> 1
                elif number != 1:
                    break
                if piece[position] or position + 1 != end or not _LOWEST <= time <= _HIGHEST:
                    break
                self._take(index, time, has_key)
                at, index = end, index + 1
        except IndexError:
            pass
        self._at, self.index = at, index

    def _one_record(self) -> Generator[None, Buffer, None]:
        """One record, whatever it is like."""
        length = yield from self._number(_INT_BYTES, sys.maxsize)
        if length < 1:
            raise ValueError("its length is not above 0")
        end = self._before + self._at + length
        yield from self._skip(1)  # attributes
        time = self._base_time + (yield from self._number(MAX_VARINT_BYTES, end))
        if not _LOWEST <= time <= _HIGHEST:
            raise ValueError("its timestamp does not fit in 64 bits")
        if (yield from self._number(_INT_BYTES, end)) != self.index:
            raise ValueError("its offset delta is not its place in the batch")
        has_key = yield from self._bytes("its key is longer than it is, or of negative length", end)
        yield from self._bytes("its value is longer than it is, or of negative length", end)
        headers = yield from self._number(_INT_BYTES, end)
        if not 0 <= headers <= (end - self._before - self._at) // 2:
            raise ValueError("it has more headers than bytes for them, or fewer than none")
        for _ in range(headers):
            wrong = "the key of a header is longer than the record, or of negative length"
            if not (yield from self._bytes(wrong, end)):
                raise ValueError(wrong)
            yield from self._bytes("the value of a header is longer than the record, or of negative length", end)
        if self._before + self._at != end:
            raise ValueError("it does not end where its length says")
        self._take(self.index, time, has_key)
        self.index += 1

    def _number(self, most_bytes: int, end: int) -> Generator[None, Buffer, int]:
        """A zigzag varint that ends before `end`."""
        number = 0
        for shift in range(0, 7 * most_bytes, 7):
            if self._before + self._at >= end:
                raise ValueError("it ends within a field")
            while self._at == len(self._piece):
                yield from self._more()
            byte = self._piece[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= 2**64 - 1
                return (number >> 1) ^ -(number & 1)
        raise ValueError(_TOO_LONG)

    def _bytes(self, wrong: str, end: int) -> Generator[None, Buffer, bool]:
        """A length and as many bytes; whether there are any, which -1 denies."""
        length = yield from self._number(_INT_BYTES, end)
        if not -1 <= length <= end - self._before - self._at:
            raise ValueError(wrong)
        yield from self._skip(max(length, 0))
        return length >= 0

    def _skip(self, count: int) -> Generator[None, Buffer, None]:
        while count > len(self._piece) - self._at:
            count -= len(self._piece) - self._at
            yield from self._more()
        self._at += count

    def _take(self, index: int, time: int, has_key: bool) -> None:
        if self._rules.needs_key and not has_key:
            self._note(Fault(index, None))
        elif self._rules.forbid(time):
            self._note(Fault(index, time))
        self.newest = max(self.newest, time)

    def _note(self, fault: Fault) -> None:
        self.fault_count += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)


def _two_bytes(piece: bytes, at: int) -> int:
    """The plain varint there; a longer one is an IndexError, for who looks closer."""
    if piece[at + 1] > 0x7F:
        raise IndexError
    return piece[at] & 0x7F | piece[at + 1] << 7
