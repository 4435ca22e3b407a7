"""Kafka's JSON in ZooKeeper: what Kafka writes is read, and written the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo, Endpoint
from broker.zookeeper import znodes
from broker.zookeeper.znodes import MalformedNode, PartitionState, TopicRecord, decode_broker, encode_broker

TP = TopicPartition("t", 0)

# As Apache Kafka 3.8 writes them.
BROKER = (
    '{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","TLS":"SSL"},'
    '"endpoints":["PLAINTEXT://host-1:9092","TLS://[::1]:9093"],"rack":"r1","jmx_port":-1,"port":9092,"host":"host-1",'
    '"version":5,"timestamp":"1700000000000"}'
)
TOPIC = (
    '{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},"topic_id":"_0vM5YQHSxqDhRJs-2rSIg",'
    '"adding_replicas":{},"version":3}'
)
STATE = '{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":2,"isr":[1,2]}'


def test_a_broker_is_read_and_written_as_kafka_does() -> None:
    broker = decode_broker(1, BROKER.encode())
    assert broker == BrokerInfo(
        broker_id=1,
        endpoints=(Endpoint("PLAINTEXT", "host-1", 9092), Endpoint("TLS", "::1", 9093)),
        security_protocols={"PLAINTEXT": "PLAINTEXT", "TLS": "SSL"},
        rack="r1",
        timestamp_ms=1_700_000_000_000,
    )
    assert json.loads(encode_broker(broker)) == json.loads(BROKER)
    assert (broker.host, broker.port) == ("host-1", 9092)
    assert broker.endpoint("TLS") == Endpoint("TLS", "::1", 9093)
    assert broker.endpoint("NONE") is None


def test_a_broker_without_a_plaintext_listener_has_no_host_and_port_of_its_own() -> None:
    broker = BrokerInfo(1, (Endpoint("TLS", "h", 9093),), {"TLS": "SSL"})
    node = json.loads(encode_broker(broker))
    assert (node["host"], node["port"]) == (None, -1)
    assert (broker.host, broker.port) == ("h", 9093)


def test_a_broker_of_the_first_generation_is_read() -> None:
    old = b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}'
    assert decode_broker(4, old) == BrokerInfo.plaintext(4, "h", 9092, timestamp_ms=1)


def test_a_topic_is_read_and_written_as_kafka_does() -> None:
    topic = TopicRecord.decode("t", TOPIC.encode(), {"k": "v"})
    assert topic.assignment == {0: (1, 2), 1: (2, 1)}
    assert topic.topic_id == uuid.UUID("ff4bcce5-8407-4b1a-8385-126cfb6ad222")
    assert topic.partitions() == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert topic.encode().decode() == TOPIC


def test_a_topic_from_before_topic_ids_is_read() -> None:
    topic = TopicRecord.decode("t", b'{"version":1,"partitions":{"0":[1]}}', {})
    assert (topic.topic_id, topic.assignment) == (uuid.UUID(int=0), {0: (1,)})


def test_a_partition_state_is_read_and_written_as_kafka_does() -> None:
    state = PartitionState.decode(TP, STATE.encode(), 9)
    assert state == PartitionState(leader=1, leader_epoch=2, isr=(1, 2), controller_epoch=3)
    assert state.version == 9
    assert state.encode().decode() == STATE


def test_the_small_nodes_look_as_kafkas() -> None:
    assert znodes.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert znodes.encode_controller(1, 5) == b'{"version":1,"brokerid":1,"timestamp":"5"}'
    assert znodes.encode_config({"a": "b"}) == b'{"version":1,"config":{"a":"b"}}'
    block = znodes.encode_producer_id_block(1, 0, 999)
    assert block == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    assert znodes.decode_producer_id_block_end(block) == 999
    assert znodes.encode_config_change("topics/t") == b'{"version":2,"entity_path":"topics/t"}'
    changed = znodes.encode_isr_change([TP])
    assert changed == b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    assert znodes.decode_isr_change("/x", changed) == [TP]
    assert znodes.decode_config("/x", b"") == {}


def test_paths_are_kafkas() -> None:
    assert znodes.broker_path(1) == "/brokers/ids/1"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.partition_path(TP) == "/brokers/topics/t/partitions/0"
    assert znodes.state_path(TP) == "/brokers/topics/t/partitions/0/state"
    assert znodes.topic_config_path("t") == "/config/topics/t"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"


@given(st.uuids())
def test_uuids_survive_their_text_form(value: uuid.UUID) -> None:
    text = znodes.uuid_to_text(value)
    assert len(text) == 22
    assert znodes.uuid_from_text(text) == value


def test_new_uuids_never_look_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    dash_first, other = uuid.UUID("f8000000-0000-4000-8000-000000000000"), uuid.UUID(int=1)
    made = iter([dash_first, other])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(made))
    assert znodes.uuid_to_text(dash_first).startswith("-")
    assert znodes.new_uuid() == other


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "/brokers/ids/1": lambda data: decode_broker(1, data),
    "/brokers/topics/t": lambda data: TopicRecord.decode("t", data, {}),
    "/brokers/topics/t/partitions/0/state": lambda data: PartitionState.decode(TP, data, 0),
    "/cluster/id": znodes.decode_cluster_id,
    "/controller": znodes.decode_controller,
    "/latest_producer_id_block": znodes.decode_producer_id_block_end,
    "/config/topics/t": lambda data: znodes.decode_config("/config/topics/t", data),
    "/isr_change_notification/x": lambda data: znodes.decode_isr_change("/isr_change_notification/x", data),
    "/config/changes/x": lambda data: znodes.decode_config_change("/config/changes/x", data),
}

FIELDS = ["id", "brokerid", "endpoints", "host", "port", "partitions", "topic_id", "leader", "isr", "config"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
)


@pytest.mark.parametrize("path", DECODERS)
@given(data=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_raises_nothing_but_an_error_that_names_the_node(path: str, data: bytes) -> None:
    complaint = ""
    try:
        DECODERS[path](data)
    except MalformedNode as error:
        complaint = str(error)
    assert complaint == "" or complaint.startswith(f"{path} in ZooKeeper holds b")
