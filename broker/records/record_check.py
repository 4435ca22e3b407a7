"""Checks the records of a batch against its header, piece by piece as they are decompressed.

Called by the log's append checks, so that the log contains only what readers can read. A record's length must match its
fields, its offset delta must be its place in the batch, and its varints must be short enough for Java (5 bytes, 10 for
the timestamp). There must be as many records as the header says, and no bytes after them. Everything else is
INVALID_RECORD. The same pass checks the topic's two rules for records and finds the newest timestamp.

The kernel (`_kernel_check.c`) or, without it, `_RecordWalk` does the work. Idea: Kafka's `LogValidator` and
`DefaultRecord.readFrom`, which accept other offset deltas and lengths below -1; our readers do not.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Generator
from typing import Final, NamedTuple

from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.records import native
from broker.records.batch import NO_TIMESTAMP, BatchHeader, Buffer
from broker.records.varint import MAX_VARINT_BYTES, read_unsigned_varint

MOST_FAULTS: Final = 100
"""How many faults of a batch are listed; all are counted."""


class RecordRules(NamedTuple):
    """Whether records need a key, and how far (ms) a timestamp may be from now; -1 means no timestamp."""

    needs_key: bool
    now_ms: int
    before_max_ms: int
    after_max_ms: int

    def forbid(self, timestamp: int) -> bool:
        """Whether a record's timestamp is out of bounds. The difference wraps as in Java."""
        age = (self.now_ms - timestamp + 2**63) % 2**64 - 2**63
        return timestamp != NO_TIMESTAMP and (age > self.before_max_ms or -age > self.after_max_ms)


class Fault(NamedTuple):
    """A record that violates a rule: its place in the batch, and its wrong `timestamp`, or None if it lacks a key."""

    place: int
    timestamp: int | None


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
            self._walk = _RecordWalk(header, rules)

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


_INT_BYTES: Final = 5
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_EARLY, _LATE = -(2**61), 2**61  # differences of times between them do not wrap

# As the number of bytes that the kernel checks in that time, about 1 ns for each.
_COST_OF_WHOLE_RECORD: Final = 1400
_COST_OF_RECORD: Final = 4000
_COST_OF_HEADER: Final = 1000


def _read_int(piece: bytes, at: int) -> tuple[int, int]:
    """(the zigzag code of a varint, where it ends). Raises CorruptBatch, also at the end of the piece."""
    number, end = read_unsigned_varint(piece, at)
    if end - at > _INT_BYTES:
        raise CorruptBatch("a number is too long")
    return number, end


class _RecordWalk:
    """The check without the kernel. `feed` raises ValueError for an error in the record at `index`."""

    def __init__(self, header: BatchHeader, rules: RecordRules) -> None:
        self._count, self._base_time, self._rules = header.record_count, header.base_timestamp, rules
        self.index, self.newest, self.fault_count = 0, NO_TIMESTAMP, 0
        self.faults: list[Fault] = []
        self._piece, self._at = b"", 0
        self._before = 0  # bytes of the pieces before this one
        self._cost = 0
        self._steps = self._all_records()
        next(self._steps)

    def feed(self, piece: Buffer) -> int:
        """Returns the cost, as the number of bytes that the kernel checks in that time."""
        self._cost = 0
        self._steps.send(piece)
        return self._cost

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
        """Check records that are whole in the piece, up to one that has headers, breaks a rule or is malformed."""
        piece, at, first, rules = self._piece, self._at, self.index, self._rules
        base, now, before, after = self._base_time, rules.now_ms, rules.before_max_ms, rules.after_max_ms
        try:
            for index in range(first, self._count):
                number, end = piece[at], at + 1
                if number > 0x7F:
                    number, end = _read_int(piece, at)
                length, position = number, end + 1  # after the attributes
                end += number >> 1
                number, position = piece[position], position + 1
                if number > 0x7F:
                    number, position = read_unsigned_varint(piece, position - 1)
                time = base + ((number >> 1) ^ -(number & 1))
                number, position = piece[position], position + 1
                if number > 0x7F:
                    number, position = _read_int(piece, position - 1)
                if number != 2 * index or not _EARLY < time < _LATE:
                    break
                key, position = piece[position], position + 1
                if key > 0x7F:
                    key, position = _read_int(piece, position - 1)
                position += 0 if key == 1 else key >> 1
                value, position = piece[position], position + 1
                if value > 0x7F:
                    value, position = _read_int(piece, position - 1)
                position += 0 if value == 1 else value >> 1
                if length & 1 or (key & 1 and key != 1) or (value & 1 and value != 1):
                    break
                if position + 1 != end or piece[position] or (key == 1 and rules.needs_key):
                    break
                if time != NO_TIMESTAMP and (now - time > before or time - now > after):
                    break
                if time > self.newest:
                    self.newest = time
                self.index, self._at = index + 1, end
                at = end
        except (IndexError, CorruptBatch):  # the piece ends, or a number is too long
            pass
        self._cost += _COST_OF_WHOLE_RECORD * (self.index - first)

    def _one_record(self) -> Generator[None, Buffer, None]:
        """Check one record, which may span pieces."""
        self._cost += _COST_OF_RECORD
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
        self._cost += _COST_OF_HEADER * headers
        for _ in range(headers):
            wrong = "the key of a header is longer than the record, or of negative length"
            if not (yield from self._bytes(wrong, end)):
                raise ValueError(wrong)
            yield from self._bytes("the value of a header is longer than the record, or of negative length", end)
        if self._before + self._at != end:
            raise ValueError("it does not end where its length says")
        self._take(time, has_key)

    def _number(self, most_bytes: int, end: int) -> Generator[None, Buffer, int]:
        """A zigzag varint that ends before `end`."""
        number, at = 0, self._at
        if at < len(self._piece) and self._before + at < end and (byte := self._piece[at]) < 0x80:
            self._at += 1  # most have one byte, which lies here
            return (byte >> 1) ^ -(byte & 1)
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
        raise ValueError("a number in it is too long")

    def _bytes(self, wrong: str, end: int) -> Generator[None, Buffer, bool]:
        """Skip a length and as many bytes; returns False for null (-1)."""
        length = yield from self._number(_INT_BYTES, end)
        if not -1 <= length <= end - self._before - self._at:
            raise ValueError(wrong)
        if length > len(self._piece) - self._at:
            yield from self._skip(length)
        else:
            self._at += max(length, 0)
        return length >= 0

    def _skip(self, count: int) -> Generator[None, Buffer, None]:
        while count > len(self._piece) - self._at:
            count -= len(self._piece) - self._at
            yield from self._more()
        self._at += count

    def _take(self, time: int, has_key: bool) -> None:
        rules = self._rules
        fault = None
        if rules.needs_key and not has_key:
            fault = Fault(self.index, None)
        elif rules.forbid(time):
            fault = Fault(self.index, time)
        if fault is not None:
            self.fault_count += 1
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(fault)
        self.newest = max(self.newest, time)
        self.index += 1
