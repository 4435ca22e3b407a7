"""The checkpoint document is canonical, and carries the start of a batch with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.read.stream_offset import StreamOffset, plan_start

A0, A1, A10, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 10), TopicPartition("b", 0)

topics = st.text("abc.-", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
partitions = st.builds(TopicPartition, topics, st.integers(0, 200))
offset_maps = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=6)


def test_the_document_reads_as_it_is_documented() -> None:
    offset = StreamOffset(
        {B0: 5, A1: 7},
        {"b": "y", "a": "x"},
        init={A1: 0, B0: 0},
        added={B0: 0},
        skipped={"b": 2, "a": 0},
        selects={"subscribe": "a,b", "filterPartitions": "0-1"},
    )
    assert json.dumps(offset.to_json()) == (
        '{"added": {"b": {"0": 0}}, "ids": {"a": "x", "b": "y"}, '
        '"init": {"a": {"1": 0}, "b": {"0": 0}}, '
        '"selects": {"filterPartitions": "0-1", "subscribe": "a,b"}, "skipped": {"b": 2}, '
        '"topics": {"a": {"1": 7}, "b": {"0": 5}}, "v": 1}'
    )


def test_a_checkpoint_keeps_every_field() -> None:
    document = {
        "added": {"b": {"0": 1}},
        "ids": {"a": "x"},
        "init": {"a": {"1": 2}},
        "latest": {"a": {"1": 90}},
        "selects": {"subscribe": "a,b"},
        "skipped": {"b": 2},
        "topics": {"a": {"1": 7}},
        "v": 1,
    }
    offset = StreamOffset({A1: 7}, {"a": "x"}, {A1: 2}, {B0: 1}, {"b": 2}, {"subscribe": "a,b"}, {A1: 90})
    assert json.dumps(offset.to_json()) == json.dumps(document)
    assert StreamOffset.from_json(document) == offset


def test_what_is_not_there_is_not_written() -> None:
    assert StreamOffset({}).to_json() == {"topics": {}, "v": 1}
    assert StreamOffset.from_json({"topics": {}, "v": 1}) == StreamOffset({})


def test_an_empty_start_is_still_a_start() -> None:
    document = StreamOffset({}, init={}).to_json()
    assert document == {"init": {}, "topics": {}, "v": 1}
    assert StreamOffset.from_json(document).init == {}


def test_a_document_of_the_first_version_is_read() -> None:
    document = {"added": {"b": {"0": 0}}, "ids": {"a": "x"}, "topics": {"a": {"0": 3}}, "v": 1}
    assert StreamOffset.from_json(document) == StreamOffset({A0: 3}, {"a": "x"}, added={B0: 0})


@given(offset_maps, st.none() | offset_maps, offset_maps)
def test_equal_offsets_give_equal_text_whatever_their_order(
    offsets: dict[TopicPartition, int], init: dict[TopicPartition, int] | None, added: dict[TopicPartition, int]
) -> None:
    one = StreamOffset(offsets, init=init, added=added)
    other = StreamOffset(dict(reversed(offsets.items())), init=init, added=dict(reversed(added.items())))
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert StreamOffset.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_partitions_are_in_numeric_order() -> None:
    assert list(StreamOffset({A10: 1, A1: 1}).to_json()["topics"]["a"]) == ["1", "10"]


@pytest.mark.parametrize("document", [None, [], "null", {}, {"v": 1}, {"v": 1, "topics": {"a": 3}}, {"a": {"0": 5}}])
def test_a_foreign_document_is_refused(document: object) -> None:
    with pytest.raises(ConnectorError, match=r"^\[PYKAFKA_CHECKPOINT_UNREADABLE\].*did not write"):
        StreamOffset.from_json(document)


def test_it_is_said_what_is_wrong_with_a_foreign_document() -> None:
    with pytest.raises(ConnectorError, match=r"did not write: \{'v': 1\} \(KeyError: 'topics'\)\. Use a new"):
        StreamOffset.from_json({"v": 1})


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ConnectorError, match=r"^\[PYKAFKA_CHECKPOINT_VERSION\].*format 2, .* reads 1\."):
        StreamOffset.from_json({"v": 2})


def test_the_first_batch_starts_where_its_end_says_not_where_spark_says() -> None:
    moved = StreamOffset({A0: 459121, A1: 12})
    end = StreamOffset({A0: 2961}, init={A0: 2956})
    assert plan_start(moved, end) == {A0: 2956}


def test_a_later_batch_starts_at_the_end_before_it() -> None:
    assert plan_start(StreamOffset({A0: 5}, init={A0: 1}), StreamOffset({A0: 9})) == {A0: 5}


def test_added_and_recreated_partitions_start_where_the_end_says() -> None:
    assert plan_start(StreamOffset({A0: 5, A1: 90}), StreamOffset({A0: 5, A1: 3, B0: 2}, added={A1: 0, B0: 1})) == {
        A0: 5,
        A1: 0,
        B0: 1,
    }
