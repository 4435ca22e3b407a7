"""Random histories of a compacted log against a dictionary: appends, tombstones, rolls, compactions and crashes."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.clock import ManualClock
from broker.log.inspection import check_partition
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.record import Record, decode_batch
from tests.support.batches import NOW, append
from tests.support.compaction import EAGER, clean, eager_manager, keyed, latest, records_of

TP = TopicPartition("t", 0)

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=20)), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PAIRS, st.integers(0, 4)),
        st.tuples(st.just("put"), PAIRS, st.integers(0, 4)),
        st.sampled_from([("roll",), ("clean",), ("restart",), ("crash",), ("later",)]),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_any_history_reads_as_a_dictionary(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]) -> None:
    directory = tmp_path_factory.mktemp("log")
    clock = ManualClock(NOW)
    config = replace(EAGER, segment_bytes=800)
    model: dict[bytes | None, bytes] = {}
    appended: dict[int, Record] = {}

    manager = eager_manager(directory, clock, config)
    log = manager.create(TP, config)
    for step in steps:
        match step:
            case ("put", pairs, codec):
                data = keyed(*pairs, timestamp=clock.now_ms(), codec=codec)
                base = append(log, data).base_offset
                header = next(walk_batches(data))[1]
                appended |= {base + r.offset: r._replace(offset=base + r.offset) for r in decode_batch(data, 0, header)}
                model = latest([appended[offset] for offset in sorted(appended)])
            case ("roll",):
                log.roll()
            case ("clean",):
                clean(manager, ticks=3)
            case ("later",):
                clock.advance(700)
            case ("restart",) | ("crash",):
                if step == ("restart",):
                    manager.close()
                for held in manager._directories:
                    held.unlock()
                manager = eager_manager(directory, clock, config)
                log = manager.logs()[TP]
        found = records_of(log)
        assert all(appended[record.offset] == record for record in found)
        assert latest(found) == model
    log.roll()
    clean(manager, ticks=4)
    dirty_free = [record.key for record in records_of(log)]
    assert len(dirty_free) == len(set(dirty_free)), "one record per key"
    assert latest(records_of(log)) == model
    manager.close()
    assert check_partition(directory / "t-0") == []
    shutil.rmtree(directory)
