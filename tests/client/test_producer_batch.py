"""A batch's futures: settled together, callbacks called once, whatever the order."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from broker.client.produce_request import ProducerIdentity
from broker.client.producer_batch import ProducerBatch, RecordFuture, RecordMetadata
from broker.errors import RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header, verify_batch
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import decode_records


@pytest.fixture
def batch() -> ProducerBatch:
    return ProducerBatch(
        TopicPartition("t", 3), BatchBuilder(max_bytes=200), order=1, created=0.0, expires=1.0, reserved=0
    )


def append(batch: ProducerBatch, timestamp: int = 1000) -> RecordFuture:
    future = batch.append(timestamp, b"k", b"v", ())
    assert future is not None
    return future


def test_every_record_learns_its_own_offset(batch: ProducerBatch) -> None:
    first, second = append(batch, 1000), append(batch, 2000)
    assert not first.done()
    batch.succeed(40)
    assert first.result() == RecordMetadata("t", 3, 40, 1000)
    assert second.result() == RecordMetadata("t", 3, 41, 2000)
    assert second.exception() is None


@pytest.mark.parametrize(
    "end", [lambda batch: batch.succeed(7), lambda batch: batch.fail(OSError()), ProducerBatch.split]
)
def test_a_batch_that_is_done_holds_no_records(batch: ProducerBatch, end: Callable[[ProducerBatch], object]) -> None:
    future = append(batch)
    append(batch)
    batch.payload()
    end(batch)
    assert (batch.size, batch.record_count) == (0, 2)
    if batch.halves is None:
        assert future.done()


def test_the_brokers_time_wins_where_it_stamps_records(batch: ProducerBatch) -> None:
    future = append(batch)
    batch.succeed(0, log_append_time=5)
    assert future.result().timestamp == 5


def test_without_an_acknowledgement_there_is_no_offset(batch: ProducerBatch) -> None:
    future = append(batch)
    batch.succeed(-1)
    assert future.result().offset == -1


def test_a_failure_is_every_records_failure(batch: ProducerBatch) -> None:
    future, error = append(batch), RuntimeError("lost")
    batch.fail(error)
    assert future.exception() is error
    with pytest.raises(RuntimeError, match="lost"):
        future.result()


def test_waiting_in_vain_names_the_partition(batch: ProducerBatch) -> None:
    with pytest.raises(RequestTimedOut, match=r"a record for t-3 was not acknowledged within 0\.01 s"):
        append(batch).result(0.01)


def test_callbacks_come_once_before_or_after_it_is_settled(
    batch: ProducerBatch, caplog: pytest.LogCaptureFixture
) -> None:
    future, seen = append(batch), list[int]()
    future.add_done_callback(lambda _: seen.append(1))
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(lambda f: seen.append(f.result().offset))
    with caplog.at_level(logging.ERROR):
        batch.succeed(9)
    assert "a delivery callback failed" in caplog.text
    future.add_done_callback(lambda _: seen.append(3))
    assert seen == [1, 9, 3]


def test_a_full_batch_takes_no_more(batch: ProducerBatch) -> None:
    append(batch)
    assert batch.append(0, None, b"x" * 500, ()) is None
    assert batch.record_count == 1


def test_a_stamped_batch_is_valid_and_can_be_stamped_again(batch: ProducerBatch) -> None:
    append(batch)
    for identity, sequence in ((ProducerIdentity(7, 1), 10), (ProducerIdentity(8, 0), 0)):
        batch.stamp(identity, sequence)
        payload = batch.payload()
        header = parse_header(payload)
        verify_batch(payload, 0, header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (*identity, sequence)
        assert batch.identity == identity


def test_the_halves_of_a_batch_tell_its_futures_what_became_of_them(batch: ProducerBatch) -> None:
    called: list[RecordFuture] = []
    futures = [append(batch, 1000 + n) for n in range(5)]
    futures[3].add_done_callback(called.append)
    first, second = batch.split()
    assert (first.record_count, second.record_count) == (2, 3)
    assert (first.order, second.order) == (1, 3)
    assert not any(future.done() for future in futures)
    assert not batch.wait(0)
    first.succeed(10)
    assert [future.done() for future in futures] == [True, True, False, False, False]
    assert called == []
    second.fail(ValueError("no"))
    assert futures[1].result(0) == RecordMetadata("t", 3, 11, 1001)
    assert isinstance(futures[4].exception(0), ValueError)
    assert called == [futures[3]]
    assert batch.wait(0)


@pytest.mark.parametrize("ready_made", [False, True])
def test_halves_keep_the_sequence_numbers_the_codec_and_the_transaction(ready_made: bool) -> None:
    builder = BatchBuilder(max_bytes=10_000, codec=Codec.GZIP, transactional=True)
    rows = [(1004 - n, None if n == 1 else b"k", b"%d" % n, (("h", b"x"),) if n == 2 else ()) for n in range(5)]
    for row in rows:
        builder.append(*row)
    content = builder.build() if ready_made else builder
    whole = ProducerBatch(
        TopicPartition("t", 0), content, order=1, created=0.0, expires=1.0, reserved=9, record_count=5
    )
    whole.stamp(ProducerIdentity(7, 2), 2**31 - 2)
    first, second = whole.split()
    headers = [parse_header(half.payload()) for half in (first, second)]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [(7, 2, 2**31 - 2), (7, 2, 0)]
    assert [(h.codec, h.is_transactional) for h in headers] == [(Codec.GZIP, True)] * 2
    assert [h.record_count for h in headers] == [2, 3]
    read = [
        (r.timestamp, r.key, r.value, r.headers) for half in (first, second) for r in decode_records(half.payload())
    ]
    assert read == rows
    assert first.reserved + second.reserved == 9


def test_a_callback_added_after_the_split_is_called(batch: ProducerBatch) -> None:
    futures, called = [append(batch) for _ in range(2)], list[RecordFuture]()
    first, second = batch.split()
    futures[1].add_done_callback(called.append)
    first.succeed(0)
    assert called == []
    second.succeed(1)
    assert called == [futures[1]]
