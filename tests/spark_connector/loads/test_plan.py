"""Which offsets a load covers."""

from __future__ import annotations

import dataclasses

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.loads.ranges import Bounds, plan_epochs, plan_ranges, plan_rerun
from spark_connector.loads.record import LoadRange, LoadRecord

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def bounds(
    latest: dict[TopicPartition, int],
    earliest: dict[TopicPartition, int] | None = None,
    starts: dict[TopicPartition, int] | None = None,
    ends: dict[TopicPartition, int] | None = None,
) -> Bounds:
    first = dict.fromkeys(latest, 0) | (earliest or {})
    return Bounds(first, latest, first | (starts or {}), latest | (ends or {}))


@pytest.mark.parametrize(
    ("stored", "limits", "expected"),
    [
        pytest.param({}, bounds({A: 5, B: 0}), [LoadRange("t", 0, 0, 5, None)], id="first load, one partition empty"),
        pytest.param({A: 3}, bounds({A: 5}), [LoadRange("t", 0, 3, 5, 3)], id="goes on where the last one ended"),
        pytest.param({A: 5}, bounds({A: 5}), [], id="nothing new"),
        pytest.param({A: 5}, bounds({A: 5, B: 2}), [LoadRange("t", 1, 0, 2, None)], id="a new partition"),
        pytest.param({A: 3}, bounds({A: 5}, starts={A: 1}), [LoadRange("t", 0, 3, 5, 3)], id="stored beats start"),
        pytest.param({}, bounds({A: 5}, {A: 2}, {A: 1}), [LoadRange("t", 0, 2, 5, None)], id="start is gone"),
        pytest.param({}, bounds({A: 5}, starts={A: 9}), [], id="start lies in the future"),
        pytest.param({A: 1}, bounds({A: 5}, ends={A: 3}), [LoadRange("t", 0, 1, 3, 1)], id="up to a given end"),
        pytest.param({A: 4}, bounds({A: 5}, ends={A: 3}), [], id="the given end is loaded already"),
        pytest.param({A: 0}, bounds({A: 5}, ends={A: 9}), [LoadRange("t", 0, 0, 5, 0)], id="no end beyond the log"),
        pytest.param({B: 7}, bounds({A: 1}), [LoadRange("t", 0, 0, 1, None)], id="partitions not asked for stay out"),
    ],
)
def test_plan_ranges(stored: dict[TopicPartition, int], limits: Bounds, expected: list[LoadRange]) -> None:
    assert list(plan_ranges(stored, limits, fail_on_data_loss=True)) == expected


def test_max_records_caps_all_partitions_together() -> None:
    ranges = plan_ranges({}, bounds({A: 1000, B: 500}), fail_on_data_loss=True, max_records=30)
    assert sum(range.size for range in ranges) == 30
    assert all(range.size > 0 for range in ranges)


@pytest.mark.parametrize(
    ("stored", "limits", "condition", "rest"),
    [
        pytest.param(9, bounds({A: 5}), "PARTITION_OFFSET_CHANGED", LoadRange("t", 0, 0, 5, 9), id="recreated"),
        pytest.param(
            1, bounds({A: 5}, {A: 3}), "COULD_NOT_READ_OFFSET_RANGE", LoadRange("t", 0, 3, 5, 1), id="deleted"
        ),
    ],
)
def test_lost_records_are_an_error_or_a_warning(
    stored: int, limits: Bounds, condition: str, rest: LoadRange, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLoss, match=condition):
        plan_ranges({A: stored}, limits, fail_on_data_loss=True)
    assert plan_ranges({A: stored}, limits, fail_on_data_loss=False) == (rest,)
    assert condition in caplog.text


def test_a_log_that_was_cut_below_what_was_loaded_and_has_grown_again_is_lost_data(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = dataclasses.replace(bounds({A: 140, B: 9}), cut={A: 60}, epochs={A: 1, B: 1})
    with pytest.raises(
        DataLoss, match="PARTITION_OFFSET_CHANGED.*t-0 was loaded up to offset 100.*was truncated to 60"
    ):
        plan_ranges({A: 100}, limits, fail_on_data_loss=True)
    anew = (LoadRange("t", 0, 60, 140, 100), LoadRange("t", 1, 0, 9, None))
    assert plan_ranges({A: 100}, limits, fail_on_data_loss=False) == anew, "it goes on where the log parts"
    assert "PARTITION_OFFSET_CHANGED" in caplog.text
    other = dataclasses.replace(limits, cut={A: -1})
    assert plan_ranges({A: 100}, other, fail_on_data_loss=False)[0] == LoadRange("t", 0, 0, 140, 100)


def test_the_epochs_after_a_load_are_those_of_the_leaders_asked_or_where_the_group_stays_the_known_ones() -> None:
    quiet, elsewhere = TopicPartition("t", 2), TopicPartition("u", 0)
    latest = {A: 140, B: 9, quiet: 5}
    limits = dataclasses.replace(bounds(latest), cut={A: 60}, epochs=dict.fromkeys(latest, 3))
    stored = {A: 100, quiet: 5, elsewhere: 8}
    known = {A: 0, elsewhere: 0}

    def epochs(*ranges: LoadRange) -> dict[TopicPartition, int]:
        reached = plan_epochs(known, stored, ranges, limits)
        assert reached is not None
        return reached.by_partition()

    assert epochs(LoadRange("t", 1, 0, 4, None)) == {A: 0, B: 3, quiet: 3, elsewhere: 0}
    assert epochs(LoadRange("t", 0, 60, 100, 100)) == {A: 3, quiet: 3, elsewhere: 0}


def test_a_topic_created_anew_is_noticed_however_long_it_is(caplog: pytest.LogCaptureFixture) -> None:
    limits = dataclasses.replace(bounds({A: 50, B: 0}, {A: 1}), recreated={"t"})
    stored = {A: 9, B: 4, TopicPartition("t", 2): 7, TopicPartition("other", 0): 3}
    with pytest.raises(DataLoss, match="PARTITION_OFFSET_CHANGED.*t-0 was loaded up to offset 9"):
        plan_ranges(stored, limits, fail_on_data_loss=True)
    forgotten = (LoadRange("t", 1, 0, 0, 4), LoadRange("t", 2, 0, 0, 7))
    assert plan_ranges(stored, limits, fail_on_data_loss=False) == (LoadRange("t", 0, 1, 50, 9), *forgotten)
    assert "created again" in caplog.text


def test_a_topic_created_anew_that_is_empty_waits(caplog: pytest.LogCaptureFixture) -> None:
    limits = dataclasses.replace(bounds({A: 0}), recreated={"t"})
    assert plan_ranges({A: 9}, limits, fail_on_data_loss=False) == ()


def test_a_rerun_covers_what_the_loads_covered() -> None:
    def load(*ranges: LoadRange, rerun_of: str | None = None) -> LoadRecord:
        return LoadRecord("g-000001-00000000", "file:///o", "parquet", "files", 0, ranges, rerun_of)

    loads = [
        load(LoadRange("t", 0, 3, 5, 3)),
        load(LoadRange("t", 0, 0, 5, 5), rerun_of="another"),
        load(LoadRange("t", 0, 5, 8, 5), LoadRange("t", 1, 0, 2, None)),
    ]
    assert plan_rerun(loads, {}) == (LoadRange("t", 0, 3, 8, None), LoadRange("t", 1, 0, 2, None))
    assert plan_rerun(loads, {A: 8, B: 2}) == (LoadRange("t", 0, 3, 8, 8), LoadRange("t", 1, 0, 2, 2))
