"""Patterns of subscriptions: what they refuse and which topics they leave out. tests/patterns has their language."""

from __future__ import annotations

import pytest

from broker.coordinator.topic_pattern import TopicPattern
from broker.errors import BrokerError, ErrorCode
from broker.patterns import re2

TOPICS = ["internal-x", "external-x", "ev-a", "ev-b", "EV-c", "p.q", "pxq", "__consumer_offsets", "my-ev-a"]
FOUND = {
    "(^ev-.*)": {"ev-a", "ev-b"},
    "(?i)EV.*": {"ev-a", "ev-b", "EV-c"},
    ".*": set(TOPICS) - {"__consumer_offsets"},
    "(?i)[^i].*nal-x": {"external-x"},
    r"\Qp.q\E": {"p.q"},
    r".*\bev\b.*": {"ev-a", "ev-b", "my-ev-a"},
    r"\pL+-a\z": {"ev-a"},
    r"\x{70}.*": {"p.q", "pxq"},
    "(?U)ev-.+": {"ev-a", "ev-b"},
    "[[:upper:]]+-c": {"EV-c"},
}


@pytest.mark.parametrize("pattern", FOUND)
def test_a_pattern_of_re2_matches_whole_names_but_no_internal_topic(pattern: str) -> None:
    assert TopicPattern(pattern).matching(TOPICS) == FOUND[pattern]


@pytest.mark.parametrize(
    "pattern", ["(", "a)|(b", "*a", "(?=a)b", r"(a)\1", "a++", r"\p", "[[:no:]]", "a{1001}", "(?x)a"]
)
def test_what_re2_does_not_have_is_refused(pattern: str) -> None:
    with pytest.raises(BrokerError, match="is not a valid pattern") as refused:
        TopicPattern(pattern)
    assert refused.value.code is ErrorCode.invalid_regular_expression


def test_a_pattern_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(re2, "MAX_SECONDS", -1)
    with pytest.raises(BrokerError, match="take longer") as refused:
        TopicPattern("ev-.*").matching(TOPICS)
    assert refused.value.code is ErrorCode.invalid_regular_expression
