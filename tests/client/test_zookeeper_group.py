"""What members of a ZooKeeper group write, and how each works out its share."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.topic_filter import TopicFilter
from broker.client.zookeeper_group import decode_threads, encode_subscription, owned_by, thread_of
from broker.errors import ConfigError, ProtocolError
from broker.protocol.topic_partition import TopicPartition as Tp

COUNTS = {"a": 3, "b": 2}


def subscription(topics: list[str] | None = None, pattern: str | None = None, exclude: str | None = None) -> bytes:
    return encode_subscription(TopicFilter.parse(topics, pattern, exclude), 7)


def test_the_format_is_kafkas() -> None:
    assert json.loads(subscription(["a", "b"])) == {
        "version": 1,
        "subscription": {"a": 1, "b": 1},
        "pattern": "static",
        "timestamp": "7",
    }
    assert json.loads(subscription(pattern="a.*"))["pattern"] == "white_list"
    assert json.loads(subscription(exclude="a.*"))["pattern"] == "black_list"
    with pytest.raises(ConfigError, match="not both"):
        subscription(pattern="a", exclude="b")


@pytest.mark.parametrize(
    ("data", "threads"),
    [
        (subscription(["a", "new"]), {"c-0": ["a", "new"]}),
        (subscription(pattern="a|b"), {"c-0": ["a", "b"]}),
        (subscription(exclude="a"), {"c-0": ["b"]}),
        (b'{"version":1,"subscription":{"a":2,"b":1}}', {"c-0": ["a", "b"], "c-1": ["a"]}),
    ],
)
def test_topics_and_threads_are_read(data: bytes, threads: dict[str, list[str]]) -> None:
    assert decode_threads("c", data, COUNTS) == threads


@pytest.mark.parametrize("junk", [b"", b"[]", b"{}", b'{"subscription":{"a":"x"}}', b'{"subscription":3}', b"\xff"])
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(ProtocolError, match="the subscription of consumer 'c' cannot be read"):
        decode_threads("c", junk, COUNTS)


def test_shares_are_ranges_over_the_sorted_threads() -> None:
    members = {"c2": subscription(["a", "b"]), "c1": b'{"subscription":{"a":2}}'}
    assert owned_by("c1", members, COUNTS) == [Tp("a", 0)]
    assert owned_by("c2", members, COUNTS) == [Tp("a", 2), Tp("b", 0), Tp("b", 1)]
    assert owned_by("c3", members, COUNTS) == []


@given(
    st.dictionaries(st.text("abc-", min_size=1, max_size=3), st.sets(st.sampled_from("ab"), min_size=1), max_size=5),
    st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.integers(0, 9)}),
)
def test_all_members_agree_and_every_partition_has_one_owner(
    wanted: dict[str, set[str]], counts: dict[str, int]
) -> None:
    members = {name: subscription(sorted(topics)) for name, topics in wanted.items()}
    shares = Counter(tp for name in members for tp in owned_by(name, members, counts))
    every = {Tp(topic, n) for topic in set().union(*wanted.values()) for n in range(counts[topic])} if wanted else set()
    assert shares == Counter(every)


def test_a_thread_is_named_after_its_member() -> None:
    assert thread_of("g_host-1") == "g_host-1-0"
