"""Kafka's rules for topic names."""

from __future__ import annotations

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_names import check_topic_name, colliding_topic


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "_", "__consumer_offsets", "a" * 249])
def test_legal_names_pass(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "must not be empty"),
        (".", "cannot be named '.'"),
        ("..", "cannot be named '..'"),
        ("a" * 250, "has 250 characters, at most 249"),
        ("a b", "has a character other than"),
        ("a/b", "has a character other than"),
        ("a\n", "has a character other than"),
        ("größe", "has a character other than"),
    ],
)
def test_illegal_names_are_refused_with_the_broken_rule(name: str, rule: str) -> None:
    with pytest.raises(BrokerError, match=rule) as refusal:
        check_topic_name(name)
    assert refusal.value.code is ErrorCode.invalid_topic_exception


def test_names_collide_when_they_differ_only_in_dot_and_underscore() -> None:
    assert colliding_topic("a.b", ["x", "a_b"]) == "a_b"
    assert colliding_topic("a_b.c", ["a.b_c"]) == "a.b_c"
    assert colliding_topic("a.b", ["a.b", "ab", "a-b"]) is None
    assert colliding_topic("ab", ["a.b"]) is None
