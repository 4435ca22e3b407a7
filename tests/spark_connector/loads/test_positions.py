"""The positions that loads keep: offsets with leader epochs; not believed where others have moved the group."""

from __future__ import annotations

import json

import pytest

from broker.client.partition_offsets import Position
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.rules import Bounds, plan_positions

TPS = [TopicPartition("t", partition) for partition in range(3)] + [TopicPartition("u", 0)]
OFFSETS = {TPS[0]: 0, TPS[1]: 10, TPS[2]: 50, TPS[3]: 7}
POSITIONS = {TPS[0]: Position(0, 2), TPS[1]: Position(10, 2), TPS[2]: Position(50, 1)}
RANGES = (LoadRange("t", 1, 4, 10, 4), LoadRange("t", 2, 0, 50, None))
RECORD = LoadRecord("g-000001-00000000", "file:///o", "parquet", "files", 0, RANGES, positions=POSITIONS)


def test_positions_are_written_by_topic_and_read_back() -> None:
    written = json.loads(RECORD.to_bytes())
    assert written["positions"] == {"t": {"0": [0, 2], "1": [10, 2], "2": [50, 1]}}
    read = LoadRecord.from_bytes(RECORD.to_bytes(), "here")
    assert read == RECORD
    assert read.positions_at(OFFSETS) == POSITIONS


def test_records_without_them_are_read_and_broken_ones_named() -> None:
    document = json.loads(RECORD.to_bytes())
    del document["positions"]
    assert LoadRecord.from_json(document, "here").positions_at(OFFSETS) == {}
    bounds = Bounds(OFFSETS, OFFSETS, OFFSETS, OFFSETS, epochs=dict.fromkeys(TPS, -1))
    assert plan_positions({}, OFFSETS, RANGES, bounds) == {}, "brokers that are too old to tell"
    broken: object
    for broken in ({"t": {"2": 5}}, {"t": {"2": ["x", 1]}}, {"t": {"x": [1, 1]}}, {"t": 5}, 5):
        with pytest.raises(LoadError, match="here is not the record of a load"):
            LoadRecord.from_json({**document, "positions": broken}, "here")


def test_where_others_have_moved_a_partition_its_position_is_not_believed() -> None:
    elsewhere = {**OFFSETS, TPS[2]: 99}
    assert RECORD.positions_at(elsewhere) == {TPS[0]: Position(0, 2), TPS[1]: Position(10, 2)}
    assert RECORD.positions_at({TPS[1]: 11}) == {}
