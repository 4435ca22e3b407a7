"""Numbers of the list of topics: gaps stay gaps, and what is not known is never the least of what is."""

from __future__ import annotations

from broker.client.committed_offsets import CommittedOffset
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.pages.topic_pages import badges, reading_of, shares
from pykafka_ui.seen.snapshot import Group, Partition, Snapshot, Topic

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def group(name: str, lags: dict[TopicPartition, int]) -> Group:
    """One that has committed in both partitions."""
    return Group(name, "Stable", "consumer", dict.fromkeys((FIRST, SECOND), CommittedOffset(0, "")), lags)


def seen(*groups: Group) -> Snapshot:
    return Snapshot(1, groups={one.id: one for one in groups})


def test_the_slowest_group_is_the_one_that_may_be_furthest_behind() -> None:
    near, far = group("near", {FIRST: 1, SECOND: 2}), group("far", {FIRST: 5, SECOND: 5})
    half = group("half", {FIRST: 1})
    found = reading_of(seen(near, far), "t")
    assert (found.groups, found.slowest, found.lag) == (2, "far", 10)
    found = reading_of(seen(near, far, half), "t")
    assert (found.groups, found.slowest, found.lag) == (3, "half", None), "one of its lags is not known"
    assert reading_of(seen(), "t").behind is None


def test_what_is_archived_is_a_part_of_a_bar_only_where_both_are_known() -> None:
    assert [(name, share) for name, share, _ in shares(1024, 3072)] == [("local", 0.25), ("archived", 0.75)]
    assert shares(-1, 10) == shares(10, None) == shares(10, 0) == []


def test_kinds_are_told_as_far_as_they_are_known() -> None:
    topic = Topic("t", True, (Partition(0, 1, (1,), (1,), archived=7),))
    settings = {"cleanup.policy": "delete,compact"}
    assert [word for word, _ in badges(topic, settings)] == ["internal", "compacted", "archived"]
    assert badges(Topic("t", False, ()), {}) == []
