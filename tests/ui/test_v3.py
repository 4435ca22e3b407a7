"""REST Proxy's shapes: every link leads to what it names, and programs write what the console may change."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.consumer import Consumer, ConsumerRecord
from broker.errors import ConfigError
from broker.protocol.described_config import ResourceType
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.v3.record_json import concatenated, parse_record, time_text
from pykafka_ui.v3.resources import upper_snake
from tests.support.kafka import Kafka
from tests.support.ui_process import Answer, UiProcess
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def ui(broker: Kafka) -> Iterator[UiProcess]:
    with UiProcess(broker.bootstrap, "--allow-changes") as process:
        yield process


@pytest.fixture(scope="module")
def cluster_path(ui: UiProcess) -> str:
    eventually(lambda: ui.get("/api/v3/clusters").status == 200)
    (found,) = ui.get("/api/v3/clusters").json["data"]
    return f"/api/v3/clusters/{found['cluster_id']}"


def send(ui: UiProcess, path: str, body: Any, method: str = "POST") -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return ui.send(path, text.encode(), {"content-type": "application/json"}, method)


def reports(answer: Answer) -> list[dict[str, Any]]:
    return list(concatenated(answer.text))


def test_every_link_leads_to_what_it_names(
    ui: UiProcess, cluster_path: str, broker: Kafka, topic: str, group: str
) -> None:
    """From the clusters to the settings, replicas, members and lags; also of a group with a slash in its name."""
    slashed = f"{group}/a b"
    with Cluster(broker.bootstrap) as cluster, Consumer(broker.bootstrap, {"group.id": group}) as member:
        Admin(cluster).create_topic(topic, 2)
        GroupOffsets(cluster, slashed).commit({TopicPartition(topic, 1): 0})
        member.subscribe([topic])
        eventually(lambda: bool(member.poll(0.1) or member.assignment()))
        member.commit(dict.fromkeys((TopicPartition(topic, 0), TopicPartition(topic, 1)), 0))
        eventually(lambda: ui.get(f"{cluster_path}/consumer-groups/{quote(slashed, safe='')}").status == 200)
        eventually(lambda: ui.get(f"{cluster_path}/consumer-groups/{group}/lags/{topic}/partitions/1").status == 200)
        eventually(lambda: ui.get(f"{cluster_path}/topics/{topic}").status == 200)
        kinds, seen, to_see = set(), set[str](), ["/api/v3/clusters"]
        while to_see:
            path = to_see.pop()
            if path in seen or ("/topics/" in path and topic not in path):
                continue
            seen.add(path)
            answer = ui.get(path)
            assert answer.status == 200, (path, answer.text)
            assert answer.json["metadata"]["self"] == f"{ui.address}{path}"
            kinds.add(answer.json["kind"])
            to_see += [address.removeprefix(ui.address) for address in _links(answer.json)]
    assert kinds >= {
        *("KafkaClusterList", "KafkaCluster", "KafkaBrokerList", "KafkaBroker", "KafkaBrokerConfigList"),
        *("KafkaTopicList", "KafkaTopic", "KafkaTopicConfigList", "KafkaPartitionList", "KafkaPartition"),
        *("KafkaReplicaList", "KafkaConsumerGroupList", "KafkaConsumerGroup", "KafkaConsumerList", "KafkaConsumer"),
        *(
            "KafkaConsumerAssignmentList",
            "KafkaConsumerAssignment",
            "KafkaReplica",
            "KafkaTopicConfig",
            "KafkaConsumerLagSummary",
            "KafkaConsumerLag",
        ),
    }


def _links(document: Any) -> Iterator[str]:
    if isinstance(document, list):
        for one in document:
            yield from _links(one)
    elif isinstance(document, dict):
        if isinstance(document.get("related"), str):
            yield document["related"]
        if "metadata" in document:
            yield document["metadata"]["self"]
        for one in document.values():
            yield from _links(one)


def test_a_group_and_its_members(ui: UiProcess, cluster_path: str, broker: Kafka, topic: str, group: str) -> None:
    with (
        Cluster(broker.bootstrap) as cluster,
        Consumer(broker.bootstrap, {"group.id": group, "client.id": "me"}) as member,
    ):
        Admin(cluster).create_topic(topic, 1)
        member.subscribe([topic])
        eventually(lambda: bool(member.poll(0.1) or member.assignment()))
        at = f"{cluster_path}/consumer-groups/{group}"
        eventually(lambda: ui.get(at).json.get("state") == "STABLE")
        assert ui.get(at).json["partition_assignor"]
        (one,) = ui.get(f"{at}/consumers").json["data"]
        assert (one["client_id"], one["instance_id"]) == ("me", None)
        (assigned,) = ui.get(f"{at}/consumers/{quote(one['consumer_id'], safe='')}/assignments").json["data"]
        assert (assigned["topic_name"], assigned["partition_id"]) == (topic, 0)


def test_records_are_written_as_they_are_sent(ui: UiProcess, cluster_path: str, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
    header = {"name": "h", "value": base64.b64encode(b"\x00\xff").decode()}
    body = (
        json.dumps({"partition_id": 1, "value": {"type": "STRING", "data": "café"}, "headers": [header, {"name": "n"}]})
        + json.dumps(
            {
                "partition_id": 1,
                "key": {"type": "BINARY", "data": "/w=="},
                "value": {"type": "JSON", "data": {"a": [1, "é"]}},
            }
        )
        + "\n\n"
        + json.dumps(
            {"partition_id": 1, "key": {"type": "STRING", "data": "gone"}, "timestamp": "2026-01-31T12:00:00.250Z"}
        )
    )
    found = reports(send(ui, f"{cluster_path}/topics/{topic}/records", body))
    assert [(one["error_code"], one["topic_name"], one["partition_id"], one["offset"]) for one in found] == [
        (200, topic, 1, number) for number in range(3)
    ]
    assert (found[1]["key"], found[1]["value"]) == ({"type": "BINARY", "size": 1}, {"type": "JSON", "size": 14})
    assert found[2]["timestamp"] == "2026-01-31T12:00:00.250Z"
    with Consumer(broker.bootstrap, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 1)])
        records: list[ConsumerRecord] = []
        while len(records) < 3:
            records += list(consumer.poll(30))
    assert [(one.key, one.value) for one in records] == [
        (None, "café".encode()),
        (b"\xff", '{"a":[1,"é"]}'.encode()),
        (b"gone", None),
    ]
    assert list(records[0].headers) == [("h", b"\x00\xff"), ("n", None)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"value": {"data": "x"}}, "value: needs a type: BINARY, JSON, STRING; schemas are not taken"),
        ({"value": {"type": "AVRO", "data": "x"}}, "value: needs a type"),
        ({"key": {"type": "BINARY", "data": "not base64!"}}, "key: not base64"),
        ({"value": {"type": "STRING", "data": {}}}, "value: the data of STRING must be text"),
        ({"partition_id": -1}, "partition_id=-1: there is no such partition"),
        ({"partition_id": "one"}, "partition_id=one"),
        ({"headers": [{}]}, "headers: each needs a name"),
        ({"headers": 5}, "headers: must be a list"),
        ({"headers": [{"name": "\ud800"}]}, "headers: half a character"),
        ({"value": {"type": "JSON", "data": "\ud800"}}, "value: half a character"),
        ({"headers": [{"name": "h", "value": 1}]}, "header h: its value must be base64"),
        ({"timestamp": "soon"}, "timestamp=soon: expected a time"),
        ([], "a record must be a JSON object"),
    ],
)
def test_a_record_that_cannot_be_taken(record: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_record(record)
    assert message in str(refused.value)


def test_a_bad_record_does_not_keep_others_from_being_written(
    ui: UiProcess, cluster_path: str, broker: Kafka, topic: str
) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    good, bad = {"value": {"type": "STRING", "data": "x"}}, {"value": {"type": "STRING", "data": 1}}
    lost = {**good, "partition_id": 7}
    found = reports(
        send(ui, f"{cluster_path}/topics/{topic}/records", "".join(map(json.dumps, (good, bad, lost, good))))
    )
    assert [one["error_code"] for one in found] == [200, 400, 404, 200]
    assert [one.get("offset") for one in found] == [0, None, None, 1]
    entries = [{"id": "a", **good}, {"id": "b", **bad}]
    answer = send(ui, f"{cluster_path}/topics/{topic}/records:batch", {"entries": entries})
    assert answer.status == 207
    assert [(one["id"], one["offset"]) for one in answer.json["successes"]] == [("a", 2)]
    assert [(one["id"], one["error_code"]) for one in answer.json["failures"]] == [("b", 400)]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("topics/{topic}/records", '{"value"', 400, "not JSON"),
        ("topics/{topic}/records", "[" * 100_000, 400, "not JSON"),
        ("topics/{topic}/records", " " * (17 << 20), 413, "at most"),
        ("topics/{topic}/records", '{"value": null}', 404, "there is no topic"),
        ("topics/{topic}/records:batch", "[]", 400, "entries"),
        ("topics", "{}", 400, "topic_name"),
        ("topics", '{"topic_name": "t", "partitions_count": 1099511627776}', 400, "partitions_count"),
        ("topics", '{"topic_name": "t", "replicas_assignments": {"0": [1], "2": [1]}}', 400, "without a gap"),
        ("topics", '{"topic_name": "bad name"}', 400, "bad name"),
        ("topics/{topic}/configs:alter", '{"data": [{"name": "x", "operation": "TWIST"}]}', 400, "SET or DELETE"),
    ],
)
def test_what_cannot_be_done_is_said(
    ui: UiProcess, cluster_path: str, topic: str, path: str, body: str, status: int, message: str
) -> None:
    answer = send(ui, f"{cluster_path}/{path.format(topic=topic)}", body)
    assert (answer.status, answer.json["error_code"]) == (status, status)
    assert message in answer.json["message"]


def test_a_topic_is_made_altered_and_deleted(ui: UiProcess, cluster_path: str, broker: Kafka, topic: str) -> None:
    wanted = {"topic_name": topic, "partitions_count": 3, "configs": [{"name": "retention.ms", "value": "60000"}]}
    made = send(ui, f"{cluster_path}/topics", wanted)
    assert (made.status, made.json["partitions_count"]) == (201, 3)
    assert send(ui, f"{cluster_path}/topics", wanted).status == 409
    changes = [{"name": "retention.ms", "operation": "DELETE"}, {"name": "segment.bytes", "value": "2000000"}]
    assert send(ui, f"{cluster_path}/topics/{topic}/configs:alter", {"data": changes}).status == 204
    with Cluster(broker.bootstrap) as cluster:
        found = Admin(cluster).describe_configs(ResourceType.TOPIC, topic)
    assert (found["segment.bytes"].value, found["retention.ms"].source.dynamic) == ("2000000", False)
    assert send(ui, f"{cluster_path}/topics/{topic}", "", "DELETE").status == 204
    eventually(lambda: ui.get(f"{cluster_path}/topics/{topic}").status == 404)


def test_nothing_can_be_written_where_changes_are_not_allowed(broker: Kafka, cluster_path: str) -> None:
    with UiProcess(broker.bootstrap) as ui:
        assert send(ui, f"{cluster_path}/topics", {"topic_name": "made"}).status == 405
        assert send(ui, f"{cluster_path}/topics/t/records", "{}").status == 404
        assert send(ui, f"{cluster_path}/topics/t", "", "DELETE").status == 405


def test_another_sites_page_writes_nothing(ui: UiProcess, cluster_path: str, topic: str) -> None:
    body = json.dumps({"topic_name": topic}).encode()
    answer = ui.send(f"{cluster_path}/topics", body, {"origin": "https://elsewhere.example"}, "POST")
    assert answer.status == 403


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none())))
def test_concatenated_values_are_told_apart(values: list[Any]) -> None:
    assert list(concatenated("".join(map(json.dumps, values)))) == values
    assert list(concatenated(" \n".join(map(json.dumps, values)) + "\n")) == values


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("partition_id", "headers", "key", "value", "timestamp"), JSON))
    | JSON
)
def test_whatever_a_record_is_it_is_taken_or_refused(record: Any) -> None:
    with contextlib.suppress(ConfigError):
        sent = parse_record(record)
        assert sent.timestamp is None or isinstance(time_text(sent.timestamp), str)


def test_many_small_records_take_no_time_for_the_rest_of_the_body() -> None:
    began = time.process_time()
    assert sum(1 for _ in concatenated("{} " * 1_000_000)) == 1_000_000
    assert time.process_time() - began < 30, "it takes 1 s; hours if each record copied the rest"


@given(st.text())
def test_whatever_is_sent_is_values_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        list(concatenated(text))


def test_states_are_written_as_rest_proxy_does() -> None:
    assert upper_snake("PreparingRebalance") == "PREPARING_REBALANCE"
    assert upper_snake("Stable") == "STABLE"
