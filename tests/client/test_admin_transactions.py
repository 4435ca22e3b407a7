"""Transactions and producers shown, and one that hangs ended; records deleted; directories described."""

from __future__ import annotations

import pytest

from broker.client.admin import Admin
from broker.client.admin_topics import HIGH_WATERMARK
from broker.client.cluster import Cluster
from broker.client.offsets import EARLIEST, LATEST, list_offsets
from broker.client.partition_writer import produce_batches
from broker.client.producer import Producer
from broker.client.transactions import add_partitions, init_transactional_id
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.client.test_transactions import batch
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def test_an_open_transaction_is_listed_and_described(
    admin: Admin, broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    tp = TopicPartition(make_topic(), 0)
    properties = {"transactional.id": group, "transaction.timeout.ms": "30000"}
    with Producer(broker.bootstrap, properties) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(tp.topic, b"open").result()
        (listed,) = [one for one in admin.list_transactions(states=["Ongoing"]) if one.transactional_id == group]
        described = admin.describe_transaction(group)
        assert (described.state, described.timeout_ms, described.partitions) == ("Ongoing", 30_000, (tp,))
        assert described.start_ms > 0
        assert described.producer_id == listed.producer_id
        (entry,) = admin.describe_producers([tp])[tp]
        assert (entry.producer_id, entry.last_sequence, entry.transaction_start_offset) == (listed.producer_id, 0, 0)
        assert listed not in admin.list_transactions(running_longer_than_ms=60_000)
        producer.abort_transaction()
    eventually(lambda: admin.describe_producers([tp])[tp][0].transaction_start_offset == -1)  # its marker is there


def test_what_does_not_exist_is_told(admin: Admin, group: str) -> None:
    with pytest.raises(BrokerError) as raised:
        admin.describe_transaction(group)
    assert raised.value.code is ErrorCode.transactional_id_not_found
    with pytest.raises(ConfigError, match="there is no transaction state Nonsense"):
        admin.list_transactions(states=["Nonsense"])


def test_a_transaction_is_ended_past_its_coordinator(
    admin: Admin, cluster: Cluster, make_topic: TopicMaker, group: str
) -> None:
    tp = TopicPartition(make_topic(), 0)
    handle = init_transactional_id(cluster, group)
    add_partitions(cluster, handle, [tp])
    produce_batches(cluster, tp, [batch(1)], transaction=handle)
    assert list_offsets(cluster, {tp: LATEST}, isolation_level="read_committed")[tp].offset == 0
    (hanging,) = admin.describe_producers([tp])[tp]
    admin.abort_transaction(tp, hanging)
    assert list_offsets(cluster, {tp: LATEST}, isolation_level="read_committed")[tp].offset == 2
    eventually(lambda: admin.describe_producers([tp])[tp][0].transaction_start_offset == -1)  # its marker is there


def test_records_are_deleted_up_to_an_offset(admin: Admin, cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for tp in (first, second):
        produce_batches(cluster, tp, [batch(1, 2, 3, transactional=False)])
    assert admin.delete_records({first: 2, second: HIGH_WATERMARK}) == {first: 2, second: 3}
    assert [found.offset for found in list_offsets(cluster, {first: EARLIEST, second: EARLIEST}).values()] == [2, 3]
    with pytest.raises(BrokerError, match=f"{topic}-0 before offset 9") as raised:
        admin.delete_records({first: 9})
    assert raised.value.code is ErrorCode.offset_out_of_range


def test_directories_tell_what_lies_in_them(admin: Admin, cluster: Cluster, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(), 0)
    produce_batches(cluster, tp, [batch(*range(100), transactional=False)])
    leader = cluster.leader(tp).id
    (directory,) = (one for one in admin.describe_log_dirs([leader], topics=[tp.topic]) if one.partitions)
    assert list(directory.partitions) == [tp]
    assert directory.partitions[tp].size > 500
    assert directory.total_bytes >= directory.usable_bytes > 0
    assert directory.error is None
    assert any(tp in one.partitions for one in admin.describe_log_dirs([leader]))
    assert any(tp in one.partitions for one in admin.describe_log_dirs(topics=[tp.topic]))
    with pytest.raises(BrokerError, match="there is no broker '4711'"):
        admin.describe_log_dirs([4711])
