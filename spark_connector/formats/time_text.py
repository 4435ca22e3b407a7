"""Columns of dates and timestamps as text, by a pattern of Java's DateTimeFormatter as Spark's to_json takes it.

Vectorised: Arrow writes all digits of a time, and a pattern chooses among them. So patterns are of parts with a fixed
width: `yyyy MM dd HH mm ss S…`, offsets (`XXX`, `xx`, …), quoted text and punctuation; brackets as in Java. Others are
refused. Zones are those of Arrow's database, and offsets (`+02:00`, `GMT+2`).
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_DIGITS: Final = {"yyyy": (0, 4), "MM": (5, 7), "dd": (8, 10), "HH": (11, 13), "mm": (14, 16)}
"""Where they stand in `2026-11-26 12:30:05.123456`; so do `ss` and fractions."""
_DATE_PARTS: Final = frozenset({"yyyy", "MM", "dd"})
_OFFSETS: Final = {letter * count for letter in "Xx" for count in range(1, 6)}
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([\[\]])|([^A-Za-z'{}#])")
_FIXED: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)
_LITERAL: Final = 255
"""In the place of a digit: the next byte is written as it is."""
_US_OF_DAY: Final = 86_400_000_000
_FIRST, _LAST = (int(np.datetime64(day, "D").astype(np.int64)) for day in ("0000-01-01", "9999-12-31"))
_CYCLE: Final = 146_097
"""Days of 400 years, after which the calendar repeats."""
_CYCLE_US: Final = _CYCLE * _US_OF_DAY
_QUARTER_US: Final = 900_000_000
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_EARLIEST, _ARROW_KNOWS = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("1700-01-01", "2037-01-01"))
"""No zone has a rule before the first; Arrow applies none of those that go on for ever after 2037."""
_LATE: Final = int(np.datetime64("9000-01-01", "us").astype(np.int64))


class _Part(NamedTuple):
    """Digits of the time from `begin` to `end`, or the text `literal`, or the offset in the style `offset`."""

    begin: int = 0
    end: int = 0
    literal: bytes = b""
    offset: str = ""
    is_year: bool = False


class TimePattern:
    """One pattern for one type of column."""

    def __init__(self, option: str, pattern: str, kind: pa.DataType) -> None:
        """Raises ConfigError, which names `option`, for a pattern that cannot be written or is not for `kind`."""
        self._zone = kind.tz if pa.types.is_timestamp(kind) else None
        self._is_date = pa.types.is_date(kind)
        self._parts = self._parse(option, pattern)

    def texts(self, column: pa.Array) -> pa.Array:
        """string; null where `column` is null."""
        local, shifts = self._local(column)
        days = local if self._is_date else local // _US_OF_DAY
        made = self._whole(days, local, shifts)
        odd = (days < _FIRST) | (days > _LAST)
        if odd.any():
            made = self._far(made, np.flatnonzero(odd), days, local, shifts)
        return made if not column.null_count else pc.if_else(column.is_valid(), made, None)

    def of_one_width(self, column: pa.Array) -> tuple[Int64s, bytes] | None:
        """The microseconds of each row in local time, and two bytes for each byte of its text: a place in `_DIGITS`, or
        _LITERAL and the byte. None if a year has not four digits, or offsets differ."""
        local, shifts = self._local(column)
        if self._is_date:
            local = local * _US_OF_DAY
        if not len(local) or local.min() < _FIRST * _US_OF_DAY or local.max() >= (_LAST + 1) * _US_OF_DAY:
            return None
        shift = 0
        if shifts is not None:
            shift = int(shifts[0])
            if shifts.min() != shifts.max():
                return None
        made = bytearray()
        for part in self._parts:
            literal = _offset_text(shift, part.offset).encode() if part.offset else part.literal
            for byte in literal:
                made += bytes((_LITERAL, byte))
            if not literal:
                for place in range(part.begin, part.end):
                    made += bytes((place, 0))
        return local, bytes(made)

    def _local(self, column: pa.Array) -> tuple[Int64s, Int64s | None]:
        """Days or microseconds in local time, 1970 for null, and the seconds of their offsets."""
        utc = (
            column.cast(pa.int32()).cast(pa.int64())
            if self._is_date
            else column.cast(pa.timestamp("us", self._zone)).view(pa.int64())
        )
        numbers = utc.fill_null(0).to_numpy()
        if self._zone is None:
            return numbers, None
        local = local_micros(numbers, self._zone)
        return local, np.zeros_like(numbers) if local is numbers else (local - numbers) // 1_000_000

    def _whole(self, days: Int64s, local: Int64s, shifts: Int64s | None) -> pa.Array:
        if ((days < _FIRST) | (days > _LAST)).any():  # written by _far
            wrong = (days < _FIRST) | (days > _LAST)
            local = np.where(wrong, 0, local)
        digits = _digits(local, is_date=self._is_date)
        offset = next((part.offset for part in self._parts if part.offset), "")
        if not offset or shifts is None:
            return self._fixed(digits, "")
        distinct, codes = np.unique(shifts, return_inverse=True)
        offsets = [_offset_text(shift, offset) for shift in distinct.tolist()]
        if len(set(offsets)) <= 1:
            return self._fixed(digits, offsets[0] if offsets else "")
        return self._joined(digits, pa.array(offsets).take(pa.array(codes)))

    def _fixed(self, digits: Bytes, offset: str) -> pa.Array:
        """All texts have one width."""
        return _strings(_chosen(digits, self._parts, offset.encode()))

    def _joined(self, digits: Bytes, offsets: pa.Array) -> pa.Array:
        pieces: list[pa.Array] = []
        run: list[_Part] = []
        for part in self._parts:
            if part.offset:
                pieces += [_strings(_chosen(digits, run, b"")), offsets]
                run = []
            else:
                run.append(part)
        if run:
            pieces.append(_strings(_chosen(digits, run, b"")))
        return pc.binary_join_element_wise(*pieces, "")

    def _far(
        self, made: pa.Array, rows: npt.NDArray[np.intp], days: Int64s, local: Int64s, shifts: Int64s | None
    ) -> pa.Array:
        """Years before 0 and after 9999, one by one: few have them. Java writes them as -0001 and +10000."""
        texts = made.to_pylist()
        for row in rows.tolist():
            cycles = (int(days[row]) - 10_957) // _CYCLE  # from the year 2000 on
            unit = 1 if self._is_date else _US_OF_DAY
            digits = _digits(np.array([int(local[row]) - cycles * _CYCLE * unit]), is_date=self._is_date)
            year = int(bytes(digits[0, :4])) + 400 * cycles
            shown = f"+{year}" if year > 9999 else f"-{-year:04}" if year < 0 else f"{year:04}"
            texts[row] = "".join(
                shown
                if part.is_year
                else _offset_text(int(shifts[row]), part.offset)
                if part.offset and shifts is not None
                else (part.literal or bytes(digits[0, part.begin : part.end])).decode()
                for part in self._parts
            )
        return pa.array(texts, pa.string())

    def _parse(self, option: str, pattern: str) -> list[_Part]:
        sections: list[list[_Part] | None] = [[]]
        """Of the brackets that are open; None for one that has a part which the type does not have."""
        position = 0
        while position < len(pattern):
            match = _TOKEN.match(pattern, position)
            if match is None:
                raise ConfigError(f"Option '{option}': '{pattern[position:]}' cannot be written, in '{pattern}'")
            position = match.end()
            if match[3] == "[":
                sections.append([])
            elif match[3] == "]":
                if len(sections) == 1:
                    raise ConfigError(f"Option '{option}': a ] without [ in '{pattern}'")
                done = sections.pop()
                if sections[-1] is not None:
                    sections[-1] += done or []
            else:
                part = self._part(option, pattern, match)
                if part is None and len(sections) == 1:
                    kind = "dates" if self._is_date else "timestamps without a zone"
                    raise ConfigError(f"Option '{option}': {kind} have no '{match[0]}', in '{pattern}'")
                here = sections[-1]
                if part is None:
                    sections[-1] = None
                elif here is not None:
                    here.append(part)
        if len(sections) > 1:
            return [part for section in sections for part in section or ()]
        return sections[0] or []

    def _part(self, option: str, pattern: str, match: re.Match[str]) -> _Part | None:
        token = match[0]
        if match[4] is not None or token.startswith("'"):
            quoted = token[1:-1].replace("''", "'") or "'"
            return _Part(literal=(match[4] if match[4] is not None else quoted).encode())
        if token in _OFFSETS:
            return None if self._zone is None else _Part(offset=token)
        if token not in _DIGITS and token != "ss" and not (set(token) == {"S"} and len(token) <= 9):
            raise ConfigError(
                f"Option '{option}': '{token}' cannot be written, in '{pattern}': use yyyy, MM, dd, HH, mm, ss, S to "
                "SSSSSSSSS, X to XXXXX, x to xxxxx, text in quotes, and punctuation"
            )
        if self._is_date and token not in _DATE_PARTS:
            return None
        if token == "ss":
            return _Part(17, 19)
        if token[0] == "S":
            return _Part(20, 20 + len(token))
        return _Part(*_DIGITS[token], is_year=token == "yyyy")


def _digits(numbers: Int64s, *, is_date: bool) -> Bytes:
    """A row of `2026-11-26 12:30:05.123456000`, or its first 10 bytes, for each number of days or microseconds."""
    kind, width = (pa.date32(), 10) if is_date else (pa.timestamp("us"), 26)
    texts = (pa.array(numbers.astype(np.int32)) if is_date else pa.array(numbers)).view(kind).cast(pa.string())
    if not len(texts):
        return np.zeros((0, width), np.uint8)
    return np.frombuffer(texts.buffers()[2], np.uint8, len(texts) * width).reshape(len(texts), width)


def _chosen(digits: Bytes, parts: list[_Part], offset: bytes) -> Bytes:
    """The parts of each row, side by side."""
    blocks: list[Bytes] = []
    for part in parts:
        text = offset if part.offset else part.literal
        if text:
            blocks.append(np.broadcast_to(np.frombuffer(text, np.uint8), (len(digits), len(text))))
        elif part.end:
            blocks.append(digits[:, part.begin : part.end])
            if part.end > 26:  # nanoseconds
                blocks.append(np.full((len(digits), part.end - max(26, part.begin)), ord("0"), np.uint8))
    return np.hstack(blocks) if blocks else np.zeros((len(digits), 0), np.uint8)


def _strings(rows: Bytes) -> pa.Array:
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


def local_micros(utc: Int64s, zone: str) -> Int64s:
    """Microseconds of the local time in `zone`. Raises ConfigError for a zone that is not known here."""
    if zone in {"UTC", "Z", "GMT", "Etc/UTC"}:
        return utc
    if match := _FIXED.fullmatch(zone):
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        shift = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds) // _MICROSECOND
        return utc + (-shift if match[1] == "-" else shift)
    far = utc >= _ARROW_KNOWS
    near = np.clip(utc, _EARLIEST, _ARROW_KNOWS - 1)
    try:
        local = pc.local_timestamp(pa.array(near).view(pa.timestamp("us", zone)))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"the session's time zone '{zone}' is not known here ({error}): set spark.sql.session.timeZone to another "
            "name of it, or to an offset like +02:00"
        ) from None
    shifts: Int64s = local.view(pa.int64()).to_numpy() - near
    if far.any():
        shifts[far] = _far_shifts(utc[far], zone)
    return utc + shifts


def _far_shifts(utc: Int64s, zone: str) -> Int64s:
    """Microseconds to add in years of which Arrow knows no summer times: Python is asked, once for a quarter of an
    hour. Python's times end with 9999, and the rules are those of the same day some times 400 years earlier."""
    cycles = np.maximum(0, (utc - _LATE) // _CYCLE_US + 1)
    quarters, codes = np.unique((utc - cycles * _CYCLE_US) // _QUARTER_US, return_inverse=True)
    rules = ZoneInfo(zone)
    found = [
        dt.datetime.fromtimestamp(quarter * 900, rules).utcoffset() or dt.timedelta() for quarter in quarters.tolist()
    ]
    shifts: Int64s = np.array([shift // _MICROSECOND for shift in found], np.int64)[codes]
    return shifts


def _offset_text(seconds: int, style: str) -> str:
    """`XXX`: Z or +02:00; `XX`: Z or +0200; `X`: Z, +02 or +0230; `XXXX` and `XXXXX`: also with the seconds of old
    offsets, +005328 or +00:53:28, which the others cut off; with small letters +00:00 in place of Z."""
    colon, exact = ":" if len(style) in {3, 5} else "", len(style) > 3
    hours, minutes, rest = abs(seconds) // 3600, abs(seconds) // 60 % 60, abs(seconds) % 60
    if not hours and not minutes and not (exact and rest):
        return "Z" if style[0] == "X" else "+00" if len(style) == 1 else f"+00{colon}00"
    text = f"{'-' if seconds < 0 else '+'}{hours:02}"
    if len(style) > 1 or minutes:
        text += f"{colon}{minutes:02}"
    return f"{text}{colon}{rest:02}" if exact and rest else text


def cast_texts(column: pa.Array) -> pa.Array:
    """As Spark's cast to string: `2026-11-26 12:30:05.1`, without trailing zeros, in the zone of the column's type."""
    if pa.types.is_date(column.type):
        return TimePattern("", "yyyy-MM-dd", column.type).texts(column)
    texts = TimePattern("", "yyyy-MM-dd HH:mm:ss.SSSSSS", column.type).texts(column)
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
