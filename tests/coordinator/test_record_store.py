"""The record store over a real log: appended records are read back in order, with their transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.clock import ManualClock
from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator import record_store
from broker.coordinator.record_format import KeyValue
from broker.coordinator.record_store import LogRecordStore, RecordRun
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.partition import Partition

TOPIC = "__consumer_offsets"


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    log = Log.open(tmp_path / f"{TOPIC}-0", LogConfig(), ManualClock(), clean=True)
    yield Partition(TopicPartition(TOPIC, 0), log, 0)
    log.close()


@pytest.fixture
def store(partition: Partition) -> LogRecordStore:
    topics = SimpleNamespace(partition=lambda tp: {partition.tp: partition}[tp])
    return LogRecordStore(cast(MetadataCache, topics), TOPIC, ManualClock())


def record(number: int) -> KeyValue:
    return b"key %d" % number, b"value %d" % number


async def runs(store: LogRecordStore) -> list[RecordRun]:
    return [run async for run in store.read(0)]


async def records(store: LogRecordStore) -> list[KeyValue]:
    return [record for run in await runs(store) for record in run.records]


async def test_records_come_back_in_order_over_many_reads(
    store: LogRecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "READ_BYTES", 200)
    for first in range(0, 60, 3):
        store.append(0, [record(number) for number in range(first, first + 3)])
    store.append(0, [(b"gone", None)])
    assert await records(store) == [*(record(number) for number in range(60)), (b"gone", None)]


async def test_empty_partition_has_no_records(store: LogRecordStore) -> None:
    assert await runs(store) == []


async def test_records_of_more_than_max_message_bytes_become_several_batches_or_none(
    store: LogRecordStore, partition: Partition
) -> None:
    large = [(b"key %d" % number, bytes(400_000)) for number in range(5)]
    store.append(0, large)
    assert await records(store) == large
    with pytest.raises(BrokerError) as refused:
        store.append(0, [record(1), (b"too large", bytes(2_000_000)), record(2)])
    assert refused.value.code is ErrorCode.message_too_large
    assert await records(store) == large


async def test_records_before_the_start_of_the_log_are_left_out(store: LogRecordStore, partition: Partition) -> None:
    store.append(0, [record(number) for number in range(5)])
    partition.log.delete_records(3)
    assert await records(store) == [record(3), record(4)]


async def test_transactions_are_told_with_their_ends(store: LogRecordStore, partition: Partition) -> None:
    store.append(0, [record(1)])
    for producer_id, control in ((7, ControlType.COMMIT), (8, ControlType.ABORT)):
        store.append(0, [record(producer_id)], ProducerIdAndEpoch(producer_id, 0))
        store.append(0, [record(2)])
        partition.append_marker(EndMarker(producer_id, 0, control, 0))
        store.append(0, [record(3)])
        store.append(0, [record(4)])
    expected = []
    for producer_id, commit in ((7, True), (8, False)):
        expected += [
            RecordRun([record(producer_id)], producer_id),
            RecordRun([record(2)]),
            RecordRun((), producer_id, commit),
            RecordRun([record(3), record(4)]),
        ]
    assert await runs(store) == [RecordRun([record(1)]), *expected]


async def test_producer_of_an_older_epoch_is_refused(store: LogRecordStore, partition: Partition) -> None:
    store.append(0, [record(1)], ProducerIdAndEpoch(7, 3))
    with pytest.raises(BrokerError) as raised:
        store.append(0, [record(2)], ProducerIdAndEpoch(7, 2))
    assert raised.value.code is ErrorCode.invalid_producer_epoch
    assert await records(store) == [record(1)]


async def test_loop_goes_on_while_a_partition_is_read(store: LogRecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "READ_BYTES", 2_000)
    for first in range(0, 5_000, 50):
        store.append(0, [record(number) for number in range(first, first + 50)])
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    assert len(await records(store)) == 5_000
    counting.cancel()
    assert turns >= 100
