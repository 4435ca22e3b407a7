"""Fetch and ListOffsets of records that only the archive has. The store answers when a test lets it, so nothing here
depends on how long anything takes."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api import list_offsets
from broker.api.context import Client, Request
from broker.archive.archived_read import ArchiveReader
from broker.archive.layout import PartitionPlace
from broker.clock import SystemClock
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from tests.support.archiving import MIB, HeldStore, archive_all_but_active
from tests.support.batches import NOW
from tests.support.fetch_leader import FetchLeader, seen
from tests.support.raw_requests import ask_for

LONG_MS = 60_000
"""A wait that no test waits for."""
SHORT_MS = 20
"""remote.fetch.max.wait.ms where a test waits for it."""


class ColdLeader(FetchLeader):
    """Leads partitions whose offsets 0 and 1 are only in the archive; offset 2 is local."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.storage = open_storage(str(directory / "archive"))
        self.store = HeldStore(self.storage)
        self.reader = ArchiveReader(self.store, directory / "cache", max_bytes=MIB, threads=3, clock=SystemClock())

    def lead_cold(self, *numbers: int) -> None:
        self.lead(*numbers)
        for number in numbers:
            log = self.partitions[TopicPartition("t", number)].log
            for value in (b"a%d" % number, b"b%d" % number):
                self.put(number, value)
                log.roll()
            archive_all_but_active(log, self.reader, self.storage, PartitionPlace("c", uuid.UUID(int=1), number))
            self.put(number, b"c%d" % number)

    def wait_at_most(self, ms: int) -> None:
        self.config = dataclasses.replace(self.config, remote_fetch_max_wait_ms=ms)

    async def fetch(self, *wanted: tuple[int, int], **body: Any) -> Any:
        """(partition, offset) of each wanted; other arguments as for `send`."""
        asked = [ask_for("t", offset, partition) for partition, offset in wanted]
        found = self.send(asked, **{"max_wait": 0, **body})
        return await asyncio.wait_for(found, 60) if isinstance(found, Awaitable) else found


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[ColdLeader]:
    made = ColdLeader(tmp_path)
    made.lead_cold(0)
    yield made
    made.store.release()
    made.reader.close()


async def begun(leader: ColdLeader, *wanted: tuple[int, int], **body: Any) -> asyncio.Future[Any]:
    """A fetch that waits for the store, which does not answer."""
    leader.store.hold()
    waiting = asyncio.ensure_future(leader.fetch(*wanted, **body))
    await asyncio.to_thread(leader.store.wait_until_asked)
    return waiting


@pytest.mark.parametrize("max_wait", [0, 10])
async def test_a_fetch_waits_for_the_store(leader: ColdLeader, max_wait: int) -> None:
    """Also one that would not wait for records that are not there yet."""
    leader.wait_at_most(LONG_MS)
    waiting = await begun(leader, (0, 0), max_wait=max_wait)
    leader.store.release()
    assert seen(await waiting) == [(0, [b"a0"])]
    assert seen(await leader.fetch((0, 1))) == [(0, [b"b0"])]
    assert seen(await leader.fetch((0, 2))) == [(0, [b"c0"])]


async def test_a_store_that_takes_too_long_is_answered_without(leader: ColdLeader) -> None:
    leader.wait_at_most(SHORT_MS)
    waiting = await begun(leader, (0, 0), max_wait=LONG_MS, isolation_level=1)
    (found,) = (await waiting).responses[0].partitions
    assert (found.error_code, found.records, found.high_watermark, found.log_start_offset) == (0, b"", 3, 0)
    assert found.aborted_transactions == ()
    leader.wait_at_most(LONG_MS)
    again = asyncio.ensure_future(leader.fetch((0, 0)))
    leader.store.release()
    assert seen(await again) == [(0, [b"a0"])]
    assert max(leader.store.asked.values()) == 1, "the download went on, and was joined"


async def test_live_records_do_not_wait_for_the_store(leader: ColdLeader) -> None:
    leader.lead(1)
    leader.put(1, b"live")
    leader.wait_at_most(LONG_MS)
    leader.store.hold()
    assert seen(await leader.fetch((0, 0), (1, 0), max_wait=LONG_MS)) == [(0, []), (1, [b"live"])]
    waiting = await begun(leader, (0, 0), (1, 1), max_wait=LONG_MS)
    leader.put(1, b"new")
    assert seen(await waiting) == [(0, []), (1, [b"new"])]


async def test_all_that_is_missing_is_asked_for_at_once(leader: ColdLeader) -> None:
    leader.lead_cold(1, 2, 3, 4)
    leader.wait_at_most(LONG_MS)
    leader.store.hold()
    waiting = asyncio.ensure_future(leader.fetch(*((number, 0) for number in range(5))))
    await asyncio.to_thread(leader.store.wait_until_asked, 3)
    assert len(leader.reader.cache._tasks) == 5
    leader.store.release()
    found = seen(await waiting)
    assert [number for number, _ in found] == [0, 1, 2, 3, 4]
    assert any(values for _, values in found), "the first that is there ends the wait"


async def test_a_cold_partition_of_a_session_is_answered_later(leader: ColdLeader) -> None:
    leader.lead_cold(1)
    leader.lead(2)
    leader.wait_at_most(SHORT_MS)
    leader.store.hold()
    made = await leader.fetch((0, 0), (1, 1), (2, 0), session_epoch=0)
    assert seen(made) == [(0, []), (1, []), (2, [])]
    for epoch in (1, 2):
        quiet = await leader.fetch(session_id=made.session_id, session_epoch=epoch)
        assert quiet.responses == ()
    leader.store.release()
    leader.wait_at_most(LONG_MS)
    found: dict[int, list[bytes | None]] = {}
    epoch = 3
    while len(found) < 2:
        read = [(partition, 3) for partition in found]
        answer = await leader.fetch(*read, session_id=made.session_id, session_epoch=epoch, max_wait=LONG_MS)
        found.update((partition, values) for partition, values in seen(answer) if values)
        epoch += 1
    assert found == {0: [b"a0"], 1: [b"b1"]}


async def test_a_client_that_leaves_leaves_nothing_behind(leader: ColdLeader) -> None:
    leader.wait_at_most(LONG_MS)
    waiting = await begun(leader, (0, 0))
    (task,) = leader.reader.cache._tasks.values()
    assert len(task.done._waiters) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not task.done._waiters
    assert not leader.partitions[TopicPartition("t", 0)].waiters


async def test_a_damaged_object_is_a_storage_error_and_no_record(leader: ColdLeader) -> None:
    leader.lead(1)
    leader.put(1, b"live")
    leader.wait_at_most(LONG_MS)
    path = min(name for name in leader.storage.tree_sizes("") if name.endswith(".log"))
    damaged = bytearray(leader.storage.read(path))
    damaged[7] ^= 1  # in the base offset, which no CRC covers
    leader.store.damage[path] = bytes(damaged)
    for _ in range(2):
        answer = await leader.fetch((0, 0), max_wait=LONG_MS)
        assert [one.error_code for one in answer.responses[0].partitions] == [ErrorCode.kafka_storage_error]
    answer = await leader.fetch((0, 0), (1, 0))
    assert seen(answer) == [(0, []), (1, [b"live"])]


# --- ListOffsets


async def offsets_at(leader: ColdLeader, timestamp: int, *partitions: int) -> list[tuple[int, int]]:
    """(error, offset) of each partition."""
    asked = [
        SimpleNamespace(partition_index=number, timestamp=timestamp, current_leader_epoch=-1) for number in partitions
    ]
    body = SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=asked)], isolation_level=0, replica_id=-1)
    request = cast(Request, SimpleNamespace(body=body, version=9))
    found = list_offsets.handle(leader._context(leader.cache), request, Client("127.0.0.1", 1))
    fields = await found if isinstance(found, Awaitable) else found
    return [(told["error_code"], told["offset"]) for told in fields["topics"][0]["partitions"]]


async def test_times_of_many_partitions_are_looked_up_at_once(leader: ColdLeader) -> None:
    leader.lead_cold(1, 2)
    leader.store.hold()
    waiting = asyncio.ensure_future(offsets_at(leader, NOW, 0, 1, 2))
    await asyncio.to_thread(leader.store.wait_until_asked, 3)
    leader.store.release()
    assert await asyncio.wait_for(waiting, 60) == [(0, 0)] * 3
    assert await offsets_at(leader, -3, 0, 1) == [(0, 0)] * 2
    assert await offsets_at(leader, NOW + 1, 0) == [(0, -1)]


async def test_a_time_is_not_waited_for_for_ever(leader: ColdLeader) -> None:
    leader.config = dataclasses.replace(leader.config, remote_list_offsets_request_timeout_ms=SHORT_MS)
    leader.lead(1)
    leader.put(1, b"live")
    leader.store.hold()
    assert await offsets_at(leader, NOW, 0, 1) == [(ErrorCode.request_timed_out, -1), (0, 0)]
