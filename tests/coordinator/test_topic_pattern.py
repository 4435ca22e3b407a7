"""Patterns of subscriptions: they match as Python's `re`, refuse what RE2 lacks, and never take long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator import topic_pattern
from broker.coordinator.topic_pattern import TopicPattern
from broker.errors import BrokerError, ErrorCode

ATOMS = st.sampled_from(["a", "b", ".", "-", "[ab]", "[^a-c]", r"\d", r"\w", r"\.", "^", "$", "(?i:B)", "_", "[_0-9]"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "*?"])).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("abcB._-1", max_size=5))
def test_a_pattern_matches_whole_names_as_re_does(pattern: str, name: str) -> None:
    assert TopicPattern(pattern).matches(name) is (re.fullmatch(pattern, name) is not None)


def test_internal_topics_never_match() -> None:
    topics = ["ev-a", "ev-b", "EV-c", "other", "__consumer_offsets", "my-ev-a"]
    assert TopicPattern("(^ev-.*)").matching(topics) == {"ev-a", "ev-b"}
    assert TopicPattern("(?i)EV.*").matching(topics) == {"ev-a", "ev-b", "EV-c"}
    assert TopicPattern(".*").matching(topics) == {"ev-a", "ev-b", "EV-c", "other", "my-ev-a"}


NAMES = ["ab", "AZ", "12", "1-2", "ä", "x_1", "_.", "ev-a1", "ev.", "a]1", "al:pha", "]a", "[", "a", ":"]
CLASSES = {
    "[[:alpha:]]+": {"ab", "AZ", "a"},
    "[[:^alpha:]]+": {"12", "1-2", "ä", "_.", "[", ":"},
    "[x[:digit:]_]+": {"12", "x_1"},
    "[^[:alpha:]1-9-]+": {"ä", "_.", "[", ":"},
    "ev[[:punct:]][[:word:]]*": {"ev-a1", "ev."},
    r"[a\][:digit:]]+": {"12", "a]1", "]a", "a"},
    "[:alpha:]+": {"al:pha", "a", ":"},
    "[]a]+": {"]a", "a"},
    "[a[]": {"[", "a"},
}


@pytest.mark.parametrize("pattern", CLASSES)
def test_classes_in_brackets_are_those_of_re2(pattern: str) -> None:
    assert TopicPattern(pattern).matching(NAMES) == CLASSES[pattern]


NOT_IN_RE2 = [
    "(",
    "[",
    "*a",
    "(?=a)b",
    "(?<!a)b",
    r"(a)\1",
    r"\b",
    r"a(\b)*",
    "(?P<n>a)(?P=n)",
    "a++",
    r"\p",
    "[[:no:]]",
]


@pytest.mark.parametrize("pattern", NOT_IN_RE2)
def test_what_re2_does_not_have_is_refused(pattern: str) -> None:
    with pytest.raises(BrokerError, match="is not a valid pattern") as refused:
        TopicPattern(pattern)
    assert refused.value.code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(.*a){12}b", "((a*)*)*b"])
def test_a_pattern_that_re_cannot_finish_ends_soon(pattern: str) -> None:
    found: object
    try:
        found = TopicPattern(pattern).matching(["a" * 249])
    except BrokerError as error:
        found = error.code
    assert found in (frozenset(), ErrorCode.invalid_regular_expression)


def test_a_pattern_of_too_many_steps_for_all_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_pattern, "MAX_STEPS_OF_ALL", 1_000)
    pattern, topics = TopicPattern("ev-.*"), [f"ev-{number}" for number in range(20)]
    assert pattern.matching(topics) == frozenset(topics)
    with pytest.raises(BrokerError, match="with all topics"):
        pattern.matching(["ev-" + "x" * 200] * 20)


LARGE_CLASS = "[" + "".join(map(chr, range(0x4E00, 0x9000, 2))) + "a]*"


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "(?:){4000000000}", "(?:(?:){60000}){60000}", LARGE_CLASS])
def test_a_pattern_of_too_many_steps_is_refused(pattern: str) -> None:
    with pytest.raises(BrokerError, match="too many steps"):
        TopicPattern(pattern).matching(["a" * 249])
