"""Lists, patterns and black lists of topics."""

from __future__ import annotations

import pytest

from broker.client.topic_filter import TopicFilter
from broker.errors import ConfigError

EXISTING = ["a", "b1", "b2", "xb1"]


@pytest.mark.parametrize(
    ("topics", "pattern", "exclude", "meant"),
    [
        (["b1", "new", "b1"], None, None, ["b1", "new"]),
        (None, "b.", None, ["b1", "b2"]),
        (None, "b.", ".*2", ["b1"]),
        (None, None, "b.", ["a", "xb1"]),
        (["a", "b1"], None, "b1", ["a"]),
    ],
)
def test_what_is_meant(topics: list[str] | None, pattern: str | None, exclude: str | None, meant: list[str]) -> None:
    assert TopicFilter.parse(topics, pattern, exclude).of(EXISTING) == meant


@pytest.mark.parametrize(
    ("topics", "pattern", "exclude", "complaint"),
    [
        (None, None, None, "subscribe to topics, to a pattern, or"),
        (["a"], "a", None, "one of the two"),
        ("a", None, None, r"subscribe to a list of topics: \['a'\]"),
        (None, "(", None, r"the topic pattern '\(' is no regular expression"),
        (None, None, "[", r"the topic pattern '\[' is no regular expression"),
    ],
)
def test_what_cannot_be_meant(topics: object, pattern: str | None, exclude: str | None, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TopicFilter.parse(topics, pattern, exclude)  # type: ignore[arg-type]
