"""Settings: parsing, precedence, and complaints that say what to set."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.listener import Listener
from broker.errors import ConfigError
from broker.settings import read_properties_file, settings_of


def load(**properties: str) -> BrokerConfig:
    return BrokerConfig.load(None, {name.replace("_", "."): value for name, value in properties.items()})


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"log.retention.minuts": "5"}, "unknown setting 'log.retention.minuts'; did you mean 'log.retention.minutes'"),
        ({"broker.id": "one"}, "broker.id=one: expected a value of type int"),
        ({"broker.id": "-2"}, "broker.id=-2: must be at least -1"),
        ({"log.cleanup.policy": "delete,shred"}, "'shred' is not one of delete, compact"),
        ({"listeners": "localhost:9092"}, "listeners=localhost:9092: expected PLAINTEXT://host:port"),
        ({"listeners": "WAN://localhost:9092"}, "Add WAN:PROTOCOL to listener.security.protocol.map"),
        ({"advertised.listeners": "PLAINTEXT://x"}, "advertised.listeners=PLAINTEXT://x"),
        ({"log.dirs": ""}, "log.dirs: name at least one directory"),
        ({"auto.create.topics.enable": "yes"}, "expected a value of type boolean"),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, "is above"),
        ({"group.min.session.timeout.ms": "0"}, "group.min.session.timeout.ms=0: must be at least 1"),
        ({"group.initial.rebalance.delay.ms": "-1"}, "group.initial.rebalance.delay.ms=-1: must be at least 0"),
        ({"group.max.size": "0"}, "group.max.size=0: must be at least 1"),
        ({"offset.metadata.max.bytes": "9000"}, "offset.metadata.max.bytes=9000: must lie between 0 and 8191"),
        ({"offsets.retention.minutes": "0"}, "offsets.retention.minutes=0: must be at least 1"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(None, properties)
    assert complaint in str(caught.value)


def test_the_defaults_of_groups_are_those_of_kafka() -> None:
    config = BrokerConfig()
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (6_000, 1_800_000)
    assert config.group_initial_rebalance_delay_ms == 3_000
    assert (config.offset_metadata_max_bytes, config.offsets_retention_minutes) == (4_096, 10_080)


def test_the_finer_unit_wins() -> None:
    assert load().topic_defaults()["retention.ms"] == str(168 * 3_600_000)
    assert load(log_retention_minutes="5").topic_defaults()["retention.ms"] == "300000"
    assert load(log_retention_minutes="5", log_retention_ms="7").topic_defaults()["retention.ms"] == "7"
    assert load(log_roll_ms="9").topic_defaults()["segment.ms"] == "9"


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# comment\nbroker.id = 3\nlog.dirs=/a,\\\n/b\n", encoding="utf-8")
    config = BrokerConfig.load(file, {"broker.id": "4"})
    assert (config.broker_id, config.log_dirs) == (4, ("/a", "/b"))


def test_keys_of_apache_kafka_without_meaning_here_are_let_pass() -> None:
    assert load(num_io_threads="8") == load()


def test_log_dir_stands_for_log_dirs() -> None:
    assert load(log_dir="/x").log_dirs == ("/x",)


def test_a_line_that_is_no_property_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("a=1\nnonsense\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2: expected key=value, found 'nonsense'"):
        read_properties_file(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_properties_file(tmp_path / "absent")


def test_every_setting_survives_being_described_and_parsed_again() -> None:
    config = load(log_dirs="/a,/b", num_partitions="3")
    keys = settings_of(BrokerConfig)
    given = {name: text for name, text in config.describe().items() if text or keys[name].type == "list"}
    assert BrokerConfig.load(None, {n: t for n, t in given.items() if t}) == config


def test_an_ipv6_listener_is_understood() -> None:
    assert Listener.parse("PLAINTEXT://[::1]:9092") == Listener("PLAINTEXT", "::1", 9092)
