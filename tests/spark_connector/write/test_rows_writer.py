"""From Arrow batches to records: where rows go, in which order, how large batches are, and what is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.transaction_requests import end_transaction, init_transactional_id
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.records.columns import HEADERS_TYPE
from broker.records.key_hash import partition_of_key
from broker.records.record import size_bound
from spark_connector.errors import ConnectorError
from spark_connector.formats import record_encoder
from spark_connector.formats.value_encoder import Encoded
from spark_connector.options.write_options import parse_write_options
from spark_connector.write import rows_writer
from spark_connector.write.rows_writer import RowsWriter, StickyRuns, Written, partitions_of_rows
from tests.support.committed_records import committed_records
from tests.support.kafka import Kafka, await_topics
from tests.support.produced_frames import ProducedFrames
from tests.support.topics import Topic


@settings(deadline=None)
@given(st.integers(1, 5), st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=30), st.data())
def test_a_row_goes_by_its_partition_then_its_key_then_in_turn(
    partitions: int, keys: list[bytes | None], data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.none() | st.integers(0, partitions - 1), min_size=len(keys), max_size=len(keys)))
    rows = pa.table({"key": pa.array(keys, pa.binary()), "partition": pa.array(asked, pa.int32())})
    sticky = StickyRuns(partitions)
    found = partitions_of_rows(rows, "t", partitions, sticky, rows_per_run=3)
    assert len(found) == len(keys)
    for key, wanted, partition in zip(keys, asked, found.tolist(), strict=True):
        if wanted is not None:
            assert partition == wanted
        elif key is not None:
            assert partition == partition_of_key(key, partitions)
        else:
            assert 0 <= partition < partitions


def test_rows_without_a_key_go_in_runs_and_fairly() -> None:
    sticky = StickyRuns(3)
    runs = [(partition, len(list(run))) for partition, run in itertools.groupby(sticky.take(100, 10).tolist())]
    assert [length for _, length in runs] == [10] * 10
    assert len({partition for partition, _ in runs}) == 3
    assert sorted(Counter(sticky.take(9, 1000).tolist()).values()) == [3, 3, 3]
    first, second = int(sticky.take(1, 10)[0]), int(sticky.take(1, 10)[0])
    assert second == (first + 1) % 3
    assert sticky.take(0, 10).tolist() == []


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_does_not_exist_is_named(wrong: int) -> None:
    rows = pa.table({"partition": pa.array([0, wrong], pa.int32())})
    with pytest.raises(ConfigError, match=rf"{wrong} is not in the range \[0...3\) of topic 't'"):
        partitions_of_rows(rows, "t", 3, StickyRuns(3), rows_per_run=1)


class Sink:
    """A writer to topics of its own, and what came of it."""

    def __init__(self, cluster: Cluster, bootstrap: str) -> None:
        self._cluster, self._bootstrap = cluster, bootstrap

    def write(self, *batches: pa.RecordBatch, transactional: bool = False, **given: str) -> Written:
        named = {name.replace("_", "."): value for name, value in given.items()}
        options = parse_write_options({"kafka.bootstrap.servers": self._bootstrap, **named}, stream=False)
        transaction = init_transactional_id(self._cluster, named["topic"]) if transactional else None
        writer = RowsWriter(self._cluster, options, transaction=transaction)
        try:
            for batch in batches:
                writer.write(batch)
            return writer.finish()
        finally:
            writer.close()
            if transaction is not None:
                end_transaction(self._cluster, transaction, commit=True)

    def read(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.partition, record.key, record.value) for record in committed_records(self._bootstrap, topic)]


@pytest.fixture
def sink(broker: Kafka) -> Iterator[Sink]:
    with Cluster(broker.bootstrap) as cluster:
        yield Sink(cluster, broker.bootstrap)


def batch(numbers: range, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([str(number) for number in numbers]), **columns})


def test_a_partition_is_taken_that_was_added_since_the_process_asked(sink: Sink, broker: Kafka, topic: str) -> None:
    Topic(broker.bootstrap, topic, 1)
    sink.write(batch(range(1)), topic=topic)
    with Cluster(broker.bootstrap) as elsewhere:
        Admin(elsewhere).create_partitions(topic, 2)
    await_topics(broker.bootstrap, topic, partitions=2)
    sink.write(batch(range(1, 2), partition=pa.array([1], pa.int32())), topic=topic)
    assert [(partition, value) for partition, _, value in sink.read(topic)] == [(0, b"0"), (1, b"1")]


def test_rows_of_many_topics_and_partitions_keep_their_order(
    sink: Sink, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_writer, "_COLLECTED_BYTES", 3000)
    names = [Topic(broker.bootstrap, f"{topic}-{n}", n + 1).name for n in range(3)]
    batches = []
    for start in range(0, 900, 90):
        numbers = range(start, start + 90)
        topics = pa.array([names[number % 3] for number in numbers])
        keys = pa.array([None if number % 2 else b"%d" % (number % 7) for number in numbers], pa.binary())
        batches.append(batch(numbers, topic=topics, key=keys))
    written = sink.write(*batches, kafka_batch_size="500")
    assert written.rows == 900
    assert {tp.topic for tp in written.partitions} == set(names)
    for n, name in enumerate(names):
        found = sink.read(name)
        assert sorted(int(value or b"") for _, _, value in found) == list(range(n, 900, 3))
        for _, rows in itertools.groupby((row for row in found if row[1]), key=lambda row: row[0]):
            numbers_of_keys = [int(value or b"") for _, _, value in rows]
            assert numbers_of_keys == sorted(numbers_of_keys)
        for partition, key, value in found:
            if key is not None:
                assert key == b"%d" % (int(value or b"") % 7)
                assert partition == partition_of_key(key, n + 1)


def test_slices_and_empty_batches_are_what_they_show(sink: Sink, broker: Kafka, topic: str) -> None:
    Topic(broker.bootstrap, topic, 1)
    keys = pa.array([b"%d" % number for number in range(100)], pa.binary())
    whole = batch(range(100), key=keys)
    sink.write(whole.slice(0, 0), whole.slice(10, 5), whole.slice(90, 10), whole.slice(3, 0), topic=topic)
    expected = [*range(10, 15), *range(90, 100)]
    assert sink.read(topic) == [(0, b"%d" % number, b"%d" % number) for number in expected]
    assert sink.write(topic=topic) == Written(0, ())


def test_batches_obey_the_topics_limit(sink: Sink, broker: Kafka, topic: str) -> None:
    Topic(broker.bootstrap, topic, 1, max_message_bytes="5000")
    values = pa.array([f"{number:0500}" for number in range(200)])
    sink.write(pa.record_batch({"value": values}), topic=topic)
    assert [value for _, _, value in sink.read(topic)] == [value.encode() for value in values.to_pylist()]


@pytest.mark.parametrize("once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_kafka_would_take_every_batch_that_is_sent(
    sink: Sink, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, once: bool, codec: str
) -> None:
    Topic(broker.bootstrap, topic, 2, max_message_bytes="3000")  # so that some go again in halves
    wire = ProducedFrames(monkeypatch)
    values = pa.record_batch({"value": pa.array([f"{number:0100}" for number in range(600)])})
    sink.write(values, transactional=once, topic=topic, kafka_batch_size="4000", kafka_compression_type=codec)
    sent = wire.taken_by_kafka()
    assert len(sent) == 2
    assert min(len(batches) for batches in sent.values()) > 5


def test_a_request_takes_a_batch_of_each_partition(
    own_broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topic(own_broker.bootstrap, topic, 4)
    wire = ProducedFrames(monkeypatch)
    values = [f"{number:0100}" for number in range(1200)]
    rows = pa.record_batch({"value": pa.array(values), "partition": pa.array(np.arange(1200) % 4, pa.int32())})
    with Cluster(own_broker.bootstrap) as cluster:
        sink = Sink(cluster, own_broker.bootstrap)
        sink.write(rows, topic=topic, kafka_batch_size="4000")
        sent = wire.taken_by_kafka()
        assert [len(batches) for batches in sent.values()] == [wire.requests] * 4
        assert wire.requests > 5
        assert [int(value or b"") for partition, _, value in sink.read(topic) if partition == 3] == [*range(3, 1200, 4)]


def test_some_batches_of_each_partition_are_sent_while_more_rows_come(
    own_broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topic(own_broker.bootstrap, topic, 2)
    wire = ProducedFrames(monkeypatch)
    rows = pa.record_batch({"value": pa.array([f"{number:0100}" for number in range(50)])})
    given = {"kafka.bootstrap.servers": own_broker.bootstrap, "topic": topic, "kafka.batch.size": "1000"}
    given["kafka.max.request.size"] = "2000"
    options = parse_write_options(given, stream=False)
    with Cluster(options.client) as cluster:
        writer = RowsWriter(cluster, options)
        writer.write(rows)
        assert wire.requests == 0
        writer.write(rows)
        assert wire.requests > 0
        assert writer.finish().rows == 100
        writer.close()


def test_what_the_broker_says_of_a_row_reaches_the_user(sink: Sink, broker: Kafka, topic: str) -> None:
    Topic(broker.bootstrap, topic, 1, cleanup_policy="compact")
    with pytest.raises(BrokerError, match=f"producing to {topic}-0: .*key") as raised:
        sink.write(batch(range(3)), topic=topic)
    assert raised.value.code is ErrorCode.invalid_record


def test_a_row_beyond_the_largest_request_is_said_before_it_is_sent(sink: Sink, broker: Kafka, topic: str) -> None:
    Topic(broker.bootstrap, topic, 1)
    large = pa.record_batch({"value": pa.array(["x" * 2000, "y"]), "key": pa.array(["k" * 100, None])})
    with pytest.raises(
        BrokerError, match=r"a row of 2187 bytes .* exceeds kafka.max.request.size=2000.*max.message.bytes"
    ):
        sink.write(large, topic=topic, kafka_max_request_size="2000")


@pytest.mark.parametrize("header", [b"x" * 1900, None])
def test_headers_count_and_a_row_that_just_fits_is_taken(
    sink: Sink, broker: Kafka, topic: str, header: bytes | None
) -> None:
    Topic(broker.bootstrap, topic, 1)
    pairs: list[list[tuple[str, bytes | None]] | None] = [[("small", b"1")], [("h", header), ("i", None)], None]
    values = [b"a", b"v" * (1 if header else 1900), None]
    size = max(size_bound(None, value, pair or []) for value, pair in zip(values, pairs, strict=True))
    rows = pa.record_batch({"value": pa.array(values, pa.binary()), "headers": pa.array(pairs, HEADERS_TYPE)})
    with pytest.raises(BrokerError, match=rf"a row of {size} bytes .* exceeds kafka.max.request.size={size - 1}:"):
        sink.write(rows.slice(0, 2), topic=topic, kafka_max_request_size=str(size - 1))
    sink.write(rows.slice(1, 2), topic=topic, kafka_max_request_size=str(size))
    assert [value for _, _, value in sink.read(topic)] == values[1:]


@pytest.mark.parametrize(("partitioner", "spread"), [("sticky", 4), ("roundrobin", 4), ("murmur2_random", 1)])
def test_the_partitioner_may_ignore_keys(sink: Sink, broker: Kafka, topic: str, partitioner: str, spread: int) -> None:
    Topic(broker.bootstrap, topic, 4)
    keys = pa.array([b"same"] * 40, pa.binary())
    sink.write(batch(range(40), key=keys), topic=topic, kafka_partitioner=partitioner)
    counts = Counter(partition for partition, _, _ in sink.read(topic))
    assert len(counts) == spread
    assert set(counts.values()) == {40 // spread}


class TakesTwo:
    """Stands for a format in which a column of more rows would pass 2 GiB, as one of an 8 would."""

    def encode(self, rows: pa.StructArray) -> Encoded:
        if len(rows) > 2 or "8" in rows.field(0).to_pylist():
            raise OverflowError("more than 2 GiB")
        return Encoded(rows.field(0).cast(pa.binary()))


def test_rows_that_become_too_large_together_are_written_in_parts(
    sink: Sink, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_encoder, "column_encoder", lambda *_: TakesTwo())
    Topic(broker.bootstrap, topic, 1)
    assert sink.write(batch(range(7)), topic=topic, valueFormat="json", valueColumns="value").rows == 7
    assert [value for _, _, value in sink.read(topic)] == [b"%d" % number for number in range(7)]
    with pytest.raises(ConnectorError, match="a row of .* bytes cannot be encoded: more than 2 GiB"):
        sink.write(batch(range(10)), topic=topic, valueFormat="json", valueColumns="value")


@pytest.mark.parametrize("limit", ["_MOST_AT_ONCE", "_MOST_COLLECTED"])
def test_no_column_grows_beyond_what_arrow_holds(
    sink: Sink, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(rows_writer, limit, 20)
    Topic(broker.bootstrap, topic, 1)
    assert sink.write(batch(range(7)), batch(range(7, 9)), topic=topic).rows == 9
    assert [value for _, _, value in sink.read(topic)] == [b"%d" % number for number in range(9)]


class RefusesSevens:
    """Stands for a schema that does not take 7."""

    def encode(self, rows: pa.StructArray) -> Encoded:
        numbers = rows.field(0).to_pylist()
        return Encoded(rows.field(0).cast(pa.binary()), {row: "a 7" for row, one in enumerate(numbers) if one == "7"})


@pytest.mark.parametrize("once", [False, True], ids=["at least once", "exactly once"])
def test_rows_that_the_schema_refuses_go_to_their_topic_with_the_write(
    sink: Sink, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    monkeypatch.setattr(record_encoder, "column_encoder", lambda *_: RefusesSevens())
    for name in (topic, f"{topic}-bad"):
        Topic(broker.bootstrap, name, 2)
    options = {"valueFormat": "json", "valueColumns": "value", "badRowsTopic": f"{topic}-bad"}
    keys = pa.array([None, *(b"%d" % number for number in range(1, 10))], pa.binary())
    batches = [batch(range(10), key=keys), batch(range(7, 8), key=keys[:1]), batch(range(3), key=keys[:3])]
    written = sink.write(*batches, topic=topic, transactional=once, **options)
    assert written.rows == 14
    assert {tp.topic for tp in written.partitions} == {topic, f"{topic}-bad"}
    assert sorted(int(value or b"") for _, _, value in sink.read(topic)) == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 9]
    bad = committed_records(broker.bootstrap, f"{topic}-bad")
    assert sorted((record.key or b"", record.value) for record in bad) == [
        (b"", b'{"value":"7"}'),
        (b"7", b'{"value":"7","key":"Nw=="}'),
    ]
    assert {record.headers for record in bad} == {
        (("pykafka.origin.topic", topic.encode()), ("pykafka.error", b"value: a 7"))
    }


def test_a_topic_that_is_not_there_is_named(sink: Sink) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'no-such-topic'"):
        sink.write(batch(range(3)), topic="no-such-topic")
