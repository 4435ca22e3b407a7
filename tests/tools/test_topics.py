"""`pykafka topics` against a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.client.cluster_metadata import PartitionMetadata, TopicMetadata
from broker.tools.topics import _describe, under_replicated
from tests.support.console import answer_of, error_of, output_of, pykafka
from tests.support.kafka import Kafka, await_topics
from tests.support.waiting import eventually


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


def describe(at: tuple[str, str], topic: str) -> dict[str, Any]:
    (described,) = json.loads(answer_of("topics", "describe", "--topic", topic, "--json", *at))
    assert isinstance(described, dict)
    return described


def test_a_topic_is_created_described_altered_and_deleted(at: tuple[str, str], topic: str) -> None:
    configs = ("--config", "retention.ms=3600000", "--config", "segment.bytes=1048576")
    created = output_of("topics", "create", "--topic", topic, "--partitions", "3", *configs, *at)
    assert created == f"Created topic {topic}.\n"
    await_topics(at[1], topic, partitions=3)
    assert topic in answer_of("topics", "list", *at).splitlines()

    described = describe(at, topic)
    wanted = {"retention.ms": "3600000", "segment.bytes": "1048576"}
    assert wanted.items() <= described["configs"].items(), "a cluster may set some for all topics"
    last = described["partitions"][2]
    assert last["partition"] == 2
    assert last["leader"] in last["isr"]
    assert sorted(last["isr"]) == sorted(last["replicas"])
    text = answer_of("topics", "describe", "--topic", topic, *at).splitlines()
    assert f"PartitionCount: 3\tReplicationFactor: {len(last['replicas'])}\tConfigs: " in text[0]
    assert "retention.ms=3600000" in text[0]
    first = described["partitions"][0]
    replicas, isr = (",".join(map(str, first[what])) for what in ("replicas", "isr"))
    assert text[1] == f"\tTopic: {topic}\tPartition: 0\tLeader: {first['leader']}\tReplicas: {replicas}\tIsr: {isr}"
    assert len(text) == 4

    change = ("--partitions", "5", "--config", "retention.ms=60000", "--delete-config", "segment.bytes")
    answer_of("topics", "alter", "--topic", topic, *change, *at)
    await_topics(at[1], topic, partitions=5)
    eventually(lambda: describe(at, topic)["configs"].get("retention.ms") == "60000")
    described = describe(at, topic)
    assert described["partitionCount"] == 5
    assert "segment.bytes" not in described["configs"]

    assert answer_of("topics", "delete", "--topic", topic, *at) == f"Deleted topic {topic}.\n"
    eventually(lambda: topic not in json.loads(answer_of("topics", "list", "--json", *at)))


def test_if_not_exists_and_if_exists_take_things_as_they_are(at: tuple[str, str], topic: str) -> None:
    assert "no topic" in answer_of("topics", "delete", "--topic", topic, "--if-exists", *at)
    assert "no topic" in answer_of("topics", "alter", "--topic", topic, "--if-exists", "--partitions", "2", *at)
    assert answer_of("topics", "describe", "--topic", topic, "--if-exists", *at) == ""
    answer_of("topics", "create", "--topic", topic, *at)
    assert "exists already" in answer_of("topics", "create", "--topic", topic, "--if-not-exists", *at)


def test_without_them_it_is_an_error(at: tuple[str, str], topic: str) -> None:
    assert "UNKNOWN_TOPIC_OR_PARTITION" in error_of("topics", "delete", "--topic", topic, *at)
    assert f"there is no topic '{topic}'" in error_of("topics", "describe", "--topic", topic, *at)
    assert f"there is no topic '{topic}'" in error_of("topics", "alter", "--topic", topic, "--partitions", "2", *at)
    answer_of("topics", "create", "--topic", topic, *at)
    assert "TOPIC_ALREADY_EXISTS" in error_of("topics", "create", "--topic", topic, *at)


@pytest.mark.parametrize(
    ("arguments", "complaint", "status"),
    [
        (["create", "--topic", "bad name"], "INVALID_TOPIC_EXCEPTION", 1),
        (["create", "--topic", "t-bad-config", "--config", "retention.mss=1"], "retention.mss", 1),
        (["create", "--topic", "t-bad-value", "--config", "retention.ms=soon"], "retention.ms", 1),
        (["create", "--topic", "t-replicas", "--replication-factor", "99"], "INVALID_REPLICATION_FACTOR", 1),
        (["list", "--command-config", "no-such-file"], "cannot read no-such-file", 2),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    at: tuple[str, str], arguments: list[str], complaint: str, status: int
) -> None:
    error = error_of("topics", *arguments, *at, status=status)
    assert complaint in error
    assert len(error.splitlines()) == 1


def test_an_alteration_of_nothing_is_wrong_usage(at: tuple[str, str]) -> None:
    assert "nothing to alter" in error_of("topics", "alter", "--topic", "t", *at, status=2)


def test_changes_are_told_as_json(at: tuple[str, str], topic: str) -> None:
    assert json.loads(answer_of("topics", "create", "--topic", topic, "--json", *at)) == {
        "topic": topic,
        "created": True,
    }
    again = answer_of("topics", "create", "--topic", topic, "--if-not-exists", "--json", *at)
    assert json.loads(again) == {"topic": topic, "created": False}


def test_the_oldest_records_are_deleted(at: tuple[str, str], topic: str) -> None:
    answer_of("topics", "create", "--topic", topic, "--partitions", "2", *at)
    answer_of("produce", "--topic", topic, "--partition", "1", *at, stdin=b"a\nb\nc\n")
    one = json.loads(answer_of("topics", "delete-records", "--topic", topic, "-p", "1", "--before", "2", "--json", *at))
    assert one == [{"topic": topic, "partition": 1, "logStartOffset": 2}]
    table = answer_of("topics", "delete-records", "--topic", topic, "--before", "latest", *at).splitlines()
    assert [line.split()[1:] for line in table[1:]] == [["0", "0"], ["1", "3"]]
    assert "OFFSET_OUT_OF_RANGE" in error_of("topics", "delete-records", "--topic", topic, "--before", "9", *at)
    assert "an offset, or latest" in error_of(
        "topics", "delete-records", "--topic", topic, "--before", "x", *at, status=2
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--replication-factor", "1", "--wait"), "All replicas are in place.\n"), ((), "No reassignment runs.\n")],
)
def test_reassignments_that_are_done_are_not_passed_over(
    at: tuple[str, str], made_topic: str, options: tuple[str, ...], said: str
) -> None:
    done = pykafka("topics", "reassign", "--topic", made_topic, *options, *at)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", said)


def test_too_few_brokers_for_the_replicas_are_told_before_anything_moves(at: tuple[str, str], made_topic: str) -> None:
    to = ("--topic", made_topic, "--brokers", "7", "--replication-factor", "2")
    error = error_of("topics", "reassign", *to, *at, status=2)
    assert "2 replicas need as many brokers; name more, or give --replication-factor 1" in error


def test_the_environment_names_the_broker(broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKAFKA_BOOTSTRAP_SERVER", broker.bootstrap)
    assert answer_of("topics", "create", "--topic", topic) == f"Created topic {topic}.\n"


def test_an_unreachable_broker_is_named() -> None:
    error = error_of("topics", "list", "--bootstrap-server", "127.0.0.1:1")
    assert "127.0.0.1:1" in error
    assert "--bootstrap-server names a running one" in error


def test_a_file_for_kafkas_own_tools_is_taken_and_a_slip_of_the_pen_is_not(
    broker: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.properties"
    lines = [f"bootstrap.servers={broker.bootstrap}", "key.deserializer=org.example.Strings", "metric.reporters="]
    file.write_text("\n".join(lines), encoding="utf-8")
    answer_of("topics", "list", "--config", str(file))
    assert caplog.messages == [f"{file}: these settings are not used: key.deserializer, metric.reporters"]
    for name in ("security.protcol", "sasl.oauthbearer.token.endpoint.uri", "bootstrap.server"):
        file.write_text(f"{name}=x", encoding="utf-8")
        assert f"unknown setting '{name}'" in error_of("topics", "list", "--config", str(file), status=2)


def test_only_partitions_that_lack_a_replica_or_a_leader_are_under_replicated(at: tuple[str, str], topic: str) -> None:
    partitions = {
        0: PartitionMetadata(leader=1, leader_epoch=0, replicas=(1, 2), isr=(1, 2)),
        1: PartitionMetadata(leader=1, leader_epoch=0, replicas=(1, 2), isr=(1,)),
        2: PartitionMetadata(leader=-1, leader_epoch=0, replicas=(2,), isr=(2,)),
    }
    described = TopicMetadata("t", None, False, partitions)
    assert list(under_replicated(described)) == [1, 2]
    document = _describe(described, under_replicated(described), {})
    assert (document["partitionCount"], document["replicationFactor"]) == (3, 2), "of the whole topic"
    assert [one["partition"] for one in document["partitions"]] == [1, 2]
    answer_of("topics", "create", "--topic", topic, *at)
    assert topic in answer_of("topics", "list", *at).split()
    assert topic not in answer_of("topics", "list", "--under-replicated", *at).split()
    assert answer_of("topics", "describe", "--topic", topic, "--under-replicated-partitions", *at) == ""
