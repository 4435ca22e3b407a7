"""The leader epochs that loads keep: written in little room, read back, and not believed of offsets others have set."""

from __future__ import annotations

import dataclasses
import json

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord, ReachedEpochs

TPS = [TopicPartition("t", partition) for partition in range(6)]
OFFSETS = {tp: 10 * tp.partition for tp in TPS} | {TopicPartition("u", 0): 7}
EPOCHS = dict.fromkeys(TPS[:4], 2) | {TPS[4]: 1, TPS[5]: 2, TopicPartition("u", 0): -1}


def record() -> LoadRecord:
    ranges = (LoadRange("t", 1, 4, 10, 4), LoadRange("t", 5, 0, 50, None))
    reached = ReachedEpochs.of(EPOCHS, OFFSETS)
    return LoadRecord("g-000001-00000000", "file:///o", "parquet", "files", 0, ranges, epochs=reached)


def test_epochs_are_written_as_spans_of_partitions_and_read_back() -> None:
    written = json.loads(record().to_bytes())
    assert written["epochs"]["topics"] == {"t": {"2": "0-3,5", "1": "4"}}
    read = LoadRecord.from_bytes(record().to_bytes(), "here")
    assert read == record()
    assert read.epochs_at(OFFSETS) == {tp: epoch for tp, epoch in EPOCHS.items() if epoch >= 0}
    many = {TopicPartition("t", partition): 3 for partition in range(10_000)}
    reached = ReachedEpochs.of(many, many)
    assert reached is not None
    assert len(json.dumps(dataclasses.asdict(reached))) < 100


def test_records_without_them_are_read_and_broken_ones_named() -> None:
    document = json.loads(record().to_bytes())
    del document["epochs"]
    assert LoadRecord.from_json(document, "here").epochs_at(OFFSETS) == {}
    assert ReachedEpochs.of(dict.fromkeys(TPS, -1), OFFSETS) is None, "brokers that are too old to tell"
    broken: object
    for broken in ({"topics": {"t": {"2": "x"}}, "offsets": 1}, {"topics": {}}, 5):
        with pytest.raises(LoadError, match="here is not the record of a load"):
            LoadRecord.from_json({**document, "epochs": broken}, "here")


def test_where_others_have_moved_the_group_only_the_ends_of_the_load_itself_are_believed() -> None:
    elsewhere = {**OFFSETS, TPS[2]: 99}
    assert record().epochs_at(elsewhere) == {TPS[1]: 2, TPS[5]: 2}
    assert record().epochs_at({TPS[5]: 51}) == {}
