"""A log loses its end, as a power loss may take it, and grows again: whoever had read further is told (KIP-320)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka
import pytest

from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.fetcher import Fetcher
from broker.client.partition_offsets import Position, Truncation, find_truncations
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from spark_connector.errors import DataLoss
from spark_connector.maintenance import verify
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.plain_loads import PlainLoads
from tests.support.raw_requests import Requests, ask_for
from tests.support.stream_calls import ALL, Reader, as_spark_does, planned, reader, values
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)
READ, KEPT, WRITTEN = 100, 60, 80
OLD = [b"old %d" % number for number in range(READ)]
NEW = [b"new %d" % number for number in range(WRITTEN)]


def read_with(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for record in consumer.poll(1.0)]
    return found


def confluent(broker: BrokerProcess, **settings: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "confluent" + settings["auto.offset.reset"],
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **settings,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TP.topic, TP.partition, 0)])
    return consumer


def read_confluent(consumer: confluent_kafka.Consumer, done: Callable[[list[object]], bool]) -> list[object]:
    """Values, and the errors that concern the partition."""
    found: list[object] = []
    deadline = time.monotonic() + 30
    while not done(found) and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value())
        elif error.code() not in (confluent_kafka.KafkaError._TRANSPORT, confluent_kafka.KafkaError._ALL_BROKERS_DOWN):
            found.append(error)
    return found


def cut_the_log(directory: Path, records: int) -> None:
    """Each record is a batch of its own."""
    [path] = directory.glob("*.log")
    data = path.read_bytes()
    position, _ = list(walk_batches(data))[records]
    path.write_bytes(data[:position])


def test_whoever_was_ahead_of_a_log_that_lost_its_end_is_told(broker_factory: BrokerFactory) -> None:
    broker = broker_factory({"offsets.topic.num.partitions": "1"})
    with Requests(broker.bootstrap) as requests:
        requests.create("t")
        for value in OLD:
            requests.put("t", value)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": "false"}
    ours = Consumer({**settings, "auto.offset.reset": "earliest"})
    strict = Consumer({**settings, "auto.offset.reset": "none"})
    at_the_end = Consumer({**settings, "auto.offset.reset": "none"})
    for consumer, start in ((ours, 0), (strict, 0), (at_the_end, READ)):
        consumer.assign([TP])
        consumer.seek(TP, start)
    group = Consumer({**settings, "auto.offset.reset": "earliest", "group.id": "g"})
    group.assign([TP])
    theirs = confluent(broker, **{"auto.offset.reset": "earliest"})
    strict_theirs = confluent(broker, **{"auto.offset.reset": "error"})
    cluster = Cluster(broker.bootstrap)
    fetcher = Fetcher(cluster, TP)
    try:
        assert read_with(ours, READ) == read_with(strict, READ) == read_with(group, READ) == OLD
        assert at_the_end.poll(1.0) == [], "and it knows that there is nothing"
        group.commit()
        group.close()
        for their_consumer in (theirs, strict_theirs):
            assert read_confluent(their_consumer, lambda found: len(found) == READ) == OLD
        assert fetcher.fetch(0).next_offset == READ

        broker.kill()
        cut_the_log(broker.data_dir / "broker" / "t-0", KEPT)
        broker.start()
        with Requests(broker.bootstrap) as requests:
            assert requests.metadata("t").topics[0].partitions[0].leader_epoch == 1
            for value in NEW:
                requests.put("t", value)
            assert requests.list_offset("t", -1).offset == KEPT + WRITTEN
            for epoch, code in ((0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)):
                [found] = requests.fetch([ask_for("t", READ, epoch=epoch)], version=12)
                assert found.error_code is code
            assert [end_of(requests, epoch) for epoch in (0, 1)] == [(0, KEPT), (1, KEPT + WRITTEN)]

        assert read_with(ours, WRITTEN) == NEW, "it goes on where the log parts from what it had read"
        for consumer in (strict, at_the_end):
            with pytest.raises(BrokerError, match="t-0 was truncated: it was read up to offset 100") as raised:
                read_with(consumer, 1)
            assert raised.value.code is ErrorCode.offset_out_of_range
        resumed = Consumer({**settings, "auto.offset.reset": "earliest", "group.id": "g"})
        resumed.assign([TP])
        assert read_with(resumed, WRITTEN) == NEW, "the leader epoch is committed with the offset"
        resumed.close()
        with pytest.raises(BrokerError, match="t-0 was truncated"):
            fetcher.fetch(READ)
        assert read_confluent(theirs, lambda found: len(found) == WRITTEN) == NEW
        [error] = read_confluent(strict_theirs, lambda found: len(found) == 1)
        assert isinstance(error, confluent_kafka.KafkaError)
        assert "truncat" in error.str().lower()
    finally:
        for closing in (ours, strict, at_the_end, group, theirs, strict_theirs):
            closing.close()
        fetcher.close()
        cluster.close()


def test_loads_that_were_ahead_of_a_log_that_lost_its_end_are_told(
    broker_factory: BrokerFactory, tmp_path: Path, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_factory()
    with Requests(broker.bootstrap) as requests:
        for topic in ("t", "u"):
            requests.create(topic)
            requests.put(topic, b"old")
        for value in OLD[1:]:
            requests.put("t", value)
    asked: list[dict[TopicPartition, Position]] = []

    def find(cluster: Cluster, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Truncation]:
        asked.append(dict(positions))
        return find_truncations(cluster, positions)

    monkeypatch.setattr("spark_connector.read.offset_reader.find_truncations", find)

    def loads_in(kept: str, **options: str) -> PlainLoads:
        at = f"{zookeeper}/lost-tail" if kept == "zookeeper" else None
        return PlainLoads(broker.bootstrap, "t,u", tmp_path / kept, group="g", zookeeper=at, options=options)

    def both(**options: str) -> list[list[tuple[str, int, int]]]:
        every = [loads_in(kept, **options).load().ranges for kept in ("files", "zookeeper")]
        return [[(range.topic, range.start, range.end) for range in ranges] for ranges in every]

    assert both() == [[("t", 0, READ), ("u", 0, 1)]] * 2
    broker.restart()
    with Requests(broker.bootstrap) as requests:
        requests.put("u", b"more")
    assert both() == [[("u", 1, 2)]] * 2, "a restart alone is none of their business"
    assert asked == [{TP: Position(READ, 0), TopicPartition("u", 0): Position(1, 0)}] * 2, "in one request"
    assert both() == [[], []]
    assert asked[2:] == [{TP: Position(READ, 0)}] * 2, "of a log that was loaded under this leader nothing is asked"

    broker.kill()
    cut_the_log(broker.data_dir / "broker" / "t-0", KEPT)
    broker.start()
    with Requests(broker.bootstrap) as requests:
        for value in NEW:
            requests.put("t", value)
    lost = f"PARTITION_OFFSET_CHANGED.*t-0 was loaded up to offset {READ}, but its log was truncated to {KEPT} since"
    for kept in ("files", "zookeeper"):
        with pytest.raises(DataLoss, match=lost):
            loads_in(kept).load()
        found = verify(loads_in(kept).target, broker.bootstrap).loads
        noted = f"t-0: the log was truncated to {KEPT} since; its records up to {READ - 1} are not the loaded ones"
        assert [load.unread[-1:] for load in found] == [(noted,), ()]
    assert both(failOnDataLoss="false") == [[("t", KEPT, KEPT + WRITTEN)]] * 2, "nothing written since is skipped"
    assert both() == [[], []]


def test_a_stream_that_was_ahead_of_a_log_that_lost_its_end_is_told(
    broker_factory: BrokerFactory, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_factory()
    with Requests(broker.bootstrap) as requests:
        for topic in ("t", "u"):
            requests.create(topic)
            requests.put(topic, b"old")
        for value in OLD[1:]:
            requests.put("t", value)

    def query(**options: str) -> Reader:
        where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t,u", "startingOffsets": "earliest"}
        made = reader({**where, **options})
        request.addfinalizer(made.stop)
        return made

    running = query()
    first = as_spark_does(running.latestOffset(as_spark_does(running.initialOffset()), ALL))
    assert first["topics"] == {"t": {"0": READ}, "u": {"0": 1}}
    assert first["epochs"] == {"t": {"0": 0}, "u": {"0": 0}}
    broker.restart()
    assert as_spark_does(running.latestOffset(first, ALL)) == first, "a restart alone is no batch"
    with Requests(broker.bootstrap) as requests:
        requests.put("u", b"more")
    second = as_spark_does(running.latestOffset(first, ALL))
    assert second["topics"] == {"t": {"0": READ}, "u": {"0": 2}}
    assert second["epochs"] == {"t": {"0": 1}, "u": {"0": 1}}

    broker.kill()
    cut_the_log(broker.data_dir / "broker" / "t-0", KEPT)
    broker.start()
    with Requests(broker.bootstrap) as requests:
        for number in range(2 * READ):  # more than there was
            requests.put("t", b"new %d" % number)
    lost = f"t-0 was truncated: it was read up to offset {READ}, and its leader epoch 1 now ends at offset {KEPT}"
    for strict in (running, query()):
        with pytest.raises(DataLoss, match=f"PARTITION_OFFSET_CHANGED.*{lost}"):
            strict.latestOffset(second, ALL)
    lenient = query(failOnDataLoss="false")
    third = as_spark_does(lenient.latestOffset(second, ALL))
    assert lost in caplog.text
    assert third["added"] == {"t": {"0": KEPT}}
    assert planned(lenient, second, third) == [(0, KEPT, KEPT + 2 * READ)], "nothing written since is skipped"
    assert values(lenient, second, third) == [b"new %d" % number for number in range(2 * READ)]
    assert as_spark_does(query().latestOffset(third, ALL)) == third, "the loss is told once"


def end_of(requests: Requests, epoch: int) -> tuple[int, int]:
    row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [row]}]}
    answer = requests.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, body).topics[0].partitions[0]
    return answer.leader_epoch, answer.end_offset


def test_every_start_raises_the_epoch_and_a_new_one_is_seen_by_the_other_brokers(broker_factory: BrokerFactory) -> None:
    first = broker_factory({"broker.id": "1"}, name="first")
    other = broker_factory({"broker.id": "2"}, name="other")
    with Requests(other.bootstrap) as asked:
        asked.create("t", 8)

        def led() -> dict[int, set[int]]:
            """The leader epochs of the partitions of each leader; -1 has those that are without one."""
            epochs: dict[int, set[int]] = {}
            for partition in asked.metadata("t").topics[0].partitions:
                epochs.setdefault(partition.leader_id, set()).add(partition.leader_epoch)
            return epochs

        def raised_above(epoch: int) -> bool:
            seen = led()
            return seen.keys() == {1, 2} and min(seen[1]) > epoch and seen[2] == {0}

        assert led() == {1: {0}, 2: {0}}
        first.restart()
        eventually(lambda: raised_above(0))
        before = max(led()[1])
        first.kill()
        first.start()
        eventually(lambda: raised_above(before))
