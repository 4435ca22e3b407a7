"""`pykafka configs` against a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.client.cluster import Cluster
from broker.errors import ConfigError
from broker.tools.configs import parse_settings
from tests.support.console import answer_of, error_of, output_of
from tests.support.kafka import Kafka, await_topics
from tests.support.waiting import eventually


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


@pytest.fixture
def created(broker: Kafka, at: tuple[str, str], topic: str) -> str:
    answer_of("topics", "create", "--topic", topic, *at)
    await_topics(broker.bootstrap, topic)
    return topic


def settings_of(at: tuple[str, str], *arguments: str) -> dict[str, Any]:
    (found,) = json.loads(answer_of("configs", "describe", *arguments, "--json", *at))
    return {one["name"]: one for one in found["configs"]}


def test_settings_of_a_topic_are_set_shown_and_taken_back(at: tuple[str, str], created: str) -> None:
    named = ("--entity-type", "topics", "--entity-name", created)
    assert "nothing was set at run time" in output_of("configs", "describe", *named, *at)
    added = "retention.ms=5000,cleanup.policy=[compact,delete]"
    assert (
        answer_of("configs", "alter", *named, "--add-config", added, *at)
        == f"Altered the settings of topic {created}.\n"
    )
    eventually(lambda: set(settings_of(at, *named)) == {"retention.ms", "cleanup.policy"})
    shown = [line.split() for line in answer_of("configs", "describe", *named, *at).splitlines()]
    assert ["retention.ms", "5000", "DYNAMIC_TOPIC_CONFIG"] in shown
    assert ["cleanup.policy", "compact,delete", "DYNAMIC_TOPIC_CONFIG"] in shown
    answer_of("configs", "alter", *named, "--delete-config", "retention.ms,cleanup.policy", *at)
    eventually(lambda: settings_of(at, *named) == {})
    everything = settings_of(at, *named, "--all")
    assert everything["retention.ms"]["source"] != "DYNAMIC_TOPIC_CONFIG"
    assert everything["retention.ms"]["documentation"]
    assert set(settings_of(at, *named, "--key", "segment.bytes")) == {"segment.bytes"}


def test_settings_of_brokers_and_of_all_of_them(broker: Kafka, at: tuple[str, str], created: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        one = ("-e", "brokers", "-n", str(cluster.brokers()[0].id))
    for named in (one, ("-e", "brokers", "--entity-default")):
        answer_of("configs", "alter", *named, "--add-config", "log.segment.bytes=20971520", *at)
        eventually(lambda: settings_of(at, *named).get("log.segment.bytes", {}).get("value") == "20971520")  # noqa: B023
        assert settings_of(at, "-n", created) == {}, "the topic itself has no settings"
        answer_of("configs", "alter", *named, "--delete-config", "log.segment.bytes", *at)
        eventually(lambda: "log.segment.bytes" not in settings_of(at, *named))  # noqa: B023
    assert "log.retention.hours" in settings_of(at, *one, "--all")


def test_a_file_of_settings(at: tuple[str, str], created: str, tmp_path: Path) -> None:
    file = tmp_path / "topic.properties"
    file.write_text("retention.ms=7000\nsegment.bytes=1048576\n")
    answer_of("configs", "alter", "-n", created, "--add-config-file", str(file), "--validate-only", *at)
    assert settings_of(at, "-n", created) == {}
    answer_of("configs", "alter", "-n", created, "--add-config-file", str(file), *at)
    eventually(lambda: set(settings_of(at, "-n", created)) == {"retention.ms", "segment.bytes"})


@pytest.mark.parametrize(
    ("arguments", "complaint", "status"),
    [
        (["alter", "-n", "t"], "nothing to alter", 2),
        (["alter", "--add-config", "a=1"], "give --entity-name", 2),
        (["alter", "-n", "t", "--add-config", "nonsense"], "expected KEY=VALUE", 2),
        (["describe", "-e", "users"], "pykafka users", 2),
        (["describe", "-e", "topics", "--entity-default"], "goes with --entity-type brokers", 2),
        (["describe", "-n", "{topic}", "--key", "no.such"], "has no such setting", 2),
        (["alter", "-n", "{topic}", "--add-config", "retention.mss=1"], "INVALID_CONFIG (40)", 1),
        (["describe", "-n", "no-such-topic"], "UNKNOWN_TOPIC_OR_PARTITION", 1),
        (["describe", "-e", "brokers", "-n", "x"], "its id is a number", 1),
    ],
)
def test_what_cannot_be_is_told(
    at: tuple[str, str], created: str, arguments: list[str], complaint: str, status: int
) -> None:
    given = [argument.replace("{topic}", created) for argument in arguments]
    assert complaint in error_of("configs", *given, *at, status=status)


def test_pairs_and_lists_of_settings() -> None:
    assert parse_settings(["a=1,b=[x,y],c=", "d = 2 "]) == {"a": "1", "b": "x,y", "c": "", "d": "2"}
    assert parse_settings(["a=b=c"]) == {"a": "b=c"}
    for wrong in ("a", "=1", "a=[x", "a=1,b"):
        with pytest.raises(ConfigError, match="--add-config"):
            parse_settings([wrong])
