"""The writer of one internal partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from broker.coordinator import record_writer
from broker.coordinator.record_format import KeyValue
from broker.coordinator.record_store import RecordRun
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


async def test_a_write_after_each_refused_one_does_not_hold_the_event_loop() -> None:
    store = MemoryRecordStore()
    store.fail_with = BrokerError(ErrorCode.not_enough_replicas)
    writer = RecordWriter(store, 0)
    ended: list[ErrorCode] = []

    def again(code: ErrorCode) -> None:
        ended.append(code)
        if code is not ErrorCode.none and len(ended) < 1_000:
            writer.write([record(1)], again)

    writer.write([record(0)], again)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.fail_with = None
    await writer.flush()
    assert ended[-1] is ErrorCode.none


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
    ended: list[int] = []
    for number, producer_id in enumerate((None, None, 1, 2, None)):
        if producer_id is None:
            writer.write([record(number)], lambda _, number=number: ended.append(number))  # type: ignore[misc]
        else:
            producer = ProducerIdAndEpoch(producer_id, 0)
            writer.write_now([record(number)], lambda _, number=number: ended.append(number), producer)  # type: ignore[misc]
    await writer.flush()
    assert store.runs[0] == [
        RecordRun((record(0), record(1))),
        RecordRun((record(2),), 1),
        RecordRun((record(3),), 2),
        RecordRun((record(4),)),
    ]
    assert ended == list(range(5))


async def test_producers_do_not_wait_for_each_others_replication() -> None:
    store = SyncingRecordStore()
    writer = RecordWriter(store, 0)
    ended: list[int] = []
    for number in range(3):
        producer = ProducerIdAndEpoch(number, 0)
        writer.write_now([record(number)], lambda _, number=number: ended.append(number), producer)  # type: ignore[misc]
    assert (store.appends, ended) == (3, [])
    store.gate.set()
    await writer.flush()
    assert ended == [0, 1, 2]


async def test_with_too_few_replicas_in_sync_nothing_waits_behind_what_may_never_be_committed() -> None:
    store = SyncingRecordStore()
    writer = RecordWriter(store, 0)
    ended: list[tuple[int, ErrorCode]] = []
    writer.write_now([record(1)], lambda code: ended.append((1, code)))
    store.fail_with = BrokerError(ErrorCode.not_enough_replicas)
    writer.write([record(2)], lambda code: ended.append((2, code)))
    writer.write_now([record(3)], lambda code: ended.append((3, code)))
    await asyncio.sleep(0)
    assert sorted(ended) == [(2, ErrorCode.not_enough_replicas), (3, ErrorCode.not_enough_replicas)]
    store.fail_with = None
    store.gate.set()
    writer.write([record(4)], lambda code: ended.append((4, code)))
    await writer.flush()
    assert ended[2:] == [(1, ErrorCode.none), (4, ErrorCode.none)]
    assert store.records[0] == [record(1), record(4)]


async def test_so_many_writes_wait_for_an_append_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer, "MOST_WAITING", 2)
    store = SyncingRecordStore()
    writer = RecordWriter(store, 0)
    ended: list[ErrorCode] = []
    for number in range(4):
        writer.write([record(number)], ended.append)  # no append is under way: any number may come together
    await asyncio.sleep(0)
    for number in range(4, 7):
        writer.write([record(number)], ended.append)
    await asyncio.sleep(0)
    assert ended == [ErrorCode.not_enough_replicas]
    store.gate.set()
    await writer.flush()
    assert ended[1:] == [ErrorCode.none] * 6


async def test_writes_are_joined_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer, "JOINED_BYTES", 12)
    store = MemoryRecordStore()
    writer = RecordWriter(store, 0)
    for number in range(8):  # four bytes each
        writer.write([record(number)], lambda _: None)
    writer.write([(b"key", b"larger than that")], lambda _: None)
    await writer.flush()
    assert [len(run.records) for run in store.runs[0]] == [3, 3, 2, 1]


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
    await asyncio.wait_for(written.wait(), 60)
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
    writer.transaction_ended(lambda _: told.append("event"))
    assert told == []
    store.gate.set()
    await writer.flush()
    assert told == ["before", "event", "after"]
    writer.transaction_ended(lambda _: told.append("at once"))
    assert told[-1] == "at once"


async def test_what_is_written_while_a_marker_is_on_its_way_ends_after_it() -> None:
    store = MemoryRecordStore()
    writer = RecordWriter(store, 0)
    told: list[str] = []
    marker = asyncio.get_running_loop().create_future()
    writer.transaction_ended(lambda _: told.append("marker"), marker)
    writer.write([record(1)], lambda _: told.append("collected"))
    writer.transaction_ended(lambda _: told.append("next marker"))
    await asyncio.sleep(0)
    assert (told, store.appends) == ([], 0)
    writer.write_now([record(2)], lambda _: told.append("collected, too"))
    writer.write_now([record(3)], lambda _: told.append("of a transaction"), ProducerIdAndEpoch(1, 0))
    assert (told, store.appends) == ([], 2)
    marker.set_result(None)
    await writer.flush()
    assert told == ["marker", "next marker", "collected", "collected, too", "of a transaction"]
    assert store.runs[0] == [RecordRun((record(1), record(2))), RecordRun((record(3),), 1)]


async def test_a_marker_that_is_never_written_is_told_and_holds_up_nothing() -> None:
    writer = RecordWriter(MemoryRecordStore(), 0)
    told: list[ErrorCode] = []
    marker = asyncio.get_running_loop().create_future()
    marker.set_exception(BrokerError(ErrorCode.kafka_storage_error))
    writer.transaction_ended(told.append, marker)
    writer.write([record(1)], told.append)
    await writer.flush()
    assert told == [ErrorCode.kafka_storage_error, ErrorCode.none]


async def test_parts_of_what_is_too_large_end_in_order_and_the_refused_one_at_once() -> None:
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
    assert told == [(b"far too large", refused), (b"small", none), (b"small too", none)]
