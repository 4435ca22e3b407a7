"""The API: shapes of REST Proxy v3, records with their neighbours, errors in one form, metrics."""

from __future__ import annotations

import base64

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

TOPIC, GROUP = "ui-api", "ui-api-group"


@pytest.fixture(scope="module")
def v3(ui: UiProcess, broker: Kafka) -> str:
    """The path of the cluster. It has a topic with ten records, of which a group has read four."""
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(TOPIC, 2)
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(TOPIC, b"%d" % number, key=b"\xff" if number == 9 else b"k", partition=number % 2)
            producer.flush(30)
        GroupOffsets(cluster, GROUP).commit({TopicPartition(TOPIC, 0): 3, TopicPartition(TOPIC, 1): 1})
    eventually(lambda: ui.get("/api/v3/clusters").status == 200)
    (found,) = ui.get("/api/v3/clusters").json["data"]
    path = f"/api/v3/clusters/{found['cluster_id']}"
    eventually(lambda: ui.get(f"{path}/topics/{TOPIC}").json.get("records") == 10)
    eventually(lambda: ui.get(f"{path}/consumer-groups/{GROUP}/lag-summary").json.get("total_lag") == 6)
    eventually(lambda: ui.get(f"{path}/topics/__consumer_offsets").status == 200)
    return path


def test_clusters_brokers_and_topics(ui: UiProcess, v3: str) -> None:
    assert ui.get(v3).json["kind"] == "KafkaCluster"
    (one,) = ui.get(f"{v3}/brokers").json["data"]
    assert (one["kind"], one["port"]) == ("KafkaBroker", one["port"])
    listed = {one["topic_name"]: one for one in ui.get(f"{v3}/topics").json["data"]}
    assert listed[TOPIC]["partitions_count"] == 2
    assert listed[TOPIC] == ui.get(f"{v3}/topics/{TOPIC}").json
    assert listed["__consumer_offsets"]["is_internal"]
    partitions = ui.get(f"{v3}/topics/{TOPIC}/partitions").json["data"]
    assert [(one["partition_id"], one["log_start_offset"], one["log_end_offset"]) for one in partitions] == [
        (0, 0, 5),
        (1, 0, 5),
    ]
    configs = {one["name"]: one for one in ui.get(f"{v3}/topics/{TOPIC}/configs").json["data"]}
    assert configs["retention.ms"]["is_default"]


def test_groups_and_their_lags(ui: UiProcess, v3: str) -> None:
    assert GROUP in {one["consumer_group_id"] for one in ui.get(f"{v3}/consumer-groups").json["data"]}
    lags = ui.get(f"{v3}/consumer-groups/{GROUP}/lags").json["data"]
    assert [(one["partition_id"], one["current_offset"], one["log_end_offset"], one["lag"]) for one in lags] == [
        (0, 3, 5, 2),
        (1, 1, 5, 4),
    ]
    summary = ui.get(f"{v3}/consumer-groups/{GROUP}/lag-summary").json
    assert (summary["max_lag"], summary["max_lag_partition_id"], summary["total_lag"]) == (4, 1, 6)


def test_records_and_their_neighbours(ui: UiProcess, v3: str) -> None:
    found = ui.get(f"/api/topics/{TOPIC}/records?from=start&partition=1&limit=3").json
    assert [one["value"] for one in found["records"]] == ["1", "3", "5"]
    assert found["older"] is None
    newer = ui.get(f"/api/topics/{TOPIC}/records?from=at&at={found['newer']}&partition=1").json
    assert [one["value"] for one in newer["records"]] == ["7", "9"]
    assert newer["records"][1]["key"] == {"base64": base64.b64encode(b"\xff").decode()}
    assert [one["offset"] for one in ui.get(f"/api/topics/{TOPIC}/records?text=9").json["records"]] == [4]


@pytest.mark.parametrize("start", ["from=end&", "from=start&", ""])
def test_an_offset_or_time_that_is_given_is_taken(ui: UiProcess, v3: str, start: str) -> None:
    found = ui.get(f"/api/topics/{TOPIC}/records?{start}at=3&partition=1&limit=1").json
    assert [one["offset"] for one in found["records"]] == [3]
    found = ui.get(f"/api/topics/{TOPIC}/records?{start}at=2001-01-01&partition=1&limit=1").json
    assert [one["offset"] for one in found["records"]] == [0]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/v3/clusters/other", 404, "there is no cluster 'other'"),
        ("{v3}/topics/none", 404, "there is no topic 'none'"),
        ("{v3}/consumer-groups/none/lags", 404, "there is no group 'none'"),
        ("/api/topics/none/records", 404, "there is no topic 'none'"),
        (f"/api/topics/{TOPIC}/records?partition=7", 404, "has 2 partitions, but no 7"),
        (f"/api/topics/{TOPIC}/records?partition=x", 400, "partition=x: expected a number"),
        (f"/api/topics/{TOPIC}/records?limit=100000", 400, "limit: "),
        (f"/api/topics/{TOPIC}/records?from=nowhere", 400, "from: "),
        (f"/api/topics/{TOPIC}/records?from=time&at=soon", 400, "at soon: expected ms since 1970"),
        (f"/api/topics/{TOPIC}/records?path=x[", 400, "path=x[: "),
        ("/api/history/nothing", 404, "there is no history of 'nothing'"),
        ("/api/none", 404, "Not Found"),
    ],
)
def test_errors_have_one_form(ui: UiProcess, v3: str, path: str, status: int, message: str) -> None:
    answer = ui.get(path.replace("{v3}", v3))
    assert answer.status == status
    assert answer.json["error_code"] == status
    assert message in answer.json["message"]


def test_every_route_of_the_api_is_described(ui: UiProcess, v3: str) -> None:
    described = ui.get("/api/openapi.json").json
    assert described["openapi"].startswith("3.")
    assert all(path.startswith("/api/") for path in described["paths"])
    assert "/api/v3/clusters/{cluster_id}/consumer-groups/{group_id}/lags" in described["paths"]
    assert set(described["paths"].pop("/api/streams")) == {"post"}  # reports, kept in the console's memory
    assert all(set(one) == {"get"} for one in described["paths"].values()), "nothing can be changed"


def test_prometheus_gets_the_lag_of_all_groups(ui: UiProcess, v3: str) -> None:
    families = {one.name: one for one in text_string_to_metric_families(ui.get("/metrics").text)}
    lags = {
        sample.labels["partition"]: sample.value
        for sample in families["kafka_consumergroup_lag"].samples
        if sample.labels["consumergroup"] == GROUP
    }
    assert lags == {"0": 2, "1": 4}
    assert families["pykafka_ui_cluster_up"].samples[0].value == 1
