"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs: what they show and refuse, and that changes are in force at
once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.conftest import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch, versions

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(
    ask: Requests, kind: int, name: str, keys: list[str] | None = None, version: int | None = None, **more: bool
) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return ask.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource], **more}, version).results[0]


def setting(ask: Requests, topic: str, key: str) -> tuple[str, int]:
    """Value and source."""
    (found,) = describe(ask, TOPIC, topic, [key]).configs
    return found.value, found.config_source


def alter(
    ask: Requests,
    topic: str,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    validate_only: bool = False,
    version: int | None = None,
) -> Any:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": topic, "configs": configs}
    body = {"resources": [resource], "validate_only": validate_only}
    return ask.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body, version).responses[0]


def test_the_oldest_version_tells_defaults_only(ask: Requests, topic: str) -> None:
    ask.create(topic, retention_ms="1234")
    found = {c.name: c for c in describe(ask, TOPIC, topic, version=0).configs}
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("1234", False)
    assert (found["segment.bytes"].value, found["segment.bytes"].is_default) == ("1073741824", True)
    assert not hasattr(found["retention.ms"], "synonyms")


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS)[1:])
def test_every_version_describes_a_topic(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic, retention_ms="1234")
    answer = describe(ask, TOPIC, topic, version=version, include_synonyms=True, include_documentation=True)
    assert answer.error_code is ErrorCode.none
    found = {c.name: c for c in answer.configs}
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("1234", 1)
    assert [(s.name, s.value, s.source) for s in found["retention.ms"].synonyms] == [
        ("retention.ms", "1234", 1),
    ]
    segments = [(s.name, s.value, s.source) for s in found["segment.bytes"].synonyms]
    assert segments == [("log.segment.bytes", "1073741824", 5)]
    assert found["segment.bytes"].config_source == 5


def test_the_broker_is_described_by_its_id(ask: Requests, broker: BrokerProcess) -> None:
    (found,) = describe(ask, BROKER, "0", ["group.initial.rebalance.delay.ms"]).configs
    assert (found.value, found.config_source, found.read_only) == ("50", 4, True)
    for name in ("77", "x"):
        assert describe(ask, BROKER, name).error_code is ErrorCode.invalid_request


def test_the_types_are_kafkas(ask: Requests, topic: str) -> None:
    boolean, string, int_, short, long_, double, list_ = range(1, 8)
    ask.create(topic)
    assert {c.name: c.config_type for c in describe(ask, TOPIC, topic).configs} == {
        "cleanup.policy": list_,
        "compression.type": string,
        "message.timestamp.type": string,
        "archive.topic.id": string,
        "errors.deadletterqueue.group.enable": boolean,
        "min.cleanable.dirty.ratio": double,
        "preallocate": boolean,
        "unclean.leader.election.enable": boolean,
        **dict.fromkeys(["segment.bytes", "segment.index.bytes", "index.interval.bytes", "max.message.bytes"], int_),
        **dict.fromkeys(["min.insync.replicas"], int_),
        **{f"compression.{codec}.level": int_ for codec in ("gzip", "lz4", "zstd")},
        **{f"{side}.replication.throttled.replicas": list_ for side in ("leader", "follower")},
        "remote.storage.enable": boolean,
        "remote.log.copy.disable": boolean,
        "remote.log.delete.on.disable": boolean,
        **dict.fromkeys(["local.retention.ms", "local.retention.bytes"], long_),
        **dict.fromkeys(["retention.ms", "retention.bytes", "delete.retention.ms", "file.delete.delay.ms"], long_),
        **dict.fromkeys(["min.compaction.lag.ms", "max.compaction.lag.ms", "segment.ms", "segment.jitter.ms"], long_),
        **dict.fromkeys(["flush.messages", "flush.ms"], long_),
        **dict.fromkeys(["message.timestamp.before.max.ms", "message.timestamp.after.max.ms"], long_),
    }
    of_broker = {c.name: c.config_type for c in describe(ask, BROKER, "0").configs}
    assert of_broker["log.retention.hours"] == of_broker["message.max.bytes"] == int_
    assert of_broker["log.retention.ms"] == of_broker["connections.max.idle.ms"] == long_
    assert of_broker["offsets.topic.replication.factor"] == short


def test_what_is_not_there_is_refused(ask: Requests) -> None:
    assert describe(ask, TOPIC, "no-such-topic").error_code is ErrorCode.unknown_topic_or_partition
    assert describe(ask, 99, "x").error_code is ErrorCode.invalid_request
    assert alter(ask, "no-such-topic").error_code is ErrorCode.unknown_topic_or_partition
    assert alter(ask, "").error_code is ErrorCode.invalid_request
    assert alter(ask, "a/b").error_code is ErrorCode.invalid_topic_exception
    for kind in (16, 99):
        assert describe(ask, kind, "x").error_code is ErrorCode.invalid_request
        assert alter(ask, "x", kind=kind).error_code is ErrorCode.invalid_request


def test_a_resource_or_a_setting_that_is_named_twice_is_refused(ask: Requests, topic: str) -> None:
    ask.create(topic)
    change = ("retention.ms", SET, "5")
    assert alter(ask, topic, change, change).error_code is ErrorCode.invalid_request
    configs = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configs": configs}] * 2
    body = {"resources": resources, "validate_only": False}
    answers = ask.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body).responses
    assert [a.error_code for a in answers] == [ErrorCode.invalid_request] * 2
    assert setting(ask, topic, "retention.ms")[1] == 5


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_a_setting_is_set_and_taken_away(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic)
    assert alter(ask, topic, ("retention.ms", SET, "99"), version=version).error_code is ErrorCode.none
    assert setting(ask, topic, "retention.ms") == ("99", 1)
    assert alter(ask, topic, ("retention.ms", DELETE, None), version=version).error_code is ErrorCode.none
    assert setting(ask, topic, "retention.ms") == ("604800000", 5)


def test_a_list_is_appended_to_and_subtracted_from(ask: Requests, topic: str) -> None:
    ask.create(topic)
    alter(ask, topic, ("cleanup.policy", APPEND, "compact"))
    assert setting(ask, topic, "cleanup.policy")[0] == "delete,compact"
    alter(ask, topic, ("cleanup.policy", SUBTRACT, "delete"))
    assert setting(ask, topic, "cleanup.policy")[0] == "compact"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.m", SET, "1"), ErrorCode.invalid_config),
        (("retention.ms", SET, "soon"), ErrorCode.invalid_config),
        (("retention.ms", APPEND, "1"), ErrorCode.invalid_config),
        (("cleanup.policy", SET, "keep"), ErrorCode.invalid_config),
        (("retention.ms", SET, None), ErrorCode.invalid_request),
        (("retention.ms", 9, "1"), ErrorCode.invalid_request),
    ],
)
def test_a_bad_change_changes_nothing(
    ask: Requests, topic: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    ask.create(topic)
    answer = alter(ask, topic, ("segment.ms", SET, "5000"), change)
    assert answer.error_code is code
    assert answer.error_message
    assert setting(ask, topic, "segment.ms")[1] == 5


def test_validate_only_changes_nothing(ask: Requests, topic: str) -> None:
    ask.create(topic)
    assert alter(ask, topic, ("retention.ms", SET, "5"), validate_only=True).error_code is ErrorCode.none
    assert setting(ask, topic, "retention.ms")[1] == 5


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_alter_configs_replaces_all(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic, retention_ms="7")
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "segment.ms", "value": "5000"}]}
    body = {"resources": [resource], "validate_only": False}
    assert ask.ask(ApiKey.ALTER_CONFIGS, body, version).responses[0].error_code is ErrorCode.none
    assert setting(ask, topic, "segment.ms") == ("5000", 1)
    assert setting(ask, topic, "retention.ms")[1] == 5


def test_a_group_has_settings_of_its_own_over_those_of_the_broker(ask: Requests, broker: BrokerProcess) -> None:
    group, key = unique_name("g"), "consumer.session.timeout.ms"
    (found,) = describe(ask, GROUP, group, [key], include_synonyms=True).configs
    assert (found.value, found.config_source) == ("45000", 5)
    assert [(one.name, one.value) for one in found.synonyms] == [("group.consumer.session.timeout.ms", "45000")]
    assert alter(ask, group, (key, SET, "50000"), kind=GROUP).error_code is ErrorCode.none
    (found,) = describe(ask, GROUP, group, [key], include_synonyms=True).configs
    assert (found.value, found.config_source) == ("50000", 8)
    assert [one.name for one in found.synonyms] == [key, "group.consumer.session.timeout.ms"]
    listed = ask.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [GROUP]}).config_resources
    assert group in {one.resource_name for one in listed}
    assert alter(ask, group, (key, DELETE, None), kind=GROUP).error_code is ErrorCode.none
    assert describe(ask, GROUP, group, [key]).configs[0].value == "45000"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("consumer.session.timeout.ms", "44999", "the broker's group.consumer.min.session.timeout.ms=45000"),
        ("consumer.session.timeout.ms", "60001", "the broker's group.consumer.max.session.timeout.ms=60000"),
        ("consumer.heartbeat.interval.ms", "100", "the broker's group.consumer.min.heartbeat.interval.ms=5000"),
        ("consumer.heartbeat.interval.ms", "x", "consumer.heartbeat.interval.ms"),
        ("consumer.no.such", "1", "unknown setting 'consumer.no.such'"),
    ],
)
def test_a_bad_setting_of_a_group_is_refused_in_words(ask: Requests, key: str, value: str, told: str) -> None:
    answer = alter(ask, unique_name("g"), (key, SET, value), kind=GROUP)
    assert answer.error_code is ErrorCode.invalid_config
    assert told in answer.error_message
    assert alter(ask, "", (key, DELETE, None), kind=GROUP).error_code is ErrorCode.invalid_request


def test_changes_hold_at_once_and_over_a_restart(broker_factory: Callable[..., BrokerProcess], topic: str) -> None:
    broker = broker_factory({"log.retention.check.interval.ms": "50", "log.flush.scheduler.interval.ms": "50"})

    def codes(ask: Requests) -> list[ErrorCode]:
        return [ask.produce({(topic, 0): batch(b"x" * size)})[topic, 0].error_code for size in (100, 1000)]

    with Requests(broker.bootstrap) as ask:
        ask.create(topic)
        assert codes(ask) == [ErrorCode.none, ErrorCode.none]
        alter(ask, topic, ("max.message.bytes", SET, "500"))
        assert codes(ask) == [ErrorCode.none, ErrorCode.message_too_large]
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert codes(ask) == [ErrorCode.none, ErrorCode.message_too_large]
        assert setting(ask, topic, "max.message.bytes") == ("500", 1)


def test_what_zookeeper_cannot_take_is_refused_and_costs_no_session(
    broker_factory: Callable[..., BrokerProcess], topic: str
) -> None:
    """It closes the connection of a client with a request above 1 MB: who may alter one topic could keep doing that."""
    broker = broker_factory({})
    with Requests(broker.bootstrap) as ask:
        ask.create(topic)
        answer = alter(ask, topic, ("leader.replication.throttled.replicas", SET, ",".join(["0:0"] * 300_000)))
        assert answer.error_code is ErrorCode.invalid_request
        assert "bytes are more than ZooKeeper takes in one request (1,048,000)" in answer.error_message
        assert setting(ask, topic, "leader.replication.throttled.replicas") == ("", 5)
        upsertion = {"mechanism": 1, "iterations": 4096, "salt": b"x" * 20, "salted_password": b"y" * 32}
        for name, reason in (("u" * 2_000_000, "at most 1,048,000 bytes"), ("..", "takes no such name")):
            body = {"deletions": [], "upsertions": [{"name": name, **upsertion}]}
            (result,) = ask.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results
            assert result.error_code is ErrorCode.invalid_request
            assert reason in result.error_message
            assert len(result.error_message) < 500
    assert "ZooKeeper session" not in broker.output
