"""Look-ups of pages that are not in the page cache: other requests are served, and the answer is the same.

A page is cold here until `ColdRead.warm` has read it. A test fails if the event loop reads a cold page.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api import fetch, list_offsets
from broker.api.context import ApiContext
from broker.errors import ErrorCode
from broker.log.log_config import LogConfig
from broker.log.segment import Segment, SegmentReader
from broker.log.segment_file import ColdRead, FileSlice, SegmentFile, may_wait, unless_cold
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import PartitionAnswer, TopicAnswer
from broker.protocol.messages import Request
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.client_quotas import ClientQuotas
from broker.records.control import ControlType
from broker.replica.partition import Partition
from tests.support.batches import NOW, append, append_marker, batch, open_log

TP = TopicPartition("t", 0)
COMMITTED = 1


def inode(file: SegmentFile) -> int:
    return os.fstat(file.fileno()).st_ino


class ColdDisk:
    """The pages that were cold, and those that threads have read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.warmed: set[tuple[int, int]] = set()
        self.loop_thread = threading.get_ident()
        self.is_cold = False
        self.opened: list[int] = []
        """Segments whose files the event loop opened."""
        glance, pread, warm, opened = SegmentFile.glance, SegmentFile.pread, ColdRead.warm, Segment._open

        def waits(file: SegmentFile, position: int) -> bool:
            is_loop = threading.get_ident() == self.loop_thread
            return self.is_cold and is_loop and (inode(file), position) not in self.warmed

        def glance_at(file: SegmentFile, length: int, position: int) -> bytes | bytearray:
            if waits(file, position) and not may_wait():
                raise ColdRead(file, position, length)
            return glance(file, length, position)

        def read_at(file: SegmentFile, length: int, position: int) -> bytes:
            assert not waits(file, position), "the event loop waits for the disk"
            return pread(file, length, position)

        def warm_up(cold: ColdRead) -> None:
            assert threading.get_ident() != self.loop_thread
            warm(cold)
            self.warmed.add((inode(cold._file), cold._position))

        def open_files(segment: Segment) -> SegmentFile:
            if self.is_cold and threading.get_ident() == self.loop_thread:
                self.opened.append(segment.base_offset)
            return opened(segment)

        monkeypatch.setattr(SegmentFile, "glance", glance_at)
        monkeypatch.setattr(SegmentFile, "pread", read_at)
        monkeypatch.setattr(ColdRead, "warm", warm_up)
        monkeypatch.setattr(Segment, "_open", open_files)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> ColdDisk:
    return ColdDisk(monkeypatch)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    """Segments of a batch or two; offset n is n half-seconds after `NOW`, and the log was just opened."""
    config = LogConfig(segment_bytes=700, index_interval_bytes=100)
    log = open_log(tmp_path / "t-0", config)
    for number in range(0, 40, 2):
        times = [NOW + number * 500, NOW + number * 500 + 500]
        append(log, batch(b"x" * 100, b"y" * 100, timestamps=times))
    log.close()
    return Partition(TP, open_log(tmp_path / "t-0", config), 0)


async def answer(handler: Any, partition: Partition, api: ApiKey, body: SimpleNamespace, version: int) -> Any:
    """The handler's answer for this partition, named t-0."""

    def find(tp: TopicPartition, epoch: int = -1) -> Partition:
        return {TP: partition}[tp]

    topics = SimpleNamespace(partition=find, replica=find)
    config = SimpleNamespace(
        fetch_max_bytes=1 << 20, is_rack_aware=False, remote_list_offsets_request_timeout_ms=30_000
    )
    context = SimpleNamespace(
        topics=topics, config=config, metrics=None, quotas=ClientQuotas(), check=lambda client, need, name: None
    )
    client = cast(Any, SimpleNamespace(listener="PLAINTEXT"))
    found = handler.handle(cast(ApiContext, context), Request(api, version, 1, None, body, 0), client)
    return await found if isinstance(found, Awaitable) else found


async def offset_at(partition: Partition, timestamp: int) -> tuple[int, int]:
    asked = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    topics = [SimpleNamespace(name="t", partitions=[asked])]
    body = SimpleNamespace(topics=topics, isolation_level=0, replica_id=-1)
    found = await answer(list_offsets, partition, ApiKey.LIST_OFFSETS, body, 5)
    (told,) = found["topics"][0]["partitions"]
    assert told["error_code"] is ErrorCode.none
    return told["offset"], told["timestamp"]


async def fetched(partition: Partition, offset: int, monkeypatch: pytest.MonkeyPatch) -> PartitionAnswer:
    topics: list[TopicAnswer] = []

    def keep(version: int, correlation_id: int, told: list[TopicAnswer], *, session_id: int) -> list[bytes]:
        topics.extend(told)
        return []

    monkeypatch.setattr(fetch, "encode_fetch_response", keep)
    asked = SimpleNamespace(partition=0, fetch_offset=offset, partition_max_bytes=300, current_leader_epoch=-1)
    body = SimpleNamespace(
        topics=[SimpleNamespace(topic="t", partitions=[asked])],
        isolation_level=COMMITTED,
        session_epoch=-1,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        replica_id=-1,
        rack_id="",
    )
    await answer(fetch, partition, ApiKey.FETCH, body, 11)
    return topics[0].partitions[0]


async def test_a_fetch_of_a_cold_log_is_looked_up_in_threads(
    partition: Partition, disk: ColdDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await fetched(partition, 17, monkeypatch)
    disk.is_cold = True
    found = await fetched(partition, 17, monkeypatch)
    assert disk.warmed
    assert cast(FileSlice, found.records).read() == cast(FileSlice, expected.records).read()


@pytest.mark.parametrize(("timestamp", "expected"), [(NOW + 8_300, 17), (-3, 39), (NOW + 90_000, -1), (0, 0)])
async def test_a_time_is_looked_up_in_threads(
    partition: Partition, disk: ColdDisk, timestamp: int, expected: int
) -> None:
    """After a start the newest time of each segment must be read from disk. A bug read them all on the event loop."""
    disk.is_cold = True
    assert await offset_at(partition, timestamp) == (expected, NOW + expected * 500 if expected >= 0 else -1)
    assert len(disk.opened) <= 1
    disk.opened.clear()
    assert await offset_at(partition, timestamp) == (expected, NOW + expected * 500 if expected >= 0 else -1)
    assert len(disk.opened) <= 1


async def test_a_segment_that_is_written_to_meanwhile_keeps_its_own_time(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = cast(property, vars(Segment)["newest"]).fget
    assert newest is not None
    later = batch(b"y", timestamp=NOW + 99_000)

    def read_and_append(reader: SegmentReader) -> Any:
        found = newest(reader)
        if partition.log.log_end_offset == 40:
            append(partition.log, later)
        return found

    monkeypatch.setattr(SegmentReader, "newest", property(read_and_append))
    assert await offset_at(partition, -3) == (40, NOW + 99_000)


async def test_a_damaged_time_index_is_made_anew_by_its_owner(partition: Partition, disk: ColdDisk) -> None:
    paths = sorted(partition.log.directory.glob("*.timeindex"))
    paths[3].write_bytes(b"cut")
    paths[5].unlink()
    assert await offset_at(partition, NOW + 19_500) == (39, NOW + 19_500)
    assert paths[5].stat().st_size > 0


async def test_aborted_transactions_are_read_in_threads_and_found_anew_whole(
    tmp_path: Path, disk: ColdDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuilt index of a damaged file is complete. A bug left out all that came after a cold page."""
    log = open_log(tmp_path / "a-0", LogConfig(index_interval_bytes=100))
    for number in range(5):
        data = batch(b"x" * 5000, producer_id=7, producer_epoch=0, sequence=number, transactional=True)
        append(log, data)
        append_marker(log, 7, 0, ControlType.ABORT, 0)
    partition = Partition(TP, log, 0)
    expected = (await fetched(partition, 0, monkeypatch)).aborted
    assert expected
    disk.is_cold = True
    assert (await fetched(partition, 0, monkeypatch)).aborted == expected
    disk.is_cold = False
    (index,) = log.directory.glob("*.txnindex")
    whole = index.read_bytes()
    index.write_bytes(whole[:-7])
    glance = SegmentFile.glance

    def cold_in_the_middle(file: SegmentFile, length: int, position: int) -> bytes | bytearray:
        if position and inode(file) != index.stat().st_ino and not may_wait():
            raise ColdRead(file, position, length)
        return glance(file, length, position)

    monkeypatch.setattr(SegmentFile, "glance", cold_in_the_middle)
    assert len(unless_cold(lambda: log.aborted.between(0, log.log_end_offset))) == 5
    assert index.read_bytes() == whole
