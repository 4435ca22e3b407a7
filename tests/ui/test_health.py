"""What the overview says of a cluster: what is wrong, worst first, and never that what nobody could see is well."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.client.admin_types import LogDir
from broker.client.cluster_metadata import Node
from broker.client.committed_offsets import CommittedOffset
from broker.errors import BrokerError, ErrorCode
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.health import Finding, Health, health_of
from pykafka_ui.seen.history import Point
from pykafka_ui.seen.snapshot import Group, Partition, Snapshot, Topic

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0
TP = TopicPartition("flights", 0)


def topic(*partitions: Partition, name: str = "flights") -> Topic:
    return Topic(name, False, partitions)


def seen(**changes: object) -> Snapshot:
    """Of three brokers that have nothing to complain of, but for `changes`."""
    known: dict[str, object] = {
        "at_ms": 1,
        "controller": 1,
        "brokers": tuple(Node(id_, "host", 9092) for id_ in (1, 2, 3)),
        "topics": {"flights": topic(Partition(0, 1, (1, 2), (1, 2), 0, 10, 100))},
        "disks": tuple(LogDir(id_, "/data", None, 1000, 500, {}) for id_ in (1, 2, 3)),
    }
    return Snapshot(**{**known, **changes})  # type: ignore[arg-type]


def told(snapshot: Snapshot, lags: Sequence[float | None] = (), others: Sequence[Finding] = ()) -> Health:
    points: list[Point] = [(NOW_S + 30 * at, lag) for at, lag in enumerate(lags)]
    return health_of(snapshot, lambda group: points, NOW_S, others)


def group(lag: int | None, **more: object) -> dict[str, Group]:
    lags = {} if lag is None else {TP: lag}
    return {"g&b": Group("g&b", "Stable", "consumer", {TP: CommittedOffset(1, "")}, lags, members=1, **more)}  # type: ignore[arg-type]


def test_all_is_well_says_what_was_looked_at() -> None:
    found = told(seen())
    assert (found.kind, found.word, found.findings) == ("ok", "All is well", [])
    assert found.looked_at == ["3 brokers", "1 partition", "3 data directories"]


OFFLINE = LogDir(2, "/b", BrokerError(ErrorCode.kafka_storage_error, "it is offline"), -1, -1, {})
CASES = {
    "nothing was seen": (Snapshot(), "unknown", "Nothing was seen", "/"),
    "no answer at all": (Snapshot(error="away"), "bad", "does not answer. away", "/"),
    "no answer now": (seen(error="away"), "bad", "what follows is what it said last. away", "/"),
    "no controller": (seen(controller=-1), "bad", "no controller", "/brokers"),
    "a broker away": (
        seen(brokers=(Node(1, "host", 9092),)),
        "bad",
        "Broker 2 is away: it has replicas of 1",
        "/brokers",
    ),
    "no leader": (
        seen(topics={"flights": topic(Partition(0, -1, (1,), ()), Partition(1, -1, (1,), ()))}),
        "bad",
        "2 partitions of flights are without a leader",
        "/topics?state=no-leader&internal=1",
    ),
    "under-replicated": (
        seen(topics={name: topic(Partition(0, 1, (1, 2), (1,)), name=name) for name in "ab"}),
        "warn",
        "2 partitions of 2 topics are under-replicated",
        "/topics?state=under-replicated&internal=1",
    ),
    "a directory out of use": (seen(disks=(OFFLINE,)), "bad", "/b of broker 2 is out of use: ", "/brokers/2"),
    "a disk full": (
        seen(disks=(LogDir(2, "/b", None, 1000, 49, {}),)),
        "bad",
        "95 % full: 49 B are left",
        "/brokers/2",
    ),
    "nearly full": (seen(disks=(LogDir(2, "/b", None, 1000, 150, {}),)), "warn", "is 85 % full", "/brokers/2"),
    "an archive stuck": (
        seen(archives=(ArchiveStatus(TP, lag_segments=9, problem="no store"),)),
        "bad",
        "flights-0, no store",
        "/archive?sort=problem",
    ),
    "an archive behind": (
        seen(archives=(ArchiveStatus(TP, lag_bytes=2048, lag_segments=3),)),
        "warn",
        "2 KiB wait",
        "/archive?sort=behind",
    ),
    "an archive not known": (seen(archives=(ArchiveStatus(TP),)), "unknown", "is not known", "/archive"),
    "a certificate over": (seen(certificates={2: NOW_S - DAY_S}), "bad", "ended 1 d ago", "/brokers/2"),
    "one nearly over": (seen(certificates={2: NOW_S + 5 * DAY_S}), "bad", "ends in 5 d", "/brokers/2"),
    "one for the month": (seen(certificates={2: NOW_S + 20 * DAY_S}), "warn", "ends in 20 d", "/brokers/2"),
    "a lag not known": (seen(groups=group(None)), "unknown", "lag of 1 group is not known", "/groups?state=unknown"),
    "offsets beyond": (
        seen(groups=group(0, beyond=frozenset([TP]))),
        "warn",
        "1 group committed beyond the end",
        "/groups?state=beyond",
    ),
    "groups not shown": (seen(unseen={"groups": "groups: not allowed"}), "unknown", "Groups: not allowed", "/groups"),
    "a look that failed": (seen(others=("sizes: away",)), "unknown", "Sizes: away", "/brokers"),
    "a first look that failed": (
        seen(others=("sizes: away",), unseen={"sizes": "sizes are not known yet"}),
        "unknown",
        "Sizes: ",
        "/brokers",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_and_leads_to_a_page(case: str) -> None:
    snapshot, kind, words, address = CASES[case]
    (found,) = [one for one in told(snapshot).findings if words in one.text]
    assert len([one for one in told(snapshot).findings if one.text == found.text or "not known yet" in one.text]) == 1
    assert (found.kind, found.address) == (kind, address)


FINE = {
    "a disk of which no size is known": seen(disks=(LogDir(1, "/a", None, -1, -1, {}),)),
    "a disk half full": seen(disks=(LogDir(1, "/a", None, 1000, 151, {}),)),
    "two segments that wait": seen(archives=(ArchiveStatus(TP, lag_bytes=10, lag_segments=2),)),
    "a certificate for two months": seen(certificates={1: NOW_S + 60 * DAY_S}),
    "offsets that are numbers of batches": seen(
        groups={"w": Group("w", "Empty", "", {TP: CommittedOffset(5, "pykafka write")})}
    ),
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_as_it_should_be_is_not_said(case: str) -> None:
    assert told(FINE[case]).findings == []


def test_a_group_falls_behind_when_its_lag_grows_and_not_when_it_is_large() -> None:
    (found,) = told(seen(groups=group(70)), [10, 20, 30, 40, 50, 70]).findings
    assert (found.kind, found.address) == ("warn", "/groups/g%26b")
    assert "g&b falls behind: its lag is 70 and grows" in found.text
    assert told(seen(groups=group(70)), [70, 70, 70, 70, 70, 70]).findings == []
    begun = told(seen(groups=group(70)), [10, 20])  # a console that has just begun knows no trend
    assert (begun.kind, begun.word) == ("unknown", "Not all could be looked at")
    assert [one.text for one in begun.findings] == ["Whether the lag of 1 group grows is not known yet"]


def test_the_worst_comes_first_and_many_of_a_kind_are_counted() -> None:
    disks = tuple(LogDir(one, "/d", None, 1000, 10 if one == 9 else 100, {}) for one in range(1, 10))
    found = told(
        seen(disks=disks, controller=-1, unseen={"groups": "groups: hidden"}), others=[Finding("bad", "a load")]
    )
    kinds = [one.kind for one in found.findings]
    assert kinds == sorted(kinds, key=["bad", "warn", "unknown"].index)
    assert (found.kind, found.word) == ("bad", "3 things are wrong, 5 to look at")
    assert "/d of broker 9" in next(one.text for one in found.findings if "/d" in one.text)
    assert [one.text for one in found.findings if one.kind == "warn"][-1] == "4 more directories"


def test_what_nobody_could_look_at_is_not_well() -> None:
    found = told(seen(unseen={"groups": "groups are not known: not authorized"}))
    assert (found.kind, found.word) == ("unknown", "Not all could be looked at")
