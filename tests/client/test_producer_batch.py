"""A batch's futures: settled together, callbacks called once, whatever the order."""

from __future__ import annotations

import logging

import pytest

from broker.client.producer_batch import ProducerBatch, RecordFuture, RecordMetadata
from broker.client.producer_id import ProducerIdentity
from broker.errors import RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header, verify_batch
from broker.records.builder import BatchBuilder


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
