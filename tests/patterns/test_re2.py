"""Patterns of the protocol are those of RE2/J: a table and random ones, judged by RE2/J among Spark's jars."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.patterns import re2
from broker.patterns.re2 import InvalidPattern, Re2Pattern
from tests.support.pattern_judge import PatternJudge, re2j
from tests.support.randomness import seeded

ATOMS = r"""
a b z A Z 0 9 _ - . \. \- ^ $ \d \D \w \W \s \S \b \B \A \z \Z \pL \PL \p{L} \p{Lu} \p{Greek} \pN \p{Nd} \p{^L}
\p{Han} \p \p{No} \C \Q.\E \Qa \Qa* \E \Q\E \Q\\E a\Qb+\E \x61 \x{70} \x{0070} \x{110000} \x1 \x \07 \1 \8 \0 \012
\101 \u0061 \h \v \R \X \N \G \K \e \a \f \n \r \t \cA \k<n> \/ \_ \: \! \@ \# \é é ß ſ K 💥 { } {a} {, {? {* { {2} ]
[\é] [(?<n>] [{*] [a] [^a] [a-c] [^a-c] [a-] [-a] [a-c-e] [] []a] [^]a] [^] [a [[:alpha:]] [[:^alpha:]] [[:word:]]
[[:foo:]] [[:alpha] [:alpha:] [\d] [\D] [^\D] [\w.-] [\pL] [\p{Lu}_] [^\pL] [\Qa-z\E] [a\Q] [a-\d] [\d-a] [a&&b]
[a[b]] [z-a] [\x61-\x{63}] [\b] [^\w] [.] [$] [^^] [-] [--a] [+--] [a\-z] [\]] [[] [\[] () (a) (?:a) (?i) (?i:A)
(?s) (?m) (?U) (?x) (?u) (?d) (?-i) (?i-s) (?is) (?i-i) (?-) (?) (?i)a (?i-:a) (?U)a+ (?P<n>a) (?P<n>b) (?'n'a)
(?P=n) (?P>n) (?=a) (?!a) (?<=a) (?<!a) (?>a) (?#c) (?|a) ( ) (?P<n) (?P<>a) (?P<n-1>a) (?P<1>a) (?i)[^i] (?i)[a-c]
(?i)k (?i)s (?i)ß (?i)[[:upper:]] (?i)\pL (?i)\p{Lu} (?i)[k-s] (?m)^ (?m)$ ^* $* \b* (?:)* (?i)* ()* | a)|(b
""".split()
PARTS = [atom for atom in ATOMS if "\\Q" not in atom]  # RE2/J of Spark's jars repeats all that was quoted
REPEATS = ["*", "+", "?", "*?", "+?", "??"]
ODD_REPEATS = (
    "** ++ ?+ *+ +* {2} {2,} {1,2} {,2} {2,1} {0} {1000} {1001} {2}? {2}+ {2}{2} {2}{3} { {a} {1 {1,} {1,1001} {01} "
    "{99999999999} {0,99999999999}"
).split()
NAMES = ["", *"a A b p I _ - . 0 9 k K s S z aa ab abc aA bb aab 1a kK b+ ab+ a* a.b a-b x.y p-1 Zz.0 Ab-Z_9".split()]
NAMES += ["internal-x"]


def random_pattern(draw: random.Random, depth: int = 0) -> str:
    kind = draw.random()
    if depth > 3 or kind < 0.4:
        return draw.choice(PARTS)
    one = random_pattern(draw, depth + 1)
    if kind < 0.65:
        return one + random_pattern(draw, depth + 1)
    if kind < 0.8:
        either = f"{one}|{random_pattern(draw, depth + 1)}"
        return draw.choice([either, f"({either})"])
    if kind < 0.93:
        return one + draw.choice(REPEATS if draw.random() < 0.6 else ODD_REPEATS)
    return draw.choice([f"(?:{one})" + draw.choice(["", *REPEATS]), f"(?i:{one})"])


def table() -> Iterator[str]:
    yield from ATOMS
    yield from (one + repeat for one in ("a", "(a)") for repeat in [*REPEATS, *ODD_REPEATS])
    yield from (
        r"(?i)[^i].*nal-x",
        r"\Qa.b\E",
        r"(^p-.*)",
        r"\bp\b.*",
        r"p-\d+|x\.y",
        "(?i)IN.*-.",
        "[[:lower:]]+-x",
    )


def ours(pattern: str) -> list[bool] | None:
    try:
        return list(Re2Pattern(pattern).matching(NAMES))
    except InvalidPattern as error:
        return None if "too large" not in str(error) else []


def compare(judge: PatternJudge, patterns: list[str]) -> int:
    theirs = judge.matches(re2j(), [(pattern, NAMES) for pattern in patterns])
    for pattern, expected in zip(patterns, theirs, strict=True):
        found = ours(pattern)
        assert found == expected or (found == [] and expected is not None), f"{pattern}: {found} and not {expected}"
    return sum(expected is not None for expected in theirs)


def test_each_pattern_of_the_table_is_that_of_re2j(pattern_judge: PatternJudge) -> None:
    assert compare(pattern_judge, list(table())) > 120


@pytest.mark.parametrize("seed", [1, 2])
def test_random_patterns_are_those_of_re2j(pattern_judge: PatternJudge, seed: int) -> None:
    draw = seeded(seed)
    assert compare(pattern_judge, [random_pattern(draw) for _ in range(700)]) > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_patterns_are_those_of_re2j(pattern_judge: PatternJudge, seed: int) -> None:
    draw = seeded(seed)
    compare(pattern_judge, [random_pattern(draw) for _ in range(5000)])


def test_what_newer_re2j_takes_is_taken() -> None:
    """RE2/J 1.8, which is Kafka's; that of Spark's jars is older."""
    assert ours("(?<name>a)|(?<other>b)") == [name in ("a", "b") for name in NAMES]
    assert ours(r"a\Qb+\E*") == [name in ("ab", "ab+") for name in NAMES]


def test_a_pattern_in_the_last_quotes_does_not_quote_what_stands_behind_it() -> None:
    assert list(Re2Pattern(r"\Qa|b").matching(["a|b", "a", "b"])) == [True, False, False]


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(.*a){12}b", "((a*)*)*b"])
def test_a_pattern_that_re_cannot_finish_ends_soon(pattern: str) -> None:
    assert not any(Re2Pattern(pattern).matching(["a" * 249] * 10))


@pytest.mark.parametrize("pattern", ["[" * 4000, "[" + "[:a" * 1300, r"[\[" * 1300, "[^" * 2000])
def test_a_pattern_of_many_brackets_is_read_once(pattern: str) -> None:
    """Python reads it, with the interpreter's lock, before RE2 does."""
    with pytest.raises(InvalidPattern, match="missing closing"):
        Re2Pattern(pattern)


@pytest.mark.parametrize(
    "costly",
    [
        "(a*)*" * 6500,
        "(.|a+" * 5000 + ")" * 5000,
        r"\pL" * 1365,
        r"\PL?" * 1000,
        "a{0,9}" * 680,
        "a?" * 2048,
        "(?:.{0,31}){0,31}" * 240,
        r"\pL{1000}",
    ],
)
def test_a_costly_pattern_is_read_or_refused_soon(costly: str) -> None:
    """RE2 reads it with the interpreter's lock: the broker answers nobody meanwhile."""
    with suppress(InvalidPattern):
        Re2Pattern(costly)  # what is loaded once
    began = time.thread_time()
    with suppress(InvalidPattern):
        Re2Pattern(costly)
    assert time.thread_time() - began < 0.5


@pytest.mark.parametrize(
    ("pattern", "told"),
    [("a?" * 2049, "longer than 4096 bytes"), ("a" * 32769, "than 32768"), (r"\pL{1000}", "too large")],
)
def test_a_pattern_that_would_hold_the_broker_is_refused(pattern: str, told: str) -> None:
    with pytest.raises(InvalidPattern, match=told):
        Re2Pattern(pattern)


def test_many_names_are_a_pattern() -> None:
    names = [f"(?:team-{number}\\.orders.+)" for number in range(1200)]
    assert list(Re2Pattern("|".join(names)).matching(["team-17.orders.x", "team-17.orders"])) == [True, False]


def test_a_refusal_is_told_to_the_client_only(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPattern, match=r"missing \)"):
        Re2Pattern("(a")
    assert capfd.readouterr().err == ""


def test_matches_that_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(re2, "MAX_SECONDS", 2.5)
    ticks = itertools.count()
    with pytest.raises(InvalidPattern, match="take longer than"):
        list(Re2Pattern("a").matching(["a"] * 1000, clock=lambda: next(ticks)))
    assert len(list(Re2Pattern("a").matching(["a"] * 200, clock=lambda: next(ticks)))) == 200
