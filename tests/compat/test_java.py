"""Apache Kafka's own client for Java: producer, consumer, transactions and admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker.client.batch_producer import BatchProducer
from broker.client.broker_connection import SOFTWARE
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher, FetchStream
from broker.client.producer import Producer
from broker.client.transaction_requests import transaction_version
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE, decode_columns, encode_columns
from broker.records.compression import Codec
from broker.records.key_hash import partition_of_key
from broker.records.record import decode_records
from tests.support.kafka import Kafka, await_markers, await_topics
from tests.support.kafka_java import KafkaJava, each, thrown, type_of
from tests.support.sample_records import CODECS, Sample, samples
from tests.support.waiting import eventually

CONSUMER_GROUP_HEARTBEAT = 68
"""The API of KIP-848's groups."""


@pytest.fixture
def address(broker: Kafka) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap}


@pytest.fixture
def admin(java: KafkaJava, address: dict[str, str]) -> Any:
    return java.admin(address)


@pytest.fixture
def made(broker: Kafka, java: KafkaJava, admin: Any, topic: str) -> str:
    """A topic of two partitions."""
    admin.createTopics([java.kafka.clients.admin.NewTopic(topic, 2, 1)]).all().get()
    await_topics(broker.bootstrap, topic, partitions=2)
    return topic


def read(java: KafkaJava, consumer: Any, count: int) -> list[Any]:
    """The next records, at least `count`."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(java.poll(consumer))
        return len(found) >= count

    eventually(enough)
    return found


def values(records: list[Any]) -> list[bytes]:
    return [record.value() for record in records]


def sample_of(record: Any) -> Sample:
    headers = tuple((header.key(), header.value()) for header in each(record.headers()))
    return Sample(record.key(), record.value(), headers)


class TestRecords:
    @pytest.mark.parametrize("codec", CODECS)
    def test_they_come_back_as_they_were_sent(
        self, java: KafkaJava, address: dict[str, str], made: str, codec: str
    ) -> None:
        wanted, first_ms = samples(30), 1_700_000_000_000
        producer = java.producer({**address, "compression.type": codec, "linger.ms": "20"})
        sent = []
        for number, (key, value, headers) in enumerate(wanted):
            record = java.kafka.clients.producer.ProducerRecord(made, 0, first_ms + number, key, value)
            for name, content in headers:
                record.headers().add(name, content)
            sent.append(producer.send(record))
        assert [one.get().offset() for one in sent] == list(range(30))
        consumer = java.consumer(address)
        consumer.assign([java.partition(made, 0)])
        found = read(java, consumer, 30)
        assert [sample_of(record) for record in found] == wanted
        assert [one.timestamp() for one in found] == list(range(first_ms, first_ms + 30))

    @pytest.mark.parametrize("acks", ["0", "1", "all"])
    def test_any_number_of_acknowledgements(
        self, java: KafkaJava, address: dict[str, str], made: str, acks: str
    ) -> None:
        producer = java.producer({**address, "acks": acks, "enable.idempotence": "false"})
        assert producer.send(java.record(made, b"x", partition=1)).get().partition() == 1
        consumer = java.consumer(address)
        consumer.assign([java.partition(made, 1)])
        assert values(read(java, consumer, 1)) == [b"x"]

    def test_one_that_is_too_large_is_told(self, java: KafkaJava, address: dict[str, str], made: str) -> None:
        producer = java.producer({**address, "max.request.size": "5000000", "batch.size": "1"})
        large = java.record(made, bytes(2_000_000), partition=0)
        assert type_of(thrown(lambda: producer.send(large).get())) == "RecordTooLargeException"
        assert producer.send(java.record(made, b"small", partition=0)).get().offset() == 0

    def test_positions_by_offset_and_time(self, java: KafkaJava, address: dict[str, str], made: str) -> None:
        producer, start_ms = java.producer(address), 1_700_000_000_000
        for number in range(10):
            at = java.kafka.clients.producer.ProducerRecord(made, 0, start_ms + number, None, b"%d" % number)
            producer.send(at).get()
        consumer, tp = java.consumer(address), java.partition(made, 0)
        consumer.assign([tp])
        consumer.seek(tp, 7)
        assert values(read(java, consumer, 3)) == [b"7", b"8", b"9"]
        found = consumer.offsetsForTimes({tp: start_ms + 4}).get(tp)
        assert (found.offset(), found.timestamp()) == (4, start_ms + 4)
        assert (consumer.beginningOffsets([tp]).get(tp), consumer.endOffsets([tp]).get(tp)) == (0, 10)


class TestEncodings:
    """What we encode it decodes, and checks the CRC of; what it encodes we decode."""

    @staticmethod
    def read_by_java(java: KafkaJava, address: dict[str, str], topic: str, count: int) -> list[Sample]:
        consumer = java.consumer({**address, "isolation.level": "read_committed"})
        consumer.assign([java.partition(topic, 0)])
        return [sample_of(record) for record in read(java, consumer, count)]

    @pytest.mark.parametrize("codec", CODECS)
    def test_of_our_producer(self, java: KafkaJava, address: dict[str, str], made: str, codec: str) -> None:
        wanted = samples(300)
        with Producer({**address, "compression.type": codec, "linger.ms": "20"}) as producer:
            for key, value, headers in wanted:
                producer.send(made, value, key=key, headers=headers, partition=0)
        assert self.read_by_java(java, address, made, len(wanted)) == wanted

    @pytest.mark.parametrize("codec", CODECS)
    def test_of_the_connectors_columns(self, java: KafkaJava, address: dict[str, str], made: str, codec: str) -> None:
        wanted, tp = samples(300), TopicPartition(made, 0)
        key, value = (pa.array([getattr(one, name) for one in wanted], pa.binary()) for name in ("key", "value"))
        rows = [[{"key": name, "value": content} for name, content in one.headers] for one in wanted]
        headers = pa.array(rows, HEADERS_TYPE)
        with Cluster(address) as cluster, BatchProducer(cluster) as sender:
            form = Codec[codec.upper()]
            stamp = sender.stamp(tp)._asdict()
            for batch in encode_columns(key, value, 1000, headers, codec=form, max_bytes=4_000, **stamp):
                sender.send(tp, batch)
            sender.flush()
        assert self.read_by_java(java, address, made, len(wanted)) == wanted

    @pytest.mark.parametrize("codec", CODECS)
    def test_of_its_own_producer(self, java: KafkaJava, address: dict[str, str], made: str, codec: str) -> None:
        producer = java.producer({**address, "compression.type": codec, "linger.ms": "20"})
        values = [b"%d" % number * 50 for number in range(300)]
        for sent in [producer.send(java.record(made, value, b"k", 0)) for value in values]:
            sent.get()
        with Cluster(address) as cluster, Fetcher(cluster, TopicPartition(made, 0)) as fetcher:
            fetched = list(FetchStream(fetcher, 0, len(values)))
        columns = [decode_columns(one.records) for one in fetched]
        assert [value for one in columns for value in one.value.to_pylist()] == values
        assert [offset for one in columns for offset in one.offset.to_pylist()] == list(range(300))
        assert [record.value for one in fetched for record in decode_records(one.records)] == values

    def test_keys_choose_the_same_partitions(self, java: KafkaJava) -> None:
        theirs = java.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey
        keys = [bytes(range(start, start + length)) for length in range(40) for start in (0, 100, 200)]
        assert [partition_of_key(key, 1_000) for key in keys] == [theirs(key, 1_000) for key in keys]


class TestGroups:
    @pytest.fixture
    def member(self, java: KafkaJava, address: dict[str, str], group: str, made: str) -> Callable[..., Any]:
        def join(**more: str) -> Any:
            named = {name.replace("_", "."): value for name, value in more.items()}
            consumer = java.consumer({**address, "group.id": group, "heartbeat.interval.ms": "300", **named})
            consumer.subscribe([made])
            return consumer

        return join

    @staticmethod
    def share(java: KafkaJava, *members: Any) -> None:
        """Poll until each of the members has partitions, and all are given."""

        def given() -> bool:
            for member in members:
                java.poll(member, 50)
            counts = [member.assignment().size() for member in members]
            return sum(counts) == 2 and 0 not in counts

        eventually(given)

    @pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
    def test_members_share_and_take_over(self, java: KafkaJava, member: Callable[..., Any], assignor: str) -> None:
        strategy = f"org.apache.kafka.clients.consumer.{assignor}"
        first = member(partition_assignment_strategy=strategy)
        self.share(java, first)
        second = member(partition_assignment_strategy=strategy)
        self.share(java, first, second)
        second.close()
        self.share(java, first)

    def test_a_static_member_comes_back_to_its_partitions(
        self, java: KafkaJava, admin: Any, group: str, member: Callable[..., Any]
    ) -> None:
        first, second = member(group_instance_id="a"), member(group_instance_id="b")
        self.share(java, first, second)
        had, generation = second.assignment(), first.groupMetadata().generationId()
        second.close()
        again = member(group_instance_id="b")
        self.share(java, first, again)
        assert again.assignment() == had
        assert first.groupMetadata().generationId() == generation, "nobody else noticed"
        found = admin.describeConsumerGroups([group]).all().get().get(group)
        assert {one.groupInstanceId().get() for one in each(found.members())} == {"a", "b"}

    def test_the_next_one_goes_on_where_the_last_had_committed(
        self, java: KafkaJava, address: dict[str, str], made: str, member: Callable[..., Any]
    ) -> None:
        producer = java.producer(address)
        for value in (b"one", b"two"):
            producer.send(java.record(made, value, partition=0)).get()
        first = member(enable_auto_commit="false")
        assert values(read(java, first, 2)) == [b"one", b"two"]
        first.commitSync({java.partition(made, 0): java.kafka.clients.consumer.OffsetAndMetadata(1, "so far")})
        first.close()
        second = member(enable_auto_commit="false")
        assert values(read(java, second, 1)) == [b"two"]
        kept = second.committed({java.partition(made, 0)}).get(java.partition(made, 0))
        assert (kept.offset(), kept.metadata()) == (1, "so far")

    def test_the_protocol_of_kip_848_is_refused_with_the_way_out(
        self, java: KafkaJava, broker: Kafka, address: dict[str, str], group: str, made: str
    ) -> None:
        with Cluster(broker.bootstrap) as cluster:
            served = cluster.any_connection().request(ApiKey.API_VERSIONS, SOFTWARE).api_keys
        if any(one.api_key == CONSUMER_GROUP_HEARTBEAT for one in served):
            pytest.skip("this Kafka serves it")
        consumer = java.consumer({**address, "group.id": group, "group.protocol": "consumer"})
        consumer.subscribe([made])
        error = thrown(lambda: read(java, consumer, 1))
        assert type_of(error) == "UnsupportedVersionException"
        assert "Set group.protocol=classic" in error.getMessage()


class TestTransactions:
    @pytest.fixture
    def producer(self, java: KafkaJava, address: dict[str, str], made: str) -> Iterator[Any]:
        producer = java.producer({**address, "transactional.id": made})
        producer.initTransactions()
        return producer

    def test_only_what_was_committed_is_read(
        self, java: KafkaJava, broker: Kafka, address: dict[str, str], made: str, producer: Any
    ) -> None:
        for number, end in enumerate([producer.commitTransaction, producer.abortTransaction] * 2):
            producer.beginTransaction()
            for partition in (0, 1):
                producer.send(java.record(made, b"%d" % number, partition=partition))
            producer.flush()  # what waits to be sent is not sent by an abort
            end()
        await_markers(broker.bootstrap, made)
        for level, wanted in (("read_committed", [b"0", b"2"]), ("read_uncommitted", [b"0", b"1", b"2", b"3"])):
            consumer = java.consumer({**address, "isolation.level": level})
            consumer.assign([java.partition(made, 0)])
            found = values(read(java, consumer, len(wanted)))
            assert found == wanted
            assert consumer.endOffsets([java.partition(made, 0)]).get(java.partition(made, 0)) == 8

    def test_a_groups_offsets_are_part_of_one(
        self, java: KafkaJava, address: dict[str, str], made: str, group: str, admin: Any, producer: Any
    ) -> None:
        source = java.producer(address)
        source.send(java.record(made, b"in", partition=0)).get()
        settings = {"group.id": group, "enable.auto.commit": "false", "isolation.level": "read_committed"}
        consumer = java.consumer({**address, **settings})
        consumer.subscribe([made])
        assert values(read(java, consumer, 1)) == [b"in"]
        after = {java.partition(made, 0): java.kafka.clients.consumer.OffsetAndMetadata(1)}

        def committed() -> int | None:
            offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
            kept = offsets.get(java.partition(made, 0))
            return None if kept is None else int(kept.offset())

        producer.beginTransaction()
        producer.send(java.record(made, b"out", partition=1))
        producer.sendOffsetsToTransaction(after, consumer.groupMetadata())
        producer.abortTransaction()
        assert committed() is None
        producer.beginTransaction()
        producer.send(java.record(made, b"out", partition=1))
        producer.sendOffsetsToTransaction(after, consumer.groupMetadata())
        producer.commitTransaction()
        eventually(lambda: committed() == 1)
        assert values(read(java, consumer, 1)) == [b"out"]

    def test_each_of_version_2_has_an_epoch_of_its_own(
        self, java: KafkaJava, broker: Kafka, address: dict[str, str], made: str, admin: Any
    ) -> None:
        finalized = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version")
        if finalized is None or finalized.maxVersionLevel() < 2:
            pytest.skip("this Kafka has only version 1 of transactions")
        with Cluster(broker.bootstrap) as cluster:
            assert transaction_version(cluster) == finalized.maxVersionLevel()
        producer = java.producer({**address, "transactional.id": made})
        producer.initTransactions()
        for number in range(1, 13):
            producer.beginTransaction()
            for partition in (0, 1):
                producer.send(java.record(made, b"%d" % number, partition=partition))
            if number % 4:
                producer.commitTransaction()
            else:
                producer.flush()
                producer.abortTransaction()
            found = admin.describeTransactions([made]).all().get().get(made)
            assert found.producerEpoch() == number
        consumer = java.consumer({**address, "isolation.level": "read_committed"})
        consumer.assign([java.partition(made, 0), java.partition(made, 1)])
        wanted = sorted(b"%d" % number for number in range(1, 13) if number % 4)
        assert sorted(values(read(java, consumer, 18))) == sorted(2 * wanted)

    def test_an_older_producer_is_fenced(
        self, java: KafkaJava, broker: Kafka, address: dict[str, str], made: str, producer: Any
    ) -> None:
        newer = java.producer({**address, "transactional.id": made})
        newer.initTransactions()
        producer.beginTransaction()
        error = thrown(lambda: producer.send(java.record(made, b"x", partition=0)).get())
        with Cluster(broker.bootstrap) as cluster:  # with version 2 it asks no coordinator before it writes
            told_by_the_leader = transaction_version(cluster) >= 2
        assert type_of(error) == ("InvalidProducerEpochException" if told_by_the_leader else "ProducerFencedException")

    def test_an_admin_sees_and_fences_them(self, java: KafkaJava, made: str, admin: Any, producer: Any) -> None:
        producer.beginTransaction()
        producer.send(java.record(made, b"x", partition=0)).get()
        found = admin.describeTransactions([made]).all().get().get(made)
        assert found.state().toString() == "Ongoing"
        assert [str(one) for one in each(found.topicPartitions())] == [f"{made}-0"]
        assert made in {one.transactionalId() for one in each(admin.listTransactions().all().get())}
        (writing,) = each(
            admin.describeProducers([java.partition(made, 0)])
            .all()
            .get()
            .get(java.partition(made, 0))
            .activeProducers()
        )
        assert writing.producerId() == found.producerId()
        admin.fenceProducers([made]).all().get()
        assert type_of(thrown(producer.commitTransaction)) in (
            "ProducerFencedException",
            "InvalidProducerEpochException",
        )


class TestAdmin:
    def test_topics(self, java: KafkaJava, broker: Kafka, admin: Any, made: str) -> None:
        new = java.kafka.clients.admin.NewTopic
        outcomes = admin.createTopics([new(made, 1, 1), new(f"{made}/b", 1, 1), new(f"{made}-c", 3, 1)]).values()
        types = [type_of(thrown(outcomes.get(name).get)) for name in (made, f"{made}/b")]
        assert types == ["TopicExistsException", "InvalidTopicException"]
        outcomes.get(f"{made}-c").get()
        await_topics(broker.bootstrap, f"{made}-c", partitions=3)
        grown = java.kafka.clients.admin.NewPartitions.increaseTo(5)
        admin.createPartitions({f"{made}-c": grown}).all().get()
        await_topics(broker.bootstrap, f"{made}-c", partitions=5)
        described = admin.describeTopics([f"{made}-c"]).allTopicNames().get().get(f"{made}-c")
        assert [one.partition() for one in each(described.partitions())] == list(range(5))
        assert f"{made}-c" in set(each(admin.listTopics().names().get()))
        admin.deleteTopics([f"{made}-c"]).all().get()
        eventually(lambda: f"{made}-c" not in set(each(admin.listTopics().names().get())))

    def test_settings(self, java: KafkaJava, admin: Any, made: str) -> None:
        config, clients = java.kafka.common.config.ConfigResource, java.kafka.clients.admin
        resource = config(config.Type.TOPIC, made)

        def change(value: str) -> Any:
            entry = clients.AlterConfigOp(clients.ConfigEntry("segment.ms", value), clients.AlterConfigOp.OpType.SET)
            return admin.incrementalAlterConfigs({resource: [entry]}).all().get()

        change("9000")

        def setting() -> Any:
            return admin.describeConfigs([resource]).all().get().get(resource).get("segment.ms")

        eventually(lambda: setting().value() == "9000")
        assert setting().source().toString() == "DYNAMIC_TOPIC_CONFIG"
        assert type_of(thrown(lambda: change("soon"))) == "InvalidConfigurationException"

    def test_records_and_offsets(self, java: KafkaJava, address: dict[str, str], admin: Any, made: str) -> None:
        producer, tp = java.producer(address), java.partition(made, 0)
        for _ in range(5):
            producer.send(java.record(made, b"x", partition=0)).get()
        clients = java.kafka.clients.admin
        before = f"{clients.RecordsToDelete._fqn}", "beforeOffset", java.jvm.java.lang.Long.TYPE, 3
        deleted = admin.deleteRecords({tp: java.call_static(*before)}).all().get()
        assert deleted is None
        spec = clients.OffsetSpec
        for one, wanted in ((spec.earliest(), 3), (spec.latest(), 5), (spec.earliestLocal(), 3)):
            assert admin.listOffsets({tp: one}).all().get().get(tp).offset() == wanted

    def test_groups_and_their_offsets(
        self, java: KafkaJava, address: dict[str, str], admin: Any, made: str, group: str
    ) -> None:
        consumer = java.consumer({**address, "group.id": group})
        consumer.subscribe([made])
        TestGroups.share(java, consumer)
        described = admin.describeConsumerGroups([group]).all().get().get(group)
        assert (described.groupState().toString(), described.partitionAssignor()) == ("Stable", "range")
        assert group in {one.groupId() for one in each(admin.listGroups().all().get())}
        position = {java.partition(made, 0): java.kafka.clients.consumer.OffsetAndMetadata(7)}
        in_use = thrown(lambda: admin.alterConsumerGroupOffsets(group, position).all().get())
        assert type_of(in_use) == "UnknownMemberIdException"
        assert type_of(thrown(lambda: admin.deleteConsumerGroups([group]).all().get())) == "GroupNotEmptyException"
        consumer.close()
        admin.alterConsumerGroupOffsets(group, position).all().get()
        kept = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        assert kept.get(java.partition(made, 0)).offset() == 7
        admin.deleteConsumerGroupOffsets(group, {java.partition(made, 0)}).all().get()
        admin.deleteConsumerGroups([group]).all().get()
        missing = thrown(lambda: admin.deleteConsumerGroups([group]).all().get())
        assert type_of(missing) == "GroupIdNotFoundException"

    def test_the_cluster(self, java: KafkaJava, admin: Any, made: str, broker_id: int) -> None:
        described = admin.describeCluster()
        assert broker_id in [node.id() for node in each(described.nodes().get())]
        directories = admin.describeLogDirs([broker_id]).allDescriptions().get().get(broker_id)
        replicas = {str(tp) for one in directories.values() for tp in each(one.replicaInfos().keySet())}
        assert replicas & {f"{made}-0", f"{made}-1"}
        assert admin.listPartitionReassignments({java.partition(made, 0)}).reassignments().get().size() == 0
        preferred = java.kafka.common.ElectionType.PREFERRED
        elected = admin.electLeaders(preferred, {java.partition(made, 0)}).partitions().get()
        assert type_of(elected.get(java.partition(made, 0)).get()) == "ElectionNotNeededException"
