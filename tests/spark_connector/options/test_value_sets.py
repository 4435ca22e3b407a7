"""Sets of numbers and keys: what may be written, and that `&` is what both hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet, parse_bytes, parse_intervals

numbers = st.integers(-4, 40)
keys = st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"\xff"])
some_keys = st.frozensets(keys, max_size=4)
key_sets = st.builds(KeySet, st.none() | some_keys, keys, some_keys)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("3", ((3, 4),)),
        ("0,2-5", ((0, 1), (2, 6))),
        (" 5 - 7 , 1", ((1, 2), (5, 8))),
        ("0-3,2-9,10", ((0, 11),)),
        ("100-", ((100, NO_END),)),
        ("-4", ((0, 5),)),
        ("0", ((0, 1),)),
    ],
)
def test_intervals(text: str, parts: tuple[tuple[int, int], ...]) -> None:
    assert parse_intervals("filterOffsets", text, "1-2") == Intervals(parts)


@pytest.mark.parametrize("text", ["", "-", "a", "1-2-3", "1,,2", "1;2", "0x3", "٣", "9" * 19, None, 5, ["1"]])
def test_what_is_no_interval_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"Option 'filterOffsets': Expected e.g. 1-2, got"):
        parse_intervals("filterOffsets", text, "1-2")


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1), st.integers(-2, 35), st.integers(-2, 35)
)
def test_a_cut_holds_what_is_in_both(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    wanted = parse_intervals("o", ",".join(f"{min(pair)}-{max(pair)}" for pair in pairs), "")
    named = {n for pair in pairs for n in range(min(pair), max(pair) + 1)}
    assert {n for n in range(-3, 40) if n in wanted} == named
    cut = wanted.cut(start, end)
    assert [n for first, until in cut for n in range(first, until)] == sorted(named & set(range(start, end)))
    assert all(first < until for first, until in cut)


@given(st.lists(st.tuples(numbers, numbers)), st.lists(st.tuples(numbers, numbers)))
def test_what_is_in_both_intervals(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    both = Intervals.of(left) & Intervals.of(right)
    inside = [n for n in range(-5, 45) if all(any(a <= n < b for a, b in parts) for parts in (left, right))]
    assert [n for n in range(-5, 45) if n in both] == inside
    assert both == Intervals.of(both.parts), "sorted, disjoint, without empty parts"
    assert both.bounds == ((inside[0], inside[-1] + 1) if inside else (0, 0))


def test_no_number_is_beyond_the_bounds() -> None:
    assert Intervals.of([(-(2**70), 2**70)]) == Intervals(((LOWEST, NO_END),))


@given(key_sets, key_sets, keys)
def test_what_is_in_both_key_sets(left: KeySet, right: KeySet, key: bytes) -> None:
    both = left & right
    assert (key in both) == (key in left and key in right)
    assert both.any is None or all(one in both for one in both.any), "planning may ask for each of them"
    assert None not in both


def test_bytes_are_text_or_hexadecimal() -> None:
    assert [parse_bytes(text) for text in ("ä", "X'00fF'", "x''", "X'0'")] == ["ä".encode(), b"\0\xff", b"", b"X'0'"]
