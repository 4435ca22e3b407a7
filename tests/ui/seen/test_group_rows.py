"""The rows of groups: badges, states, filters, whose they are; and who of a group is slow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.client.admin_types import GroupDescription, MemberDescription
from broker.client.cluster_metadata import Node
from broker.client.committed_offsets import CommittedOffset
from broker.client.group_descriptions import GroupLag
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.group_rows import GroupRow, choices, chosen, partition_rows, readers
from pykafka_ui.seen.history import Point
from pykafka_ui.seen.sampler import _with_lags
from pykafka_ui.seen.snapshot import Group, Partition, Snapshot, Topic

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def group(name: str = "g", state: str = "Stable", text: str = "", lag: int | None = 0, **known: str) -> Group:
    kinds = {"protocol_type": "consumer", "type": "classic", **known}
    lags = {} if lag is None else {T0: lag}
    return Group(name, state, kinds["protocol_type"], {T0: CommittedOffset(5, text)}, lags, kinds["type"])


def points(*values: float | None) -> list[Point]:
    return [(1_000 + 30 * number, value) for number, value in enumerate(values)]


LOAD = group("nightly", "Empty", "pykafka load nightly-000007-0123abcd", 9, protocol_type="", type="classic")
SINK = group("etl-sink.done", "Empty", "3 D 7 1/1 ", None, protocol_type="", type="classic")
STREAM = group("orders", "Empty", "pykafka stream", 9, protocol_type="", type="classic")
SHARE = group("workers", protocol_type="share", type="share")


@pytest.mark.parametrize(
    ("one", "badges"),
    [
        (group(), ["classic"]),
        (group(type="consumer"), ["consumer"]),
        (group(type=""), ["classic"]),  # a broker before Kafka 4.0 knows no other
        (group(protocol_type="connect"), ["classic", "connect"]),
        (SHARE, ["share"]),
        (LOAD, ["load"]),
        (STREAM, ["stream"]),
        (SINK, ["exactly-once write"]),
        (group(protocol_type="", type="classic"), ["offsets only"]),
    ],
)
def test_badges_tell_the_protocol_and_who_commits(one: Group, badges: list[str]) -> None:
    assert [word for word, _ in GroupRow(one).badges] == badges


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (group(), ("ok", "Stable")),
        (group(state="PreparingRebalance"), ("warn", "PreparingRebalance")),
        (group(state="Reconciling"), ("warn", "Reconciling")),
        (group(state="Dead"), ("bad", "Dead")),
        (group(state=""), ("unknown", "not told")),
        (group(state="Empty", lag=0), ("ok", "Empty")),
        (group(state="Empty", lag=1), ("warn", "Empty")),
        (group(state="Empty", lag=None), ("unknown", "Empty")),
        (LOAD, ("ok", "no members")),  # it never has any
    ],
)
def test_a_group_without_members_is_at_fault_only_if_there_is_something_to_read(
    one: Group, state: tuple[str, str]
) -> None:
    assert GroupRow(one).state == state


def test_loads_and_sinks_are_folded_under_what_they_belong_to() -> None:
    rows = [GroupRow(one) for one in (LOAD, SINK, STREAM, SHARE)]
    assert [(row.is_folded, row.belongs_to) for row in rows] == [
        (True, "the loads of nightly"),
        (True, "the sink etl-sink"),
        (False, ""),
        (False, ""),
    ]


def test_filters_find_as_many_as_they_say() -> None:
    rows = [
        GroupRow(group("grows", lag=4), points(1, 2, 3, 4, 5, 6)),
        GroupRow(group("behind", lag=4), points(4, 4, 4, 4, 4, 4)),
        GroupRow(group("unknown", "Empty", lag=None)),
        GroupRow(group("done"), points(6, 5, 4, 3, 2, 0)),
        GroupRow(SINK),
    ]
    found = {name: count for name, _, count in choices(rows, "")}
    assert found == {"growing": 1, "behind": 2, "unknown": 1, "empty": 2, "own": 1}
    for name, count in found.items():
        assert len(chosen(rows, name)) == count
    assert [row.group.id for row in chosen(rows, "behind")] == ["grows", "behind"]
    assert [row.group.id for row in chosen(rows, "stable")] == ["grows", "behind", "done"]
    assert choices(rows, "Stable")[0] == ("Stable", "Stable", 3)
    assert choices(rows[3:4], "growing") == [("growing", "lag grows", 0)], "it stays to be seen"


def test_the_slowest_member_comes_first_and_what_is_not_known_is_no_zero() -> None:
    def member(name: str, *tps: TopicPartition) -> MemberDescription:
        return MemberDescription(name, None, name, "host", tps)

    lags = {
        ("lag", T0): points(1, 1, 1, 2, 3, 30),
        ("read", T0): points(0, 30, 60, 90),
        ("read", T1): points(0, 0, 300, 900),
    }
    one = Group(
        "g",
        "Stable",
        "consumer",
        {T0: CommittedOffset(90, ""), T1: CommittedOffset(900, "")},
        {T0: 30, T1: 10},
        assigned=frozenset({T0, T1, T2}),
    )
    seen = Snapshot(1, topics={"t": Topic("t", False, tuple(Partition(n, 1, (1,), (1,), 0, 910) for n in range(3)))})
    about = GroupDescription(
        "g", "Stable", "consumer", "range", Node(1, "h", 1), (member("b", T1), member("a", T0), member("c", T2))
    )
    rows = partition_rows(one, about, seen, lambda kind, _, tp: lags.get((kind, tp), []))
    assert [(row.tp, row.behind, row.grows, row.read) for row in rows] == [
        (T0, 30, True, 1.0),
        (T1, 10, None, 10.0),
        (T2, None, None, None),
    ]
    found = readers(about, rows)
    assert [(row.member.client_id, row.behind, row.read, row.growing, row.share) for row in found] == [
        ("a", GroupLag(30, 0, 0), 1.0, 1, 0.75),
        ("b", GroupLag(10, 0, 0), 10.0, 0, 0.25),
        ("c", GroupLag(None, None, 1), None, 0, 0.0),
    ]


def test_only_an_end_that_is_newer_than_the_offset_tells_that_it_lies_beyond() -> None:
    """A reader that goes on commits further than the end that was asked for before."""
    one = Group("g", "Empty", "consumer", {T0: CommittedOffset(90, "")})
    seen = Snapshot(1, topics={"t": Topic("t", False, (Partition(0, 1, (1,), (1,), 0, 40),))})

    def beyond(of: Group, newer: dict[TopicPartition, int] | None = None) -> Group:
        return _with_lags({"g": of}, seen.partitions, newer)["g"]

    assert beyond(one).beyond == frozenset()
    found = beyond(one, {T0: 40})
    assert found.beyond == frozenset({T0})
    assert GroupRow(found).state == ("bad", "beyond the end")
    assert beyond(found).beyond == {T0}, "until a newer end or offset says otherwise"
    assert beyond(replace(found, offsets={T0: CommittedOffset(40, "")})).beyond == frozenset()
    (row,) = partition_rows(found, None, seen, lambda *_: [])
    assert (row.is_beyond, row.lag) == (True, 0)
