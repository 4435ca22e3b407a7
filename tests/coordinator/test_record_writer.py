"""The writer of one internal partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from broker.coordinator.record_store import KeyValue, RecordRun
from broker.coordinator.record_writer import RecordWriter
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from tests.support.record_stores import GatedRecordStore, MemoryRecordStore, SyncingRecordStore


def record(number: int) -> KeyValue:
    return b"key", b"%d" % number


async def test_writes_that_come_together_are_appended_together_and_in_order() -> None:
    store = GatedRecordStore()
    writer = RecordWriter(store, 3)
    ended: list[tuple[int, ErrorCode]] = []
    store.gate.clear()
    for number in range(5):
        writer.write([record(number)], lambda code, number=number: ended.append((number, code)))  # type: ignore[misc]
        if not number:
            await store.until_waiting()
    store.gate.set()
    await writer.flush()
    assert store.records == {3: [record(number) for number in range(5)]}
    assert ended == [(number, ErrorCode.none) for number in range(5)]
    assert store.appends == 2


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (BrokerError(ErrorCode.not_enough_replicas), ErrorCode.not_enough_replicas),
        (OSError("disk full"), ErrorCode.kafka_storage_error),
        (ValueError("a bug"), ErrorCode.unknown_server_error),
    ],
)
async def test_failed_append_is_told_and_the_next_one_works(raised: Exception, code: ErrorCode) -> None:
    store = GatedRecordStore()
    writer = RecordWriter(store, 0)
    ended: list[ErrorCode] = []
    store.fail_with = raised
    writer.write([record(1)], ended.append)
    await writer.flush()
    store.fail_with = None
    writer.write([record(2)], ended.append)
    await writer.flush()
    assert ended == [code, ErrorCode.none]
    assert store.records[0] == [record(2)]


class SmallStore(MemoryRecordStore):
    """Accepts ten bytes of values per append."""

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[None] | None:
        if sum(len(value or b"") for _, value in records) > 10:
            raise BrokerError(ErrorCode.message_too_large)
        return super().append(partition, records, producer)


async def test_one_record_too_large_does_not_fail_its_neighbours() -> None:
    store = SmallStore()
    writer = RecordWriter(store, 0)
    ended: list[ErrorCode] = []
    for value in (b"small", b"far too large", b"small too"):
        writer.write([(b"key", value)], ended.append)
    await writer.flush()
    assert ended == [ErrorCode.none, ErrorCode.message_too_large, ErrorCode.none]
    assert [value for _, value in store.records[0]] == [b"small", b"small too"]


async def test_what_may_be_late_goes_in_parts_when_it_is_too_much_at_once() -> None:
    store = SmallStore()
    writer = RecordWriter(store, 0)
    ended: list[ErrorCode] = []
    for number in range(9):
        writer.write_lazily([(b"%d" % number, b"value")], ended.append)
    writer.write_now([(b"now", b"value")], ended.append)
    await writer.flush()
    assert ended == [ErrorCode.none] * 10
    assert [key for key, _ in store.records[0]] == [*(b"%d" % number for number in range(9)), b"now"]


async def test_error_in_what_follows_does_not_stop_the_writer(caplog: pytest.LogCaptureFixture) -> None:
    def broken(code: ErrorCode) -> None:
        raise RuntimeError("broken")

    store = GatedRecordStore()
    writer = RecordWriter(store, 0)
    ended: list[ErrorCode] = []
    writer.write([record(1)], broken)
    writer.write([record(2)], ended.append)
    await writer.flush()
    assert ended == [ErrorCode.none]
    assert "broken" in caplog.text


async def test_records_of_a_transaction_get_appends_of_their_own() -> None:
    store = GatedRecordStore()
    writer = RecordWriter(store, 0)
    one, two = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)
    ended: list[int] = []
    for number, producer in enumerate((None, None, one, one, two, None)):
        writer.write([record(number)], lambda code, number=number: ended.append(number), producer)  # type: ignore[misc]
    await writer.flush()
    assert store.runs[0] == [
        RecordRun((record(0), record(1))),
        RecordRun((record(2), record(3)), 1),
        RecordRun((record(4),), 2),
        RecordRun((record(5),)),
    ]
    assert ended == list(range(6))


async def test_write_now_is_told_at_once_when_nothing_is_under_way() -> None:
    writer = RecordWriter(MemoryRecordStore(), 0)
    ended: list[ErrorCode] = []
    writer.write_now([record(1)], ended.append)
    assert ended == [ErrorCode.none]


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_may_be_late_goes_before_the_next_write_and_with_it(at_once: bool) -> None:
    store = MemoryRecordStore()
    writer = RecordWriter(store, 0)
    ended: list[int] = []
    writer.write_lazily([record(1)], lambda _: ended.append(1))
    assert not store.appends
    write = writer.write_now if at_once else writer.write
    write([record(2)], lambda _: ended.append(2))
    await writer.flush()
    assert store.runs[0] == [RecordRun((record(1), record(2)))]
    assert ended == [1, 2]


async def test_what_may_be_late_is_written_after_a_moment_though_nothing_else_is() -> None:
    store = MemoryRecordStore()
    writer = RecordWriter(store, 0)
    written = asyncio.Event()
    writer.write_lazily([record(1)], lambda _: written.set())
    await asyncio.wait_for(written.wait(), 10)
    assert store.records[0] == [record(1)]


@pytest.mark.parametrize("at_once", [True, False])
async def test_event_comes_between_what_stands_before_it_and_what_comes_after(at_once: bool) -> None:
    store = SyncingRecordStore()
    writer = RecordWriter(store, 0)
    told: list[str] = []
    write = writer.write_now if at_once else writer.write
    write([record(1)], lambda _: told.append("before"))
    await asyncio.sleep(0)
    writer.write([record(2)], lambda _: told.append("after"))
    writer.transaction_ended(7, lambda _: told.append("event"))
    assert told == []
    store.gate.set()
    await writer.flush()
    assert told == ["before", "event", "after"]
    writer.transaction_ended(7, lambda _: told.append("at once"))
    assert told[-1] == "at once"


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_is_written_while_a_marker_is_on_its_way_waits_for_it(at_once: bool) -> None:
    store = MemoryRecordStore()
    writer = RecordWriter(store, 0)
    told: list[str] = []
    marker = asyncio.get_running_loop().create_future()
    writer.transaction_ended(7, lambda _: told.append("marker"), marker)
    write = writer.write_now if at_once else writer.write
    write([record(1)], lambda _: told.append("after"))
    writer.transaction_ended(8, lambda _: told.append("next marker"))
    await asyncio.sleep(0)
    assert (told, store.appends) == ([], 0)
    marker.set_result(None)
    await writer.flush()
    assert told == ["marker", "next marker", "after"]


async def test_a_marker_that_is_never_written_is_told_and_holds_up_nothing() -> None:
    writer = RecordWriter(MemoryRecordStore(), 0)
    told: list[ErrorCode] = []
    marker = asyncio.get_running_loop().create_future()
    marker.set_exception(BrokerError(ErrorCode.kafka_storage_error))
    writer.transaction_ended(7, told.append, marker)
    writer.write([record(1)], told.append)
    await writer.flush()
    assert told == [ErrorCode.kafka_storage_error, ErrorCode.none]


async def test_parts_of_what_is_too_large_are_told_in_order_though_some_wait() -> None:
    class Small(SmallStore, SyncingRecordStore):
        pass

    store = Small()
    store.gate.set()
    writer = RecordWriter(store, 0)
    told: list[tuple[bytes, ErrorCode]] = []
    for value in (b"small", b"far too large", b"small too"):
        writer.write([(b"key", value)], lambda code, value=value: told.append((value, code)))  # type: ignore[misc]
    await writer.flush()
    none, refused = ErrorCode.none, ErrorCode.message_too_large
    assert told == [(b"small", none), (b"far too large", refused), (b"small too", none)]
