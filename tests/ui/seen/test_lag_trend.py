"""Whether a lag grows, and how fast a group reads, from points of its last minutes."""

from __future__ import annotations

import pytest

from broker.client.client_settings import ClientSettings
from broker.client.committed_offsets import CommittedOffset
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen import sampler as module
from pykafka_ui.seen.history import Point, is_growing, per_second
from pykafka_ui.seen.sampler import Sampler
from pykafka_ui.seen.snapshot import Group

T0 = TopicPartition("t", 0)


def points(*values: float | None, step_s: float = 30) -> list[Point]:
    return [(1_000 + number * step_s, value) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("lags", "grows"),
    [
        (points(1, 2, 3, 4, 5, 6), True),
        (points(0, 0, 0, 5, 9, 9), True),
        (points(5, 5, None, 6, 7, 8, 9), True),
        (points(6, 5, 4, 3, 2, 1), False),
        (points(9, 9, 9, 9, 9, 9), False),
        (points(0, 50, 0, 50, 0, 50), False),  # it commits seldom
        (points(100, 1, 2, 3, 4, 5), False),  # it caught up within the time that is looked at
        (points(1, 2, 3, 4, 5), None),
        (points(1, 2, 3, 4, 5, 6, None), None),
        (points(None, None, None, None), None),
        ([], None),
        (points(*[900] * 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), True),  # what was before is long ago
    ],
)
def test_a_lag_grows_if_its_later_half_lies_above_its_earlier_half(lags: list[Point], grows: bool | None) -> None:
    assert is_growing(lags) is grows


@pytest.mark.parametrize(
    ("positions", "rate"),
    [
        (points(0, 300, 600), 10.0),
        (points(0, None, 600), 10.0),
        (points(7, 7), 0.0),
        (points(7), None),
        (points(None, 7), None),
        (points(600, 0, 300), None),  # it was reset: what it read since then is not told
        (points(0, *[900] * 12), 0.0),  # long ago
    ],
)
def test_a_rate_is_that_of_the_last_minutes(positions: list[Point], rate: float | None) -> None:
    assert per_second(positions) == rate


def test_partitions_of_groups_that_are_looked_at_are_kept_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then those of the groups that are furthest behind: of all it would be too much."""
    monkeypatch.setattr(module, "MOST_PARTITIONS", 2)
    sampler = Sampler(ClientSettings(bootstrap_servers=("127.0.0.1:1",)))
    groups = {
        name: Group(name, "Empty", "consumer", {T0: CommittedOffset(5, "")}, {T0: lag})
        for name, lag in (("far", 900), ("near", 1), ("middle", 50))
    }
    sampler.looked_at("near")
    sampler._record_groups(groups)
    kept = {name: [value for _, value in sampler.of_partition("lag", name, T0)] for name in groups}
    assert kept == {"far": [900.0], "near": [1.0], "middle": []}
    assert [value for _, value in sampler.of_partition("read", "near", T0)] == [5.0]
