"""What is gone, anew, created or selected since an offset was made, and the sums of what was lost; no broker."""

from __future__ import annotations

import logging

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.offset_store.base import Offsets
from spark_connector.read.micro_batches import Losses, PartitionChanges, compare
from spark_connector.read.stream_offset import StreamOffset

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def changes(**named: set[TopicPartition]) -> PartitionChanges:
    every = {name: frozenset[TopicPartition]() for name in ("gone", "recreated", "created", "selected", "shrunk")}
    return PartitionChanges(**{**every, **{name: frozenset(tps) for name, tps in named.items()}})


@pytest.mark.parametrize(
    ("before", "selects", "now", "now_ids", "expected"),
    [
        pytest.param({A0: 5}, {}, {A0: 5}, {"a": "x"}, changes(), id="nothing"),
        pytest.param({A0: 5, A1: 1}, {}, {A0: 5}, {"a": "x"}, changes(gone={A1}), id="gone"),
        pytest.param({A0: 5}, {}, {A0: 4}, {"a": "x"}, changes(shrunk={A0}), id="shrunk"),
        pytest.param({A0: 5}, {}, {A0: 9, A1: 2}, {"a": "y"}, changes(recreated={A0, A1}), id="another id"),
        pytest.param({A0: 5, A1: 5}, {}, {A0: 1}, {"a": "y"}, changes(recreated={A0}), id="another id, fewer"),
        pytest.param({A0: 5}, {}, {A0: 5}, {}, changes(), id="a broker without ids"),
        pytest.param({A0: 5}, {}, {A0: 5, B0: 1}, {"a": "x"}, changes(created={B0}), id="new, not told by what"),
        pytest.param(
            {A0: 5}, {"subscribe": "a,b"}, {A0: 5, B0: 1}, {"a": "x"}, changes(created={B0}), id="selected before"
        ),
        pytest.param(
            {A0: 5}, {"subscribe": "a"}, {A0: 5, B0: 1}, {"a": "x"}, changes(selected={B0}), id="newly selected"
        ),
        pytest.param(
            {A0: 5},
            {"subscribePattern": "a", "filterPartitions": "0"},
            {A0: 5, A1: 1},
            {"a": "x"},
            changes(selected={A1}),
            id="let pass by a new filter",
        ),
        pytest.param(
            {A0: 5}, {"subscribePattern": "("}, {A0: 5, B0: 1}, {}, changes(created={B0}), id="not understood"
        ),
    ],
)
def test_what_changed(
    before: Offsets, selects: dict[str, str], now: Offsets, now_ids: dict[str, str], expected: PartitionChanges
) -> None:
    begin = StreamOffset(before, {"a": "x"}, selects=selects)
    assert compare(begin, StreamOffset(now, now_ids)) == expected


def test_losses_are_logged_with_numbers_and_added_up_per_topic(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses(fail=False)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        losses.report_lost_head(A0, 3, 10)
        losses.report_late_start(A1, 2)
        losses.report_changes(changes(gone={B0}), {B0: 4}, {}, {B0: 9})
    assert "Offsets skipped: a-0: 7." in caplog.text
    assert "Offsets skipped: b-0: 5." in caplog.text
    assert losses.added_to({"a": 1, "c": 3}) == {"a": 10, "b": 5, "c": 3}
    assert Losses(fail=False).added_to({"a": 1}) == {"a": 1}


def test_the_first_loss_ends_a_query_that_must_not_lose_and_says_nothing_of_skipping() -> None:
    with pytest.raises(DataLoss, match=r"COULD_NOT_READ_OFFSET_RANGE") as raised:
        Losses(fail=True).report_lost_head(A0, 3, 10)
    assert "skipped" not in str(raised.value)
