"""Batches before they are sent: when they are ready, in which order they go, how much memory they may take."""

from __future__ import annotations

import itertools
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.client.accumulator import Accumulator, PartitionQueue, TopicQueues
from broker.client.client_settings import ClientSettings
from broker.client.producer_batch import ProducerBatch, RecordFuture
from broker.errors import ConfigError, PykafkaError, RequestTimedOut
from broker.records.record import decode_records

FAR = 1e9
"""Seconds by which every linger is over."""


def accumulator(**properties: object) -> Accumulator:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return Accumulator(ClientSettings.from_properties(named), lambda: None)


def add(to: Accumulator, topic: TopicQueues, value: bytes = b"v", partition: int | None = 0) -> RecordFuture:
    return to.append(topic, partition, 1000, None, value, ())


def take_all(records: Accumulator, queue: PartitionQueue) -> list[ProducerBatch]:
    return list(itertools.takewhile(lambda batch: batch is not None, iter(lambda: records.take(queue), None)))


def values(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in decode_records(batch.payload())]


def test_a_batch_is_ready_when_it_has_lingered() -> None:
    records = accumulator(linger_ms=1000)
    topic = records.add_topic("t", 1)
    before = time.monotonic()
    add(records, topic)
    ready, look_again = records.ready(before)
    assert ready == []
    assert before + 1 <= look_again <= time.monotonic() + 1
    assert records.ready(look_again)[0] == [topic.queues[0]]


def test_a_full_batch_is_ready_at_once_and_the_next_record_opens_another() -> None:
    records = accumulator(batch_size=300, linger_ms=60_000)
    topic = records.add_topic("t", 1)
    for number in range(5):
        add(records, topic, b"%d" % number * 100)
    ready, _ = records.ready(time.monotonic())
    assert ready == [topic.queues[0]]
    batches = take_all(records, topic.queues[0])
    assert [batch.record_count for batch in batches] == [2, 2, 1]
    assert records.ready(FAR) == ([], math.inf)


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    records = accumulator(batch_size=100)
    topic = records.add_topic("t", 1)
    for size in (1, 500, 1):
        add(records, topic, b"x" * size)
    assert [batch.record_count for batch in take_all(records, topic.queues[0])] == [1, 1, 1]


def test_records_without_a_partition_stick_to_one_until_its_batch_is_full() -> None:
    records = accumulator(batch_size=300)
    topic = records.add_topic("t", 4)
    first = topic.sticky
    add(records, topic, b"x" * 100, partition=None)
    add(records, topic, b"x" * 100, partition=None)
    assert topic.sticky == first
    add(records, topic, b"x" * 100, partition=None)
    assert topic.sticky != first
    assert [queue.tp.partition for queue in records.ready(FAR)[0]] == [first, topic.sticky]


def test_partitions_take_turns() -> None:
    records = accumulator(batch_size=1)
    topic = records.add_topic("t", 2)
    for _ in range(2):
        add(records, topic, partition=0)
        add(records, topic, partition=1)
    order = []
    while ready := records.ready(FAR)[0]:
        order.append(ready[0].tp.partition)
        records.take(ready[0])
    assert order == [0, 1, 0, 1]


def test_a_failed_batch_goes_back_to_its_place_and_holds_up_its_partition() -> None:
    records = accumulator(batch_size=1)
    topic = records.add_topic("t", 1)
    (queue,) = topic.queues
    for number in range(4):
        add(records, topic, b"%d" % number)
    first, second, third = (records.take(queue) for _ in range(3))
    assert first
    assert second
    assert third
    records.reenqueue(queue, second, until=50.0)
    assert records.ready(FAR)[0] == [], "the first and third are still in flight"
    assert queue.has_earlier(third)
    records.reenqueue(queue, third, until=50.0)
    records.complete(queue, first)
    assert records.ready(49.0) == ([], 50.0)
    assert records.ready(50.0)[0] == [queue]
    assert [values(batch) for batch in take_all(records, queue)] == [[b"1"], [b"2"], [b"3"]]


def test_a_flush_makes_everything_ready_and_waits_for_it() -> None:
    records = accumulator(linger_ms=60_000)
    topic = records.add_topic("t", 1)
    future = add(records, topic)
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(records.flush, 30.0)
        while not records.ready(0.0)[0]:
            assert not flushed.done()
        batch = records.take(topic.queues[0])
        assert batch is not None
        records.complete(topic.queues[0], batch)
        batch.succeed(7)
        assert flushed.result(30)
    assert future.result(0).offset == 7


def test_a_flush_that_is_not_done_in_time_says_so() -> None:
    records = accumulator()
    add(records, records.add_topic("t", 1))
    assert not records.flush(0.01)
    assert accumulator().flush(0), "nothing to flush is flushed"


def test_a_full_buffer_makes_the_next_record_wait_and_then_fail() -> None:
    records = accumulator(batch_size=1000, buffer_memory=1000, max_block_ms=50)
    topic = records.add_topic("t", 2)
    add(records, topic, b"x" * 800)
    with pytest.raises(RequestTimedOut, match=r"buffer\.memory=1000 stayed full for max\.block\.ms=50"):
        add(records, topic, partition=1)


def test_a_record_that_waits_for_memory_makes_batches_ready_and_gets_what_they_free() -> None:
    records = accumulator(batch_size=1000, buffer_memory=1000, linger_ms=60_000)
    topic = records.add_topic("t", 2)
    add(records, topic, b"x" * 800)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(add, records, topic, b"later", 1)
        while not records.ready(0.0)[0]:
            assert not waiting.done()
        batch = records.take(topic.queues[0])
        assert batch is not None
        records.complete(topic.queues[0], batch)
        assert not waiting.result(30).done()


def test_a_record_that_can_never_fit_is_refused_at_once() -> None:
    records = accumulator(buffer_memory=1000, batch_size=10)
    with pytest.raises(ConfigError, match=r"larger than buffer\.memory=1000"):
        add(records, records.add_topic("t", 1), b"x" * 1000)


def test_memory_that_a_small_batch_reserved_and_did_not_use_is_free_once_it_is_closed() -> None:
    records = accumulator(batch_size=1000, buffer_memory=2000, max_block_ms=0)
    topic = records.add_topic("t", 8)
    for partition in range(8):
        add(records, topic, b"small", partition=partition)
        records.take(topic.queues[partition])
        assert records.used < 1000


def test_batches_too_old_are_given_out_as_expired() -> None:
    records = accumulator(batch_size=1, delivery_timeout_ms=1000)
    topic = records.add_topic("t", 1)
    add(records, topic, b"a")
    add(records, topic, b"b")
    assert records.expired(time.monotonic()) == []
    assert [values(batch) for _, batch in records.expired(FAR)] == [[b"a"], [b"b"]]
    assert records.ready(FAR)[0] == []


def test_closing_refuses_records_and_makes_the_rest_ready() -> None:
    records = accumulator(linger_ms=60_000)
    topic = records.add_topic("t", 1)
    add(records, topic)
    records.close()
    with pytest.raises(PykafkaError, match="this producer was closed"):
        add(records, topic)
    assert records.ready(0.0)[0] == topic.queues
    assert not records.empty
    assert len(records.drain()) == 1


def test_closing_wakes_a_record_that_waits_for_memory() -> None:
    records = accumulator(batch_size=1000, buffer_memory=1000)
    topic = records.add_topic("t", 1)
    add(records, topic, b"x" * 800)
    closer = threading.Timer(0.05, records.close)
    closer.start()
    with pytest.raises(PykafkaError, match="closed"):
        add(records, topic, b"x" * 800)
    closer.join()


def test_a_topic_grows_and_keeps_its_queues() -> None:
    records = accumulator()
    topic = records.add_topic("t", 1)
    queue = topic.queues[0]
    assert records.add_topic("t", 3) is topic
    assert topic.queues[0] is queue
    assert [q.tp.partition for q in topic.queues] == [0, 1, 2]


def test_threads_append_without_losing_or_doubling_a_record() -> None:
    records = accumulator(batch_size=500)
    topic = records.add_topic("t", 3)

    def produce(thread: int) -> None:
        for number in range(500):
            add(records, topic, b"%d-%d" % (thread, number), partition=None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(produce, range(4)))
    seen = [value for queue in topic.queues for batch in take_all(records, queue) for value in values(batch)]
    assert sorted(seen) == sorted(b"%d-%d" % (t, n) for t in range(4) for n in range(500))  # type: ignore[type-var]
