"""The group store against a real broker: the contract, and what ordinary clients see of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from spark_connector.offset_store.base import OffsetConflict, OffsetStore, open_store
from tests.support.kafka import Kafka
from tests.support.offset_store_contract import A0, A1, OffsetStoreContract


@pytest.fixture
def store(broker: Kafka) -> Iterator[OffsetStore]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(topic, 2, 1) for topic in ("a", "b")]).values():
        try:
            created.result(30)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS  # noqa: PT017, made by the test before
    store = open_store("group", {"kafka.bootstrap.servers": broker.bootstrap})
    yield store
    store.close()


class TestContract(OffsetStoreContract):
    keeps_ids = False


def test_ordinary_clients_see_the_offsets(store: OffsetStore, broker: Kafka, group: str) -> None:
    store.commit(group, {A0: 7, A1: 9})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    seen = {tp.partition: tp.offset for tp in asked[group].result(30).topic_partitions}
    assert seen == {0: 7, 1: 9}


def test_another_offset_than_expected_conflicts(store: OffsetStore, group: str) -> None:
    store.commit(group, {A0: 1})
    with pytest.raises(OffsetConflict):
        store.commit(group, {A0: 3}, expected={A0: 2})
    assert store.read(group) == {A0: 1}
