"""The option `where`: what it lets pass, and what it refuses, naming the term."""

from __future__ import annotations

import contextlib
import operator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet, Where
from spark_connector.options.where import parse_where

EIGHT_MS = 1_795_593_600_000
EIGHT = "2026-11-25T08:00:00"
assert datetime.fromtimestamp(EIGHT_MS / 1000, UTC).isoformat() == f"{EIGHT}+00:00"


def from_(first: int) -> Intervals:
    return Intervals(((first, NO_END),))


def until(end: int) -> Intervals:
    return Intervals(((LOWEST, end),))


def keys(*of: bytes) -> KeySet:
    return KeySet(frozenset(of))


def test_nothing_is_said_without_it() -> None:
    assert parse_where(None) == Where()


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (f"timestamp >= '{EIGHT}Z'", Where(timestamps=from_(EIGHT_MS))),
        ("TIMESTAMP>='2026-11-25 09:00+01:00'", Where(timestamps=from_(EIGHT_MS))),
        ("timestamp < TIMESTAMP '2026-11-25 08:00:00 UTC'", Where(timestamps=until(EIGHT_MS))),
        (f"timestamp '{EIGHT}Z' <= timestamp", Where(timestamps=from_(EIGHT_MS))),
        (f"timestamp > '{EIGHT}.000001Z'", Where(timestamps=from_(EIGHT_MS + 1))),
        (f"timestamp <= '{EIGHT}.0009Z'", Where(timestamps=until(EIGHT_MS + 1))),
        (f"timestamp = '{EIGHT}.000001Z'", Where(timestamps=Intervals(()))),
        (f"timestamp <> '{EIGHT}.000001Z'", Where(timestamps=Intervals(((LOWEST, NO_END),)))),
        ("timestamp = '1969-12-31T23:59:59.999Z'", Where(timestamps=Intervals(((-1, 0),)))),
        (f"timestamp BETWEEN 5 AND {EIGHT_MS}", Where(timestamps=Intervals(((5, EIGHT_MS + 1),)))),
        ("offset >= 5 and offset < 9", Where(offsets=Intervals(((5, 9),)))),
        ("5 < `offset`", Where(offsets=from_(6))),
        ("offset != 5", Where(offsets=Intervals(((LOWEST, 5), (6, NO_END))))),
        (f"offset < {10**39}", Where(offsets=Intervals(((LOWEST, NO_END),)))),
        ("partition IN (3,0, 1)", Where(Intervals(((0, 2), (3, 4))), partition_terms="partition IN (3,0, 1)")),
        (
            "partition == +2 And key = 'a' AND 1 <= partition",
            Where(Intervals(((2, 3),)), keys=keys(b"a"), partition_terms="partition == +2 AND 1 <= partition"),
        ),
        ("key = 'user-42'", Where(keys=keys(b"user-42"))),
        ("'ü, and (OR' = key", Where(keys=keys("ü, and (OR".encode()))),
        ("key IN ('a', X'00fF', '')", Where(keys=keys(b"a", b"\0\xff", b""))),
        ("key LIKE 'anna%' AND key != 'annabel'", Where(keys=KeySet(None, b"anna", frozenset([b"annabel"])))),
        ("key LIKE 'anna'", Where(keys=keys(b"anna"))),
        ("key LIKE '%'", Where(keys=KeySet())),
        ("key = 'a' AND key = 'b'", Where(keys=keys())),
        ("((key = 'a') AND (((offset > 1)) AND offset < 3))", Where(offsets=Intervals(((2, 3),)), keys=keys(b"a"))),
    ],
)
def test_what_passes(text: str, meaning: Where) -> None:
    assert parse_where(text) == meaning


@pytest.mark.parametrize(
    ("text", "term", "why"),
    [
        ("key = 'a' OR key = 'b'", "key = 'a' OR key = 'b'", "goes on unexpectedly"),
        ("offset > 1 AND NOT key = 'b'", "NOT key = 'b'", ""),
        ("offset > 1 AND value = 'b' AND key = 'c'", "value = 'b'", ""),
        ("topic = 't'", "topic = 't'", ""),
        ("headers IS NOT NULL", "headers IS NOT NULL", "filterHeader"),
        ("key IS NULL", "key IS NULL", ""),
        ("lower(key) = 'b'", "lower(key) = 'b'", ""),
        ("offset + 1 > 5", "offset + 1 > 5", ""),
        ("offset > 1 + 1", "offset > 1 + 1", "goes on unexpectedly"),
        ("offset <=> 5", "offset <=> 5", "<=> is not one of"),
        ("offset = key", "offset = key", "compared with whole numbers"),
        ("offset", "offset", ""),
        ("offset >", "offset >", "whole numbers"),
        ("offset > 1.5", "offset > 1.5", "whole numbers"),
        ("offset > '5'", "offset > '5'", "whole numbers"),
        ("5 = 5", "5 = 5", ""),
        ("partition BETWEEN 1 OR 2 AND key = 'a'", "partition BETWEEN 1 OR 2 AND key = 'a'", "needs AND"),
        ("partition BETWEEN 1 AND x AND key = 'a'", "partition BETWEEN 1 AND x", "whole numbers"),
        ("partition IN 3", "partition IN 3", "list in parentheses"),
        ("partition IN ()", "partition IN ()", "whole numbers"),
        ("partition IN (1 2)", "partition IN (1 2)", "separated by commas"),
        ("partition NOT IN (1)", "partition NOT IN (1)", ""),
        ("key > 'a'", "key > 'a'", "compared by =, <>, IN, or LIKE"),
        ("key = 5", "key = 5", "'text' or bytes"),
        ("key = X'0'", "key = X'0'", "'text' or bytes"),
        ('key = "a"', 'key = "a"', "'text' or bytes"),
        (r"key = 'a\n'", r"key = 'a\n'", "backslash"),
        ("key = 'it''s'", "key = 'it''s'", "doubled quote"),
        ("key = 'a", "key = 'a", "'text' or bytes"),
        ("key LIKE 'a%b%'", "key LIKE 'a%b%'", "LIKE takes a prefix"),
        ("key LIKE 'a_%'", "key LIKE 'a_%'", "LIKE takes a prefix"),
        ("offset LIKE '1%'", "offset LIKE '1%'", ""),
        ("timestamp >= '2026-11-25 08:00'", "timestamp >= '2026-11-25 08:00'", "no offset from UTC"),
        ("timestamp >= '2026-11-25'", "timestamp >= '2026-11-25'", "no offset from UTC"),
        ("timestamp >= '2026-11-25 08:00 Europe/Berlin'", "Europe/Berlin'", "no offset from UTC"),
        ("timestamp >= '2026-11-25T08:00:00z'", "timestamp >= '2026-11-25T08:00:00z'", "no offset from UTC"),
        ("timestamp >= '2026-11-25T08:00+18:30'", "timestamp >= '2026-11-25T08:00+18:30'", "no offset from UTC"),
        ("key LIKE X'6125'", "key LIKE X'6125'", "LIKE takes a text"),
        ("timestamp >= 'now'", "timestamp >= 'now'", "is not a time like"),
        ("timestamp >= '2026-02-30T08:00Z'", "timestamp >= '2026-02-30T08:00Z'", "no time of the calendar"),
        ("timestamp >= current_timestamp()", "timestamp >= current_timestamp()", "is compared with"),
        ("timestamp >= 1795593600", "timestamp >= 1795593600", "looks like seconds"),
        ("timestamp >= 1795593600000000", "timestamp >= 1795593600000000", "after the year 9999"),
        ("(key = 'a'", "key = 'a'", "a parenthesis is not closed"),
        ("key = 'a')", "key = 'a')", "goes on unexpectedly"),
        ("key = 'a' AND", "key = 'a' AND", ""),
        ("AND key = 'a'", "AND key = 'a'", ""),
        ("key = 'a'; DROP", "key = 'a'; DROP", "goes on unexpectedly"),
        ("partition = 1 `and` offset = 2", "partition = 1 `and` offset = 2", "goes on unexpectedly"),
        ("", "", ""),
    ],
)
def test_anything_else_is_refused_and_the_term_is_named(text: str, term: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_where(text)
    said = str(refused.value)
    assert said.startswith("Option 'where' cannot use the term ")
    assert term in said.partition(". It takes comparisons")[0]
    assert why in said


@given(st.text(st.sampled_from("key offset='a%X0-:TZ(),<>!`\\\"and intbew2026\n."), max_size=40) | st.text(max_size=20))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_where(text) != Where()


def test_a_long_or_deep_condition_is_no_harder() -> None:
    deep = "(" * 50_000 + "key = 'a'" + ")" * 50_000
    assert parse_where(deep) == Where(keys=keys(b"a"))
    assert parse_where(" AND ".join(["offset <> 5"] * 20_000)).offsets == parse_where("offset != 5").offsets
    with pytest.raises(ConfigError, match=r"'where'") as refused:
        parse_where("key = '" + "''" * 50_000)
    assert len(str(refused.value)) < 1000


_COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_numbers = st.integers(-3, 12)


@given(st.lists(st.tuples(st.sampled_from(sorted(_COMPARE)), _numbers, st.booleans()), min_size=1, max_size=4))
def test_numbers_pass_as_python_compares_them(terms: list[tuple[str, int, bool]]) -> None:
    flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    texts = [f"{n} {flipped.get(op, op)} offset" if flip else f"offset {op} {n}" for op, n, flip in terms]
    made = parse_where(" AND ".join(texts)).offsets
    assert made is not None
    for number in range(-5, 15):
        assert (number in made) == all(_COMPARE[op](number, n) for op, n, _ in terms)


@given(st.integers(-(2 * 10**15), 7 * 10**15), st.integers(-14 * 60, 14 * 60))
def test_times_with_an_offset_are_the_moment_that_python_makes_of_them(us: int, minutes: int) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moment = (epoch + timedelta(microseconds=us)).astimezone(timezone(timedelta(minutes=minutes)))
    assert parse_where(f"timestamp >= '{moment.isoformat()}'").timestamps == from_(-(-us // 1000))
