"""A `server.properties` of Apache Kafka or Confluent: it works, or one start names everything that is in the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.group_config import GroupConfig
from broker.config.kafka_settings import IGNORED, REFUSED, SWITCHES, is_ignored, why_refused
from broker.errors import ConfigError
from broker.settings import did_you_mean, settings_of

# What the files that Apache Kafka ships set, by its version.
COMMON = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kafka-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "log.retention.hours": "168",
    "log.retention.check.interval.ms": "300000",
}
TOPICS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
ZOOKEEPER = {"broker.id": "0", "zookeeper.connect": "localhost:2181", "zookeeper.connection.timeout.ms": "18000"}
KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
}
FILES: Mapping[str, Mapping[str, str]] = {
    "0.10, ZooKeeper": {**COMMON, **ZOOKEEPER, "log.cleaner.enable": "true"},
    "2.8, ZooKeeper": {**COMMON, **TOPICS, **ZOOKEEPER, "group.initial.rebalance.delay.ms": "0"},
    "2.8, KRaft": {**COMMON, **TOPICS, **KRAFT, "controller.quorum.voters": "1@localhost:9093"},
    "3.9, KRaft": {**COMMON, **TOPICS, **KRAFT, "controller.quorum.bootstrap.servers": "localhost:9093"},
    "4.0, KRaft": {
        **COMMON,
        **TOPICS,
        **KRAFT,
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    },
    "Confluent": {
        **COMMON,
        **TOPICS,
        **ZOOKEEPER,
        "metric.reporters": "io.confluent.metrics.reporter.ConfluentMetricsReporter",
        "confluent.metrics.reporter.bootstrap.servers": "localhost:9092",
        "confluent.metrics.reporter.topic.replicas": "1",
        "confluent.support.metrics.enable": "true",
        "confluent.support.customer.id": "anonymous",
        "confluent.license.topic.replication.factor": "1",
        "confluent.metadata.topic.replication.factor": "1",
        "confluent.balancer.enable": "true",
        "confluent.balancer.topic.replication.factor": "1",
        "confluent.security.event.logger.exporter.kafka.topic.replicas": "1",
    },
}


def load(tmp_path: Path, settings: Mapping[str, str]) -> BrokerConfig:
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return BrokerConfig.load(file)


@pytest.mark.parametrize("settings", FILES.values(), ids=FILES)
def test_a_shipped_file_is_taken_with_one_line_about_what_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: Mapping[str, str]
) -> None:
    with caplog.at_level(logging.INFO):
        config = load(tmp_path, settings)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("ignored, as it has no meaning in pykafka: ")
    assert "num.network.threads" in line
    assert config.log_dirs == ("/tmp/kafka-logs",)
    assert config.broker_id == int(settings.get("node.id", "0"))
    assert [one.name for one in config.parsed_listeners()] == ["PLAINTEXT"]  # never the controllers'


def test_all_that_is_unknown_is_named_at_once(tmp_path: Path) -> None:
    wrong = {
        "log.retention.minuts": "5",
        "some.plugin.setting": "x",
        "ssl.engine.factory.class": "com.example.Engine",
        "zookeeper.set.acl": "true",
        "host.name": "a",
    }
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, {**FILES["2.8, ZooKeeper"], **wrong})
    told = str(refused.value)
    assert told.startswith("unknown settings ")
    assert "'log.retention.minuts'; did you mean 'log.retention.minutes'?" in told
    assert "'some.plugin.setting'," in told
    assert "'ssl.engine.factory.class' (a class of Java cannot be loaded here)" in told
    assert "'zookeeper.set.acl' (the nodes in ZooKeeper get no ACLs here)" in told
    assert "'host.name' (set listeners and advertised.listeners)" in told


PROTECTING = {
    "zookeeper.set.acl": "true",
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.keystore.location": "/k",
    "principal.builder.class": "x",
    "sasl.server.callback.handler.class": "x",
    "sasl.login.callback.handler.class": "x",
    "security.providers": "x",
    "create.topic.policy.class.name": "x",
    "alter.config.policy.class.name": "x",
    "client.quota.callback.class": "x",
    "password.encoder.secret": "x",
    "quota.producer.default": "1024",
    "confluent.authorizer.access.rule.providers": "x",
    "confluent.metadata.server.authentication.method": "BEARER",
}


@pytest.mark.parametrize("name", PROTECTING)
def test_what_protects_or_limits_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, {name: PROTECTING[name]})
    assert str(refused.value) == f"unknown setting {name!r} ({why_refused(name)})"


@pytest.mark.parametrize("name", SWITCHES)
def test_a_feature_that_is_off_is_ignored(tmp_path: Path, name: str) -> None:
    load(tmp_path, {name: "false"})
    assert not is_ignored(name, "true")
    assert why_refused(name)


def test_no_setting_of_ours_is_taken_for_one_without_a_meaning() -> None:
    for name in settings_of(BrokerConfig):
        assert not why_refused(name), name
    assert len(set(IGNORED)) == len(IGNORED)
    assert not set(IGNORED) & set(REFUSED)


def test_a_controller_is_no_broker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="process.roles=controller: "):
        load(tmp_path, {**KRAFT, "process.roles": "controller"})
    with pytest.raises(ConfigError, match="node.id=1 and broker.id=2"):
        load(tmp_path, {**KRAFT, "broker.id": "2"})
    assert load(tmp_path, {**KRAFT, "broker.id": "1"}).broker_id == 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("log.retention.minuts", "log.retention.minutes"),
        ("log_dirs", "log.dirs"),
        ("log.dir.s", "log.dirs"),
        ("listners", "listeners"),
        ("brokre.id", "broker.id"),
        ("process.roles", ""),
        ("node.id", ""),
        ("controller.quorum.voters", ""),
        ("log.retention.weeks", ""),
        ("some.plugin", ""),
        ("metadata.log.dir", ""),
    ],
)
def test_a_suggestion_is_a_slip_away(name: str, meant: str) -> None:
    assert did_you_mean(name, settings_of(BrokerConfig)) == (f"; did you mean {meant!r}?" if meant else "")


def test_a_setting_of_ours_is_taken_whatever_pattern_it_matches() -> None:
    taken = BrokerConfig.load(overrides={"group.consumer.session.timeout.ms": "50000", "group.consumer.unknown": "1"})
    assert GroupConfig.of(taken, {}).consumer_session_timeout_ms == 50_000
    assert is_ignored("group.consumer.session.timeout.ms", "50000"), "but it is declared"
