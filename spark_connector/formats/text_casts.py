"""Text to numbers, dates and times as Spark's from_json and from_csv parse it: whole columns, or one value at a time.

Called by json_decoder.py and csv_decoder.py. A column is parsed in the common notations only; for any other it raises
ArrowInvalid, and the values are parsed one by one. Both ways agree where both succeed. Times without a zone are UTC
(Spark: the session's zone), and years are 1 to 9999.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import re
from collections.abc import Callable
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.value_decoder import BadValue

_DAY = r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
_DATE = re.compile(_DAY + r"(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CLOCK = r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?\s*(.*))?"
_TIMESTAMP = re.compile(_DAY + _CLOCK + r")?)?", re.ASCII | re.DOTALL)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::(\d{2}))?", re.ASCII)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SPECIAL: Final = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF", "Inf", "+Inf"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF", "-Inf"), float("-inf")),
}
_INTEGER_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def cast_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast `texts` (string, null stays null) to `kind`. Raises ArrowInvalid if one is not in a common notation."""
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        lower = pc.utf8_lower(texts)
        if not pc.all(pc.is_in(lower, pa.array(["true", "false", None]))).as_py():
            raise pa.ArrowInvalid("neither true nor false")
        return pc.equal(lower, "true")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        # Arrow also accepts hexadecimal numbers, and infinities in other notations than Spark's.
        if pc.any(pc.match_substring_regex(texts, "[^0-9.eE+-]")).as_py():
            raise pa.ArrowInvalid("not a plain number")
        return texts.cast(kind)
    if pa.types.is_timestamp(kind):
        return _timestamps(texts, kind)
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return texts.cast(kind)
    raise pa.ArrowInvalid(f"{kind} is parsed one by one")


def _timestamps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pc.any(pc.starts_with(texts, "0000")).as_py():
        raise pa.ArrowInvalid("the year 0")
    if kind.tz is None:
        return texts.cast(kind)
    try:
        return texts.cast(kind)  # accepts only texts with a zone
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp("us")).cast(kind)


def parse_text(text: str, kind: pa.DataType) -> Any:
    """Parse one text to what pyarrow accepts as an element of `kind`. Raises BadValue."""
    for test, parse in _PARSERS:
        if test(kind):
            try:
                return parse(text, kind)
            except BadValue:
                raise
            except (ValueError, ArithmeticError, binascii.Error) as error:
                raise BadValue(f"{_short(text)!r} is not a valid {kind}: {error}") from None
    raise BadValue(f"{kind} cannot be read from text")


def fit_integer(number: int, kind: pa.DataType) -> int:
    """Raises BadValue if `number` does not fit into `kind`."""
    bound = 1 << (_INTEGER_BITS[kind] - 1)
    if not -bound <= number < bound:
        raise BadValue(f"{number if abs(number) < 1 << 80 else 'the number'} does not fit into {kind}")
    return number


def fit_float(number: float) -> float:
    """Raises BadValue for an integer too large for a double."""
    try:
        return float(number)
    except OverflowError:
        raise BadValue("the number does not fit into a double") from None


def fit_decimal(text: str, kind: pa.DataType) -> decimal.Decimal:
    """Round half up to the scale, like Spark. Raises BadValue if the precision is too small."""
    if not _NUMBER.fullmatch(text) or len(text) > 1000:
        raise BadValue(f"{_short(text)!r} is not a valid {kind}")
    number = decimal.Decimal(text)
    if number.adjusted() >= 40:
        raise BadValue(f"{_short(text)!r} does not fit into {kind}")
    with decimal.localcontext(decimal.Context(prec=1200, Emin=-99999, Emax=99999)):
        rounded = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), decimal.ROUND_HALF_UP)
    if rounded and rounded.adjusted() >= kind.precision - kind.scale:
        raise BadValue(f"{_short(text)!r} does not fit into {kind}")
    return rounded


def _boolean(text: str, _: pa.DataType) -> bool:
    if text.lower() not in {"true", "false"}:
        raise BadValue(f"{_short(text)!r} is neither true nor false")
    return text.lower() == "true"


def _integer(text: str, kind: pa.DataType) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise BadValue(f"{_short(text)!r} is not a valid {kind}")
    return fit_integer(int(text), kind)


def _floating(text: str, kind: pa.DataType) -> float:
    if text in _SPECIAL:
        return _SPECIAL[text]
    text = text.strip()
    if not _NUMBER.fullmatch(text.rstrip("dDfF")) or len(text) - len(text.rstrip("dDfF")) > 1:
        raise BadValue(f"{_short(text)!r} is not a valid {kind}")
    return float(text.rstrip("dDfF"))  # Java allows these suffixes


def _date(text: str, _: pa.DataType) -> dt.date:
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise BadValue(f"{_short(text)!r} is not a date")
    return dt.date(int(match[1]), int(match[2] or 1), int(match[3] or 1))


def _timestamp(text: str, kind: pa.DataType) -> int:
    """Microseconds since 1970."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise BadValue(f"{_short(text)!r} is not a timestamp")
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in match.groups()[:6])
    micros = int((match[7] or "")[:6].ljust(6, "0"))
    zone = match[8] or ""
    if zone and kind.tz is None:
        raise BadValue(f"{_short(text)!r} has a zone, which timestamp_ntz does not allow")
    moment = dt.datetime(year, month or 1, day or 1, hour, minute, second, micros, tzinfo=_zone(zone))
    return (moment - _EPOCH) // _MICROSECOND


def _zone(text: str) -> dt.tzinfo:
    if text in {"", "Z", "UTC", "GMT", "UT"}:
        return dt.UTC
    if match := _OFFSET.fullmatch(text):
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        if hours > 18 or minutes > 59 or seconds > 59:
            raise BadValue(f"{text!r} is not a time zone")
        offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return dt.timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(text)
    except (ValueError, OSError, KeyError):
        raise BadValue(f"{_short(text)!r} is not a time zone") from None


_PARSERS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType], Any]]]] = [
    (pa.types.is_string, lambda text, _: text),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, lambda text, kind: fit_decimal(text.replace(",", ""), kind)),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_binary, lambda text, _: base64.b64decode(text, validate=True)),
]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
