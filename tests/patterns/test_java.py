"""Patterns of Java match what Java matches, or are refused: a table and random ones, judged by java.util.regex."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from broker.patterns.java import JavaPattern, UnsupportedPattern
from broker.security.principal_mapping import NoMatchingRule, PrincipalMapping
from tests.support.pattern_judge import JAVA, PatternJudge
from tests.support.randomness import seeded

ATOMS = r"""
a b Z 0 _ - . \. \- ^ $ \d \D \w \W \s \S \b \B \A \z \Z \G \h \v \R \X \N{DIGIT} \p{L} \p{Alpha} \pL \P{Lu} \1
\k<n> \E \Q.\E \Qa.b \Q\E \Q1\E \Q\\E \x61 \x6 \x{61} \x{1F4A5} \u0061 \ud83d \07 \012 \0101 \0777 \8 \c@ \cA \t
\n \r \f \a \e \y \é \_ \/ é ß ſ K É İ ı 💥 ² ٣ } ] { {2} {,2} & - # \# \x{110000} [a] [^a] [a-c] [^a-c] [a-]
[-a] [a-c-e] [] []a] [^]a] [^] [a [a[b]] [a&&b] [a&b] [\d] [\D] [^\D] [\w.-] [\w-a] [a-\d] [z-a] [\x61-\x63]
[\Qa-z\E] [.] [$] [^^] [a^] [-] [--a] [+--] [a\-z] [\]] [\[] [[:alpha:]] [\p{L}] [\h] [\v] [\s\S] [Z-a] [A-z]
[^\w] [é-í] [#-%] [|] [||] [~~] [é] [^É] [K] () (a) (?:a) (?i) (?i:aB) (?-i:a) (?s) (?s:.) (?m)^ (?m) (?x) (?u)
(?d) (?U) (?i-s) (?-) (?) (?is:a.) (?<n>a) (?<n1>b) (?P<n>a) (?'n'a) (?=a) (?!a) (?<=a) (?<!a) (?<=a|bc) (?<!a*)
(?>a) (?#c) ( ) (?i)[a-c] (?i)[^a] (?i)k (?i)s (?i)[k-s] (?i)[Z-a] (?i)é (?i)[é] (?i)ß (?i)[^\w] (?i)\w | ^* $?
(?=a)* (?!b).* a|b
""".split()
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{2,}", "{0,1}?"]
ODD_REPEATS = [
    "*+",
    "++",
    "?+",
    "**",
    "+*",
    "{2}+",
    "{2}{2}",
    "{,2}",
    "{2,1}",
    "{0}",
    "{a}",
    "{1",
    "{ 1}",
    "{99999999999}",
]
NAMES = ["", *"a A b B ab aB AB aa ba bc abc Z z 0 1 _ - . a.b a-b x.y k K s S é É ß ſ K ² ٣ & ] } # a&b".split()]
NAMES += [
    "a\n",
    "a\r\n",
    "\n",
    "\r",
    "a\x85",
    "a\u2028",
    "a\nb",
    " ",
    "\t",
    "\x0b",
    "💥",
    "CN=Ops,OU=x",
    "a\r",
    "\x1c",
    "İ",
    "ı",
]


def random_pattern(draw: random.Random, depth: int = 0) -> str:
    kind = draw.random()
    if depth > 3 or kind < 0.4:
        return draw.choice(ATOMS)
    one = random_pattern(draw, depth + 1)
    if kind < 0.65:
        return one + random_pattern(draw, depth + 1)
    if kind < 0.8:
        either = f"{one}|{random_pattern(draw, depth + 1)}"
        return draw.choice([either, f"({either})"])
    if kind < 0.93:
        return one + draw.choice(REPEATS if draw.random() < 0.8 else ODD_REPEATS)
    return draw.choice([f"({one})" + draw.choice(["", *REPEATS]), f"(?i:{one})"])


def compiled(pattern: str) -> JavaPattern | None:
    try:
        return JavaPattern(pattern)
    except UnsupportedPattern:
        return None


def compare(judge: PatternJudge, patterns: list[str]) -> int:
    taken = [pattern for pattern in patterns if compiled(pattern) is not None]
    for pattern, expected in zip(taken, judge.matches(JAVA, [(one, NAMES) for one in taken]), strict=True):
        found = [JavaPattern(pattern).fullmatch(name) is not None for name in NAMES]
        wrong = [name for name, one, other in zip(NAMES, found, expected or found, strict=True) if one != other]
        assert expected is not None, f"{pattern} is none of Java"
        assert not wrong, f"{pattern} {wrong}"
    return len(taken)


def table() -> Iterator[str]:
    yield from ATOMS
    yield from (one + repeat for one in ("a", "(a)") for repeat in [*REPEATS, *ODD_REPEATS])
    yield from (r"CN=(.*?),OU=\w+", r"^(?!__).*", r"orders\.(eu|us)-\d+", r".*[\-\.]internal", r"mm2.*\.internal")


def test_each_pattern_of_the_table_matches_as_in_java(pattern_judge: PatternJudge) -> None:
    assert compare(pattern_judge, list(table())) > 100


@pytest.mark.parametrize("seed", [1, 2])
def test_random_patterns_match_as_in_java(pattern_judge: PatternJudge, seed: int) -> None:
    draw = seeded(seed)
    assert compare(pattern_judge, [random_pattern(draw) for _ in range(1500)]) > 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_patterns_match_as_in_java(pattern_judge: PatternJudge, seed: int) -> None:
    draw = seeded(seed)
    compare(pattern_judge, [random_pattern(draw) for _ in range(5000)])


REFUSED = [
    r"\bx",
    r"\p{L}",
    r"(a)\1",
    "a++",
    "[a&&b]",
    "[a[b]]",
    "(?x)a",
    "(?P<n>a)",
    "a{,2}",
    r"\h",
    "(?m)^a",
    "a|*",
    "(",
    ")",
]


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_re_understands_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern, match="is not supported in a pattern"):
        JavaPattern(pattern)


RULES = [
    (r"^CN=(.*?),OU=(\w+).*$", "$1@$2"),
    (r"CN=(\w+).*", "$1"),
    (r"(\w*)", "<$1>"),
    (r"(?i)cn=([a-z]*).*", "$0-$1"),
    ("(a|b)*.*", "[$1]"),
    ("(?:(CN)|(OU))=(.*)", "$1$2$3$4"),
    (".*", "x"),
    ("(.*?)", r"\$1"),
    ("(?<who>.+)", "$12"),
]
SUBJECTS = ["CN=Ops,OU=x", "CN=Jürgen,OU=y", "CN=Ops,OU=é,C=DE", "cn=ab", "ab", "", "OU=q", "CN=a\nb", "CN=ops², OU=x"]


def test_a_user_is_the_one_that_kafka_makes_of_a_name(pattern_judge: PatternJudge) -> None:
    """Kafka replaces all matches, if the pattern matches the whole name."""
    whole = pattern_judge.matches(JAVA, [(pattern, SUBJECTS) for pattern, _ in RULES])
    expected = pattern_judge.replaced([(one, by.replace("$4", r"\$4"), SUBJECTS) for one, by in RULES])
    for (pattern, replacement), matches, users in zip(RULES, whole, expected, strict=True):
        for subject, does, user in zip(SUBJECTS, matches or [], users or [], strict=True):
            try:
                found: str | None = PrincipalMapping(f"RULE:{pattern}/{replacement}/").user_of(subject)
            except NoMatchingRule:
                found = None
            assert found == (user if does else None), (pattern, subject)
