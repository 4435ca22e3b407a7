"""Broker settings that change at run time: kept in ZooKeeper, in force at once and after a restart; and log levels."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from tests.api.test_configs import BROKER, DELETE, SET, TOPIC, alter, describe, setting
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch
from tests.support.waiting import eventually

LOGGER = 8
OWN, DEFAULT_OF_ALL, STATIC, BUILT_IN = 2, 3, 4, 5

FILE = {"log.retention.hours": "48", "broker.id": "7", "message.max.bytes": "2000"}


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    """A broker whose settings may be altered. Each test removes what it set."""
    with BrokerProcess(tmp_path_factory.mktemp("altered"), FILE, zookeeper=f"{zookeeper}/altered") as process:
        yield process


@pytest.fixture
def ask(altered: BrokerProcess) -> Iterator[Requests]:
    with Requests(altered.bootstrap) as made:
        yield made
        for name in ("7", ""):
            keys = [c.name for c in describe(made, BROKER, name).configs if c.config_source in (OWN, DEFAULT_OF_ALL)]
            alter(made, name, *((key, DELETE, None) for key in keys), kind=BROKER)


def of_broker(ask: Requests, key: str, name: str = "7") -> tuple[str | None, int, list[tuple[str, str, int]]]:
    """Value, source, synonyms."""
    (found,) = describe(ask, BROKER, name, [key], include_synonyms=True).configs
    return found.value, found.config_source, [(s.name, s.value, s.source) for s in found.synonyms]


def altering(ask: Requests, name: str, values: Mapping[str, str], **more: Any) -> Any:
    return alter(ask, name, *((key, SET, value) for key, value in values.items()), kind=BROKER, **more)


def test_the_nearest_setting_wins_and_the_others_are_its_synonyms(ask: Requests, topic: str) -> None:
    ask.create(topic)
    in_file, built_in = ("log.retention.hours", "48", STATIC), ("log.retention.hours", "168", BUILT_IN)
    # As Kafka: what the file sets in hours holds, but it is no synonym of a setting in milliseconds.
    assert setting(ask, topic, "retention.ms") == (str(48 * 3_600_000), BUILT_IN)
    assert altering(ask, "", {"log.retention.ms": "3000"}).error_code is ErrorCode.none
    assert setting(ask, topic, "retention.ms") == ("3000", DEFAULT_OF_ALL)
    assert altering(ask, "7", {"log.retention.ms": "2000"}).error_code is ErrorCode.none
    (found,) = describe(ask, TOPIC, topic, ["retention.ms"], include_synonyms=True).configs
    assert (found.value, found.config_source) == ("2000", OWN)
    of_all, own = ("log.retention.ms", "3000", DEFAULT_OF_ALL), ("log.retention.ms", "2000", OWN)
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [own, of_all, in_file, built_in]
    assert of_broker(ask, "log.retention.ms") == ("2000", OWN, [own, of_all, in_file, built_in])
    assert of_broker(ask, "log.retention.ms", "") == ("3000", DEFAULT_OF_ALL, [of_all])
    assert of_broker(ask, "log.retention.hours") == ("48", STATIC, [in_file, built_in])


def test_one_that_is_set_nowhere_has_no_value(ask: Requests) -> None:
    assert of_broker(ask, "log.roll.ms") == (None, BUILT_IN, [])
    assert of_broker(ask, "broker.id")[:2] == ("7", STATIC)


def test_only_what_was_altered_is_described_for_all_brokers(ask: Requests) -> None:
    assert list(describe(ask, BROKER, "").configs) == []
    altering(ask, "", {"log.segment.bytes": "5000"})
    assert [c.name for c in describe(ask, BROKER, "").configs] == ["log.segment.bytes"]


def test_a_changed_limit_holds_for_the_next_record(ask: Requests, topic: str) -> None:
    def code(size: int) -> ErrorCode:
        return ErrorCode(ask.produce({(topic, 0): batch(b"x" * size)})[topic, 0].error_code)

    ask.create(topic)
    assert code(3000) is ErrorCode.message_too_large
    altering(ask, "", {"message.max.bytes": "4000"})
    assert code(3000) is ErrorCode.none
    altering(ask, "7", {"message.max.bytes": "1000"})
    assert (code(1500), code(500)) == (ErrorCode.message_too_large, ErrorCode.none)
    alter(ask, "7", ("message.max.bytes", DELETE, None), kind=BROKER)
    assert code(3000) is ErrorCode.none


def test_a_topics_own_setting_wins_over_the_brokers(ask: Requests, topic: str) -> None:
    ask.create(topic, max_message_bytes="500")
    altering(ask, "", {"message.max.bytes": "4000"})
    assert ask.produce({(topic, 0): batch(b"x" * 1000)})[topic, 0].error_code is ErrorCode.message_too_large


def test_connections_are_limited_from_the_change_on(altered: BrokerProcess, ask: Requests) -> None:
    assert altering(ask, "7", {"max.connections.per.ip": "1"}).error_code is ErrorCode.none
    with socket.create_connection(("127.0.0.1", altered.port), timeout=60) as one_too_many:
        assert one_too_many.recv(1) == b""
    alter(ask, "7", ("max.connections.per.ip", DELETE, None), kind=BROKER)
    with Requests(altered.bootstrap) as another:
        assert another.metadata().controller_id == 7


@pytest.mark.parametrize(
    ("name", "values", "complaint"),
    [
        ("7", {"broker.id": "8"}, "cannot update broker.id dynamically"),
        ("7", {"log.retention.hours": "8"}, "cannot update log.retention.hours dynamically"),
        ("", {"zookeeper.connect": "x"}, "cannot update zookeeper.connect dynamically"),
        ("7", {"message.max.byte": "8"}, "did you mean 'message.max.bytes'"),
        ("7", {"message.max.bytes": "lots"}, "expected a value of type int"),
        ("", {"log.cleanup.policy": "none"}, "'none' is not one of"),
        ("8", {"message.max.bytes": "8"}, "not 8"),
        ("seven", {"message.max.bytes": "8"}, "must be an integer"),
    ],
)
@pytest.mark.parametrize("api", [ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS], ids=lambda api: api.name)
def test_what_cannot_be_altered_is_refused_with_a_reason(
    ask: Requests, api: ApiKey, name: str, values: dict[str, str], complaint: str
) -> None:
    good = {"log.segment.bytes": "12345"}
    configs = [{"name": k, "config_operation": SET, "value": v} for k, v in {**good, **values}.items()]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": configs}
    answer = ask.ask(api, {"resources": [resource], "validate_only": False}).responses[0]
    assert answer.error_code is ErrorCode.invalid_request
    assert complaint in answer.error_message
    assert of_broker(ask, "log.segment.bytes")[1] == BUILT_IN


def test_validate_only_changes_nothing(ask: Requests) -> None:
    assert altering(ask, "7", {"message.max.bytes": "9"}, validate_only=True).error_code is ErrorCode.none
    assert altering(ask, "7", {"message.max.bytes": "x"}, validate_only=True).error_code is ErrorCode.invalid_request
    assert of_broker(ask, "message.max.bytes")[:2] == ("2000", STATIC)


def test_alter_configs_replaces_all_that_was_altered(ask: Requests) -> None:
    altering(ask, "7", {"message.max.bytes": "9", "log.segment.bytes": "5000"})
    configs = [{"name": "message.max.bytes", "value": "10"}]
    resource = {"resource_type": BROKER, "resource_name": "7", "configs": configs}
    ask.ask(ApiKey.ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
    assert of_broker(ask, "message.max.bytes")[:2] == ("10", OWN)
    assert of_broker(ask, "log.segment.bytes")[1] == BUILT_IN


def test_what_kafkas_tools_write_in_zookeeper_is_taken_over_and_nonsense_left_out(
    altered: BrokerProcess, ask: Requests, zookeeper: str
) -> None:
    with ZooKeeper(f"{zookeeper}/altered", session_timeout_ms=6000) as zk:
        written = {"message.max.bytes": "77", "no.such.key": "1", "log.segment.bytes": "few"}
        Registry(zk).alter_broker_config("<default>", written)
        ChangeNotifications(zk).notify_config_change("brokers/<default>")
        eventually(lambda: of_broker(ask, "message.max.bytes")[0] == "77")
        assert of_broker(ask, "log.segment.bytes")[1] == BUILT_IN
        Registry(zk).alter_broker_config("<default>", dict.fromkeys(written))
    assert "an altered broker setting is ignored: unknown setting 'no.such.key'" in altered.output


def test_altered_settings_outlive_a_restart(tmp_path: Path, zookeeper: str, topic: str) -> None:
    with BrokerProcess(tmp_path / "b", FILE, zookeeper=f"{zookeeper}/{tmp_path.name}") as broker:
        with Requests(broker.bootstrap) as ask:
            ask.create(topic)
            altering(ask, "7", {"message.max.bytes": "1000"})
            altering(ask, "", {"message.max.bytes": "5000", "log.segment.bytes": "6000", "max.connections.per.ip": "1"})
        broker.restart()
        with Requests(broker.bootstrap) as ask:
            with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as one_too_many:
                assert one_too_many.recv(1) == b""
            assert of_broker(ask, "message.max.bytes")[:2] == ("1000", OWN)
            assert setting(ask, topic, "segment.bytes") == ("6000", DEFAULT_OF_ALL)
            assert ask.produce({(topic, 0): batch(b"x" * 1500)})[topic, 0].error_code is ErrorCode.message_too_large


class TestLogLevels:
    NAME = "broker.cluster.topic_changes"

    def level(self, ask: Requests, name: str = NAME) -> tuple[str, int]:
        (found,) = describe(ask, LOGGER, "7", [name]).configs
        return found.value, found.config_source

    def test_are_seen_set_and_taken_away(self, altered: BrokerProcess, ask: Requests, topic: str) -> None:
        assert self.level(ask) == ("INFO", 6)
        assert alter(ask, "7", (self.NAME, SET, "ERROR"), kind=LOGGER).error_code is ErrorCode.none
        assert self.level(ask) == ("ERROR", 6)
        ask.create(topic)
        assert topic not in altered.output
        assert alter(ask, "7", (self.NAME, DELETE, None), kind=LOGGER).error_code is ErrorCode.none
        assert self.level(ask) == ("INFO", 6)

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ((NAME, SET, "LOUD"), ErrorCode.invalid_config),
            (("no.such.logger", SET, "INFO"), ErrorCode.invalid_config),
            ((NAME, 2, "INFO"), ErrorCode.invalid_config),
            (("root", DELETE, None), ErrorCode.invalid_request),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, ask: Requests, change: tuple[str, int, str | None], code: ErrorCode
    ) -> None:
        assert alter(ask, "7", change, kind=LOGGER).error_code is code

    def test_are_not_set_by_alter_configs(self, ask: Requests) -> None:
        configs = [{"name": self.NAME, "value": "ERROR"}]
        resource = {"resource_type": LOGGER, "resource_name": "7", "configs": configs}
        answer = ask.ask(ApiKey.ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
        assert answer.responses[0].error_code is ErrorCode.invalid_request
        assert self.level(ask)[0] == "INFO"
