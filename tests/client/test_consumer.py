"""Consuming assigned partitions: what poll returns, where it goes on, and what it says when it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.batch_producer import produce_batches
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.fetch_protocol import receive_fetch, send_fetch
from broker.client.producer import Producer
from broker.errors import BrokerError, ConfigError, CorruptBatch, ErrorCode, PykafkaError
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition
from broker.records.builder import BatchBuilder
from tests.client.conftest import TopicMaker
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

EARLIEST = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 50}


def batch(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for number, value in enumerate(values):
        builder.append(1000 + number, b"k", value, (("h", b"1"),))
    return builder.build()


def poll_until(consumer: Consumer, count: int, seconds: float = 30.0) -> list[ConsumerRecord]:
    """Poll until `count` records have come, or nothing came for a while."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        polled = consumer.poll(seconds)
        assert polled, f"only {len(records)} of {count} records came"
        records += polled
    return records


@pytest.fixture
def tp(cluster: Cluster, make_topic: TopicMaker) -> TopicPartition:
    """A partition with the records 0 to 9, two to a batch."""
    tp = TopicPartition(make_topic(2), 0)
    produce_batches(cluster, tp, [batch(b"%d" % n, b"%d" % (n + 1)) for n in range(0, 10, 2)])
    return tp


@pytest.fixture
def consumer(broker: Kafka) -> Iterator[Consumer]:
    with Consumer(broker.bootstrap, EARLIEST) as opened:
        yield opened


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def test_a_record_says_where_it_was_and_what_it_holds(consumer: Consumer, tp: TopicPartition) -> None:
    consumer.assign([tp])
    second = poll_until(consumer, 2)[1]
    assert second == ConsumerRecord(tp.topic, 0, 1, 1001, b"k", b"1", (("h", b"1"),), 0)


def test_reading_goes_on_where_the_last_poll_ended(broker: Kafka, tp: TopicPartition) -> None:
    with Consumer(broker.bootstrap, {**EARLIEST, "max.poll.records": 3}) as consumer:
        consumer.assign([tp])
        polls = [consumer.poll(10) for _ in range(4)]
        assert [offsets(poll) for poll in polls] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        assert consumer.position(tp) == 10
        assert consumer.poll(0.1) == []


def test_latest_sees_only_what_comes_later(broker: Kafka, cluster: Cluster, tp: TopicPartition) -> None:
    with Consumer(broker.bootstrap, {"fetch.max.wait.ms": 50}) as consumer:
        consumer.assign([tp])
        assert consumer.poll(0.2) == []
        assert consumer.position(tp) == 10  # a poll that ended before it had asked for the end would begin later
        produce_batches(cluster, tp, [batch(b"new")])
        assert [record.value for record in poll_until(consumer, 1)] == [b"new"]


def test_seeking(consumer: Consumer, tp: TopicPartition) -> None:
    consumer.assign([tp])
    consumer.seek(tp, 7)
    assert offsets(poll_until(consumer, 3)) == [7, 8, 9]
    consumer.seek_to_beginning()
    assert offsets(poll_until(consumer, 10)) == list(range(10))
    consumer.seek_to_end([tp])
    assert consumer.position(tp) == 10
    consumer.seek(tp, 2)
    assert poll_until(consumer, 1)[0].offset == 2, "what was fetched before the seek is not returned"


def test_going_back_stops_at_the_first_record(consumer: Consumer, cluster: Cluster, tp: TopicPartition) -> None:
    consumer.assign([tp])
    poll_until(consumer, 10)
    consumer.rewind(3)
    assert offsets(poll_until(consumer, 3)) == [7, 8, 9]
    consumer.rewind(100, [tp])
    assert consumer.position(tp) == 0
    assert offsets(poll_until(consumer, 10)) == list(range(10))


def test_reading_begins_at_a_time(consumer: Consumer, cluster: Cluster, tp: TopicPartition) -> None:
    later = BatchBuilder()
    later.append(5000, None, b"later")
    produce_batches(cluster, tp, [later.build()])
    consumer.assign([tp])
    consumer.seek_to_times({tp: 2000})
    assert offsets(poll_until(consumer, 1)) == [10]
    consumer.seek_to_times({tp: 6000})
    assert consumer.position(tp) == 11


def test_lag_is_the_way_to_the_end(consumer: Consumer, tp: TopicPartition) -> None:
    consumer.assign([tp])
    consumer.seek(tp, 4)
    assert consumer.lag() == {tp: 6}
    poll_until(consumer, 6)
    assert consumer.lag([tp]) == {tp: 0}


def test_offsets_are_told(consumer: Consumer, tp: TopicPartition) -> None:
    assert consumer.beginning_offsets([tp]) == {tp: 0}
    assert consumer.end_offsets([tp]) == {tp: 10}
    assert consumer.offsets_for_times({tp: 1001})[tp][:2] == (1, 1001)


def test_a_paused_partition_is_silent_until_it_is_resumed(
    consumer: Consumer, cluster: Cluster, tp: TopicPartition
) -> None:
    other = tp._replace(partition=1)
    produce_batches(cluster, other, [batch(b"other")])
    consumer.assign([tp, other])
    consumer.pause([tp])
    assert [record.partition for record in poll_until(consumer, 1)] == [1]
    assert consumer.poll(0.1) == []
    consumer.resume([tp])
    assert len(poll_until(consumer, 10)) == 10


def test_what_was_fetched_of_a_paused_partition_is_kept(broker: Kafka, tp: TopicPartition) -> None:
    with Consumer(broker.bootstrap, {**EARLIEST, "max.poll.records": 3}) as consumer:
        consumer.assign([tp])
        assert offsets(poll_until(consumer, 3)) == [0, 1, 2]
        consumer.pause([tp])
        assert consumer.poll(0.1) == []
        consumer.resume([tp])
        assert offsets(poll_until(consumer, 7)) == [3, 4, 5, 6, 7, 8, 9]
        assert consumer.stats().total.batches == 5, "fetched once"
        consumer.pause([tp])
        consumer.seek(tp, 8)
        consumer.resume([tp])
        assert offsets(poll_until(consumer, 2)) == [8, 9]


def test_a_busy_partition_is_not_held_up_by_a_quiet_one(broker: Kafka, tp: TopicPartition) -> None:
    slow = {**EARLIEST, "fetch.max.wait.ms": 60_000, "max.poll.records": 2, "max.partition.fetch.bytes": 1}
    with Consumer(broker.bootstrap, slow) as consumer:
        consumer.assign([tp, tp._replace(partition=1)])
        assert offsets(poll_until(consumer, 10)) == list(range(10))


def test_partitions_take_turns_where_a_response_has_room_for_one(
    broker: Kafka, cluster: Cluster, tp: TopicPartition
) -> None:
    """As with a quota. Otherwise a busy partition would leave nothing for those after it."""
    other = tp._replace(partition=1)
    produce_batches(cluster, other, [batch(b"%d" % n, b"%d" % (n + 1)) for n in range(0, 10, 2)])
    with Consumer(broker.bootstrap, {**EARLIEST, "fetch.max.bytes": 1}) as consumer:
        consumer.assign([tp, other])
        assert [record.partition for record in poll_until(consumer, 20)] == [0, 0, 1, 1] * 5


def test_offsets_out_of_range_are_reset_or_raised(broker: Kafka, consumer: Consumer, tp: TopicPartition) -> None:
    consumer.assign([tp])
    consumer.seek(tp, 1000)
    assert poll_until(consumer, 1)[0].offset == 0
    with Consumer(broker.bootstrap, {"auto.offset.reset": "none"}) as strict:
        strict.assign([tp])
        with pytest.raises(BrokerError, match=f"{tp} has no committed offset, and auto.offset.reset=none") as raised:
            strict.poll(60)
        assert raised.value.code is ErrorCode.offset_out_of_range
        strict.seek(tp, 1000)
        with pytest.raises(BrokerError, match="at offset 1000, and auto"):
            strict.poll(60)


def test_a_missing_topic_is_an_error(consumer: Consumer, topic: str) -> None:
    consumer.assign([TopicPartition(topic, 0)])
    with pytest.raises(BrokerError, match=f"there is no topic '{topic}'"):
        consumer.poll(60)


def test_offsets_are_committed_and_found_by_the_next_consumer(broker: Kafka, tp: TopicPartition, group: str) -> None:
    properties = {**EARLIEST, "group.id": group, "enable.auto.commit": False}
    with Consumer(broker.bootstrap, properties) as first:
        first.assign([tp])
        poll_until(first, 10)
        assert first.committed([tp]) == {}
        first.commit({tp: 4})
    with Consumer(broker.bootstrap, properties) as second:
        second.assign([tp])
        assert offsets(poll_until(second, 6)) == [4, 5, 6, 7, 8, 9]
        second.commit()
        assert second.committed([tp]) == {tp: 10}


def test_automatic_commits_follow_what_was_returned(broker: Kafka, tp: TopicPartition, group: str) -> None:
    properties = {**EARLIEST, "group.id": group, "auto.commit.interval.ms": 0, "max.poll.records": 4}
    with Consumer(broker.bootstrap, properties) as consumer:
        consumer.assign([tp])
        assert offsets(consumer.poll(10)) == [0, 1, 2, 3]
        consumer.poll(10)
        assert consumer.committed([tp]) == {tp: 4}, "the second poll committed what the first returned"
    with Consumer(broker.bootstrap, properties) as after:
        assert after.committed([tp]) == {tp: 8}, "close committed the rest"


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda c: c.subscribe(["t"]), "group.id is missing: set it, or use assign"),
        (lambda c: c.commit(), "group.id is missing"),
        (lambda c: c.committed([]), "group.id is missing"),
        (lambda c: c.subscribe(), "subscribe to topics, to a pattern, or to all but those of exclude"),
        (lambda c: c.subscribe(["t"], pattern="t"), "subscribe to topics or to a pattern"),
    ],
)
def test_calls_that_cannot_be_meant_are_refused(
    consumer: Consumer, act: Callable[[Consumer], object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        act(consumer)


def test_assigning_and_subscribing_exclude_each_other(broker: Kafka, tp: TopicPartition, group: str) -> None:
    with Consumer(broker.bootstrap, {"group.id": group}) as consumer:
        with pytest.raises(ConfigError, match="no regular expression"):
            consumer.subscribe(pattern="(")
        with pytest.raises(ConfigError, match=r"subscribe to a list of topics: \['t'\]"):
            consumer.subscribe("t")
        consumer.assign([tp])
        with pytest.raises(ConfigError, match=r"subscribe\(\) after assign\(\): unsubscribe\(\) first"):
            consumer.subscribe([tp.topic])
        consumer.unsubscribe()
        consumer.subscribe([tp.topic])
        with pytest.raises(ConfigError, match=r"assign\(\) after subscribe\(\)"):
            consumer.assign([tp])


def test_positions_of_partitions_that_are_not_assigned_are_refused(consumer: Consumer, tp: TopicPartition) -> None:
    for act in (lambda: consumer.seek(tp, 0), lambda: consumer.position(tp), lambda: consumer.pause([tp])):
        with pytest.raises(PykafkaError, match=f"{tp} is not assigned to this consumer"):
            act()


def test_a_closed_consumer_does_not_poll(consumer: Consumer) -> None:
    consumer.close()
    consumer.close()
    with pytest.raises(PykafkaError, match="this consumer was closed"):
        consumer.poll()


def test_a_corrupt_batch_is_raised_after_what_is_good_and_can_be_sought_past(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    process, tp = broker_factory(), TopicPartition("t", 0)
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("t")
        produce_batches(cluster, tp, [batch(b"good"), batch(b"spoilt"), batch(b"fine")])
    (segment,) = process.data_dir.rglob("t-0/*.log")
    data = segment.read_bytes()
    with segment.open("r+b") as file:  # under the running broker: it sends what is there
        file.seek(data.index(b"spoilt"))
        file.write(b"S")
    with Consumer(process.bootstrap, EARLIEST) as consumer:
        consumer.assign([tp])
        assert [record.value for record in poll_until(consumer, 1)] == [b"good"]
        for _ in range(2):
            with pytest.raises(CorruptBatch, match="offset 1"):
                consumer.poll(60)
        assert consumer.position(tp) == 1
        consumer.seek(tp, 2)
        assert [record.value for record in poll_until(consumer, 1)] == [b"fine"]


def test_a_restarted_broker_is_found_again(
    broker_factory: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.client.cluster._WARN_AFTER_S", -1)
    process, tp = broker_factory(), TopicPartition("t", 0)
    with Producer(process.bootstrap) as producer, Consumer(process.bootstrap, EARLIEST) as consumer:
        producer.send("t", b"before").result(30)
        consumer.assign([tp])
        assert [record.value for record in poll_until(consumer, 1)] == [b"before"]
        process.kill()

        def says_that_it_tries_again() -> bool:
            assert consumer.poll(0.1) == []
            said = [record.getMessage() for record in caplog.records if record.threadName == "MainThread"]
            return any(text.startswith("no broker") and text.endswith("; trying again") for text in said)

        eventually(says_that_it_tries_again)
        process.start()
        producer.send("t", b"after").result(30)
        assert [record.value for record in poll_until(consumer, 1)] == [b"after"]


def test_a_partition_whose_fetch_fails_is_not_fetched_again_at_once(
    consumer: Consumer, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[float] = []

    def refused(*args: Any, **kwargs: Any) -> list[FetchedPartition]:
        found = receive_fetch(*args, **kwargs)
        return [one._replace(error=ErrorCode.not_leader_or_follower, records=memoryview(b"")) for one in found]

    def counted(*args: Any, **named: Any) -> None:
        sent.append(time.monotonic())
        send_fetch(*args, **named)

    monkeypatch.setattr("broker.client.leader_fetches.receive_fetch", refused)
    monkeypatch.setattr("broker.client.leader_fetches.send_fetch", counted)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    eventually(lambda: consumer.poll(0.5) == [] and len(sent) > 5)
    assert min(later - earlier for earlier, later in pairwise(sent)) > 0.09, "every retry.backoff.ms"
    monkeypatch.setattr("broker.client.leader_fetches.receive_fetch", receive_fetch)
    assert len(poll_until(consumer, 10)) == 10


def test_while_a_leader_is_unreachable_it_is_tried_seldom_and_others_are_looked_for(
    broker_factory: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = broker_factory({"broker.id": "1"}, name="leader"), broker_factory({"broker.id": "2"}, name="other")
    tp, connected, renewed = TopicPartition("t", 0), list[float](), list[float]()
    open_connection, refresh = Cluster.open_connection, Cluster._refresh

    def counted(cluster: Cluster, node: Node) -> BrokerConnection:
        connected.append(time.monotonic())
        return open_connection(cluster, node)

    def noted(cluster: Cluster, topics: Any) -> None:
        renewed.append(time.monotonic())
        refresh(cluster, topics)

    with Cluster(other.bootstrap) as cluster:
        Admin(cluster).create_topics([NewTopic("t", assignment=((1,),))])
        produce_batches(cluster, tp, [batch(b"0")])
    with Consumer(other.bootstrap, EARLIEST) as consumer:
        consumer.assign([tp])
        poll_until(consumer, 1)
        leader.kill()
        monkeypatch.setattr(Cluster, "open_connection", counted)
        monkeypatch.setattr(Cluster, "_refresh", noted)
        eventually(lambda: consumer.poll(1.0) == [] and len(connected) > 2 and len(renewed) > 20)
        # Pauses of 40 ms or more, doubled five times, then of 0.8 s: reconnect.backoff.ms less a fifth, at random.
        assert len(connected) < 7 + (connected[-1] - connected[0]) / 0.8, "reconnect.backoff.ms doubles"
        assert len(renewed) < 20 * (renewed[-1] - renewed[0]), "every retry.backoff.ms"
        leader.start()
        produce_batches(consumer.cluster, tp, [batch(b"1")])
        assert [record.value for record in poll_until(consumer, 1)] == [b"1"]
