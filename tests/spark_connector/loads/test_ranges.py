"""Which offsets a load covers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from broker.client.partition_offsets import Position
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.rules import Bounds, plan_positions, plan_ranges, plan_rerun, refuse_other_topics

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
        pytest.param({}, bounds({A: 5}, starts={A: 9}), [], id="start lies in the future"),
        pytest.param({A: 1}, bounds({A: 5}, ends={A: 3}), [LoadRange("t", 0, 1, 3, 1)], id="up to a given end"),
        pytest.param({A: 4}, bounds({A: 5}, ends={A: 3}), [], id="the given end is loaded already"),
        pytest.param({A: 0}, bounds({A: 5}, ends={A: 9}), [LoadRange("t", 0, 0, 5, 0)], id="no end beyond the log"),
        pytest.param({A: 2}, bounds({A: 5}, {A: 2}), [LoadRange("t", 0, 2, 5, 2)], id="the first offset left is next"),
        pytest.param(
            {},
            replace(bounds({A: 5}, {A: 2}), starts={}),
            [LoadRange("t", 0, 2, 5, None)],
            id="no start: the first one",
        ),
        pytest.param({B: 7}, bounds({A: 1}), [LoadRange("t", 0, 0, 1, None)], id="partitions not asked for stay out"),
        pytest.param(
            {},
            replace(bounds({A: 5, B: 0}), begins=frozenset({A, B})),
            [LoadRange("t", 0, 0, 5, None), LoadRange("t", 1, 0, 0, None)],
            id="an empty partition begins",
        ),
        pytest.param({}, replace(bounds({B: 0}), begins=frozenset({B})), [], id="where nothing is new nothing begins"),
    ],
)
def test_plan_ranges(stored: dict[TopicPartition, int], limits: Bounds, expected: list[LoadRange]) -> None:
    assert list(plan_ranges(stored, limits, fail_on_data_loss=True)) == expected


def test_max_records_caps_all_partitions_together() -> None:
    ranges = plan_ranges({}, bounds({A: 1000, B: 500}), fail_on_data_loss=True, max_records=30)
    assert sum(range.size for range in ranges) == 30
    assert all(range.size > 0 for range in ranges)


@pytest.mark.parametrize(
    ("stored", "limits", "condition", "reason", "rest"),
    [
        pytest.param(
            9,
            bounds({A: 5}, {A: 1}),
            "PARTITION_OFFSET_CHANGED",
            "but ends at 5: the topic was created again or truncated.",
            LoadRange("t", 0, 1, 5, 9),
            id="shorter",
        ),
        pytest.param(
            1,
            bounds({A: 5}, {A: 3}),
            "COULD_NOT_READ_OFFSET_RANGE",
            "but begins at 3 now: 2 offsets were deleted before they were loaded.",
            LoadRange("t", 0, 3, 5, 1),
            id="deleted",
        ),
        *(
            pytest.param(
                100,
                replace(bounds({A: 140}, {A: earliest}), cut={A: cut}),
                "PARTITION_OFFSET_CHANGED",
                f"but its log {what} since, by a leader that did not have all records, and ends at 140 now: the new "
                "records below 100 have not been loaded.",
                LoadRange("t", 0, start, 140, 100),
                id=f"cut at {cut}, begins at {earliest}",
            )
            for cut, earliest, what, start in [
                (60, 0, "was truncated to 60", 60),
                (60, 70, "was truncated to 60", 70),
                (0, 0, "was truncated to 0", 0),
                (-1, 0, "is another one", 0),
            ]
        ),
        pytest.param(
            9,
            replace(bounds({A: 50}, {A: 1}), recreated={"t"}),
            "PARTITION_OFFSET_CHANGED",
            "of a topic that has been deleted and created again; the new topic has not been loaded.",
            LoadRange("t", 0, 1, 50, 9),
            id="recreated",
        ),
    ],
)
def test_lost_records_are_an_error_or_a_warning(
    stored: int, limits: Bounds, condition: str, reason: str, rest: LoadRange, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rf"^\[KAFKA_DATA_LOSS\.{condition}\] .*Reason: Partition t-0 was loaded up to offset {stored},? {reason}$"
    with pytest.raises(DataLoss, match=whole):
        plan_ranges({A: stored}, limits, fail_on_data_loss=True)
    assert plan_ranges({A: stored}, limits, fail_on_data_loss=False) == (rest,)
    (warning,) = caplog.messages
    assert re.match(whole, warning)


def test_a_log_that_is_shorter_than_where_it_was_cut_has_nothing_to_load() -> None:
    limits = replace(bounds({A: 50}), cut={A: 60})
    assert plan_ranges({A: 100}, limits, fail_on_data_loss=False) == ()


def test_a_second_output_needs_the_topics_that_were_loaded() -> None:
    load = LoadRecord(
        "g-000001-00000000",
        "file:///o",
        "parquet",
        "files",
        0,
        (LoadRange("t", 0, 0, 5, None), LoadRange("u", 0, 0, 5, None)),
        topic_ids={"t": "first", "u": "same"},
    )
    refuse_other_topics([load], {"t": "first", "u": "same", "x": "other"})
    refuse_other_topics([load], {"u": "same"})
    refuse_other_topics([replace(load, topic_ids={})], {"t": "any", "u": "any"})
    reason = (
        r"^\[KAFKA_DATA_LOSS\.PARTITION_OFFSET_CHANGED\] .*Topic 't', which load g-000001-00000000 has loaded, "
        "has been deleted and created again since"
    )
    with pytest.raises(DataLoss, match=reason):
        refuse_other_topics([load], {"t": "second", "u": "same"})


def test_a_log_that_was_cut_below_what_was_loaded_and_has_grown_again_is_lost_data(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = replace(bounds({A: 140, B: 9}), cut={A: 60}, epochs={A: 1, B: 1})
    with pytest.raises(
        DataLoss, match="PARTITION_OFFSET_CHANGED.*t-0 was loaded up to offset 100.*was truncated to 60"
    ):
        plan_ranges({A: 100}, limits, fail_on_data_loss=True)
    anew = (LoadRange("t", 0, 60, 140, 100), LoadRange("t", 1, 0, 9, None))
    assert plan_ranges({A: 100}, limits, fail_on_data_loss=False) == anew, "it goes on where the log parts"
    assert "PARTITION_OFFSET_CHANGED" in caplog.text
    other = replace(limits, cut={A: -1})
    assert plan_ranges({A: 100}, other, fail_on_data_loss=False)[0] == LoadRange("t", 0, 0, 140, 100)


def test_the_epochs_after_a_load_are_those_of_the_leaders_asked_or_where_the_group_stays_the_known_ones() -> None:
    quiet, elsewhere = TopicPartition("t", 2), TopicPartition("u", 0)
    latest = {A: 140, B: 9, quiet: 5}
    limits = replace(bounds(latest), cut={A: 60}, epochs=dict.fromkeys(latest, 3))
    stored = {A: 100, quiet: 5, elsewhere: 8}
    known = {A: Position(100, 0), elsewhere: Position(8, 0)}

    def positions(*ranges: LoadRange) -> dict[TopicPartition, tuple[int, int]]:
        return {**plan_positions(known, stored, ranges, limits)}

    assert positions(LoadRange("t", 1, 0, 4, None)) == {A: (100, 0), B: (4, 3), quiet: (5, 3), elsewhere: (8, 0)}
    assert positions(LoadRange("t", 0, 60, 100, 100)) == {A: (100, 3), quiet: (5, 3), elsewhere: (8, 0)}


def test_a_topic_created_anew_is_noticed_however_long_it_is(caplog: pytest.LogCaptureFixture) -> None:
    limits = replace(bounds({A: 50, B: 0}, {A: 1}), recreated={"t"})
    stored = {A: 9, B: 4, TopicPartition("t", 2): 7, TopicPartition("other", 0): 3}
    with pytest.raises(DataLoss, match="PARTITION_OFFSET_CHANGED.*t-0 was loaded up to offset 9"):
        plan_ranges(stored, limits, fail_on_data_loss=True)
    forgotten = (LoadRange("t", 1, 0, 0, 4), LoadRange("t", 2, 0, 0, 7))
    assert plan_ranges(stored, limits, fail_on_data_loss=False) == (LoadRange("t", 0, 1, 50, 9), *forgotten)
    assert "created again" in caplog.text


def test_a_topic_created_anew_that_is_empty_waits(caplog: pytest.LogCaptureFixture) -> None:
    limits = replace(bounds({A: 0}), recreated={"t"})
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
    late = [load(LoadRange("t", 0, 0, 0, None)), load(LoadRange("t", 0, 4, 9, 0)), load(LoadRange("t", 0, 9, 9, 9))]
    assert plan_rerun(late, {}) == (LoadRange("t", 0, 4, 9, None),), "what was gone when it was loaded"
    assert plan_rerun(late[:1], {}) == (LoadRange("t", 0, 0, 0, None),)
