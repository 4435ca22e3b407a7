"""CreateTopics, DeleteTopics, CreatePartitions: every version, every refusal, and what remains afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import NO_ID, Requests, versions
from tests.support.waiting import eventually

MANY = 2**31 - 1


def exists(ask: Requests, name: str) -> bool:
    return bool(ask.metadata(name).topics[0].error_code is ErrorCode.none)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_every_version_creates(ask: Requests, topic: str, version: int) -> None:
    (made,) = ask.create_topics({"name": topic, "num_partitions": 3}, version=version)
    assert (made.name, made.error_code) == (topic, ErrorCode.none)
    assert len(ask.metadata(topic).topics[0].partitions) == 3


def test_the_answer_holds_id_counts_and_settings(ask: Requests, topic: str) -> None:
    configs = [{"name": "retention.ms", "value": "1234"}]
    (made,) = ask.create_topics({"name": topic, "num_partitions": -1, "replication_factor": -1, "configs": configs})
    assert (made.num_partitions, made.replication_factor) == (1, 1)
    assert made.topic_id == ask.metadata(topic).topics[0].topic_id
    assert {c.name: (c.value, c.config_source) for c in made.configs}["retention.ms"] == ("1234", 1)


UNCOUNTED = {"num_partitions": -1, "replication_factor": -1}
REFUSED: Mapping[str, tuple[Mapping[str, Any], ErrorCode]] = {
    "no name": ({"name": ""}, ErrorCode.invalid_topic_exception),
    "dots": ({"name": ".."}, ErrorCode.invalid_topic_exception),
    "a slash": ({"name": "a/b"}, ErrorCode.invalid_topic_exception),
    "too long": ({"name": "x" * 250}, ErrorCode.invalid_topic_exception),
    "no value": ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.invalid_config),
    "no partitions": ({"num_partitions": 0}, ErrorCode.invalid_partitions),
    "negative partitions": ({"num_partitions": -5}, ErrorCode.invalid_partitions),
    "very many partitions": ({"num_partitions": MANY}, ErrorCode.invalid_partitions),
    "no replica": ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
    "too many replicas": ({"replication_factor": 2}, ErrorCode.invalid_replication_factor),
    "unknown setting": ({"configs": [{"name": "retention.m", "value": "1"}]}, ErrorCode.invalid_config),
    "bad setting": ({"configs": [{"name": "retention.ms", "value": "soon"}]}, ErrorCode.invalid_config),
    "unknown broker": (
        {**UNCOUNTED, "assignments": [{"partition_index": 0, "broker_ids": [99]}]},
        ErrorCode.invalid_replica_assignment,
    ),
    "a gap": (
        {**UNCOUNTED, "assignments": [{"partition_index": 1, "broker_ids": [0]}]},
        ErrorCode.invalid_replica_assignment,
    ),
    "twice the broker": (
        {**UNCOUNTED, "assignments": [{"partition_index": 0, "broker_ids": [0, 0]}]},
        ErrorCode.invalid_replica_assignment,
    ),
    "assigned and counted": (
        {"assignments": [{"partition_index": 0, "broker_ids": [0]}]},
        ErrorCode.invalid_request,
    ),
}


@pytest.mark.parametrize(("wrong", "code"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_a_reason(
    ask: Requests, topic: str, wrong: Mapping[str, Any], code: ErrorCode
) -> None:
    (answer,) = ask.create_topics({"name": topic, **wrong})
    assert answer.error_code is code
    assert answer.error_message
    assert not exists(ask, topic)


def test_an_internal_topic_is_not_made_by_a_client(ask: Requests) -> None:
    name = "__consumer_offsets"
    (answer,) = ask.create_topics({"name": name}, validate_only=True)
    assert answer.error_code is (ErrorCode.topic_already_exists if exists(ask, name) else REFUSED["dots"][1])


def test_a_setting_that_kafka_4_removed_is_answered_with_what_to_do(ask: Requests, topic: str) -> None:
    (answer,) = ask.create_topics({"name": topic, "configs": [{"name": "message.format.version", "value": "2.0"}]})
    assert answer.error_code is ErrorCode.invalid_config
    assert "Kafka 4 has removed it" in answer.error_message


def test_a_misspelt_setting_is_answered_with_the_right_one(ask: Requests, topic: str) -> None:
    (answer,) = ask.create_topics({"name": topic, "configs": [{"name": "retention.m", "value": "1"}]})
    assert "did you mean 'retention.ms'?" in answer.error_message


def test_one_that_exists_and_one_named_twice_do_not_stop_the_others(ask: Requests, topic: str) -> None:
    ask.create(topic)
    new, twice = f"{topic}-new", f"{topic}-twice"
    answers = ask.create_topics({"name": topic}, {"name": twice}, {"name": new}, {"name": twice})
    assert [(a.name, a.error_code) for a in answers] == [
        (topic, ErrorCode.topic_already_exists),
        (new, ErrorCode.none),
        (twice, ErrorCode.invalid_request),
    ]
    assert not exists(ask, twice)


def test_validate_only_creates_nothing(ask: Requests, topic: str) -> None:
    good, bad = ask.create_topics({"name": topic}, {"name": f"{topic}-2", "num_partitions": 0}, validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.none, ErrorCode.invalid_partitions)
    assert not exists(ask, topic)


def test_a_manual_assignment_is_kept(ask: Requests, topic: str) -> None:
    assignments = [{"partition_index": index, "broker_ids": [0]} for index in (1, 0)]
    (made,) = ask.create_topics(
        {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    )
    assert (made.error_code, made.num_partitions) == (ErrorCode.none, 2)


def test_a_name_that_differs_only_in_dot_and_underscore_is_refused(ask: Requests, topic: str) -> None:
    ask.create(f"{topic}.a")
    for validate_only in (True, False):
        (answer,) = ask.create_topics({"name": f"{topic}_a"}, validate_only=validate_only)
        assert answer.error_code is ErrorCode.invalid_topic_exception


class TestDelete:
    @pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
    def test_every_version_deletes(self, ask: Requests, topic: str, version: int) -> None:
        ask.create(topic)
        body = {"topics": [{"name": topic, "topic_id": NO_ID}], "topic_names": [topic], "timeout": 10_000}
        (answer,) = ask.ask(ApiKey.DELETE_TOPICS, body, version).responses
        assert (answer.name, answer.error_code) == (topic, ErrorCode.none)
        assert not exists(ask, topic)

    def test_by_id(self, ask: Requests, topic: str) -> None:
        topic_id = ask.create(topic)
        body = {"topics": [{"name": None, "topic_id": i} for i in (topic_id, uuid.uuid4())], "timeout": 10_000}
        known, unknown = ask.ask(ApiKey.DELETE_TOPICS, body).responses
        assert (known.name, known.error_code) == (topic, ErrorCode.none)
        assert unknown.error_code is ErrorCode.unknown_topic_id
        assert not exists(ask, topic)

    def test_what_is_named_twice_or_by_name_and_id_is_refused(self, ask: Requests, topic: str) -> None:
        topic_id = ask.create(topic)
        for asked in ([(topic, NO_ID)] * 2, [(None, topic_id)] * 2, [(topic, topic_id)]):
            body = {"topics": [{"name": name, "topic_id": i} for name, i in asked], "timeout": 10_000}
            answers = ask.ask(ApiKey.DELETE_TOPICS, body).responses
            assert [a.error_code for a in answers] == [ErrorCode.invalid_request]
        assert exists(ask, topic)

    def test_what_is_not_there_or_internal_is_refused(self, ask: Requests) -> None:
        ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["g"]})
        assert ask.delete("no-such-topic") is ErrorCode.unknown_topic_or_partition
        assert ask.delete("__consumer_offsets") is ErrorCode.invalid_request

    def test_when_it_is_switched_off(self, broker_factory: Callable[..., BrokerProcess], topic: str) -> None:
        with Requests(broker_factory({"delete.topic.enable": "false"}).bootstrap) as ask:
            ask.create(topic)
            assert ask.delete(topic) is ErrorCode.topic_deletion_disabled
            older = ask.ask(ApiKey.DELETE_TOPICS, {"topic_names": [topic], "timeout": 10_000}, 2)
            assert older.responses[0].error_code is ErrorCode.invalid_request
            assert exists(ask, topic)


class TestRecreation:
    def test_old_records_do_not_come_back(self, ask: Requests, topic: str) -> None:
        for round_ in range(5):
            ask.create(topic, 2)
            assert ask.values(topic) == []
            assert ask.put(topic, b"%d" % round_) == 0
            assert ask.delete(topic) is ErrorCode.none

    def test_nor_after_a_kill(self, broker_factory: Callable[..., BrokerProcess], topic: str) -> None:
        broker = broker_factory()
        before, after = f"{topic}-recreated-before-the-kill", f"{topic}-and-after-it"
        with Requests(broker.bootstrap) as ask:
            for name in (before, after):
                ask.create(name)
                ask.put(name, b"old")
                assert ask.delete(name) is ErrorCode.none
            ask.create(before)
            broker.kill()
        broker.start()
        with Requests(broker.bootstrap) as ask:
            assert not exists(ask, after)
            ask.create(after)
            for name in (before, after):
                assert ask.values(name) == []
                assert ask.put(name, b"new") == 0
                assert ask.values(name) == [b"new"]

    def test_a_log_of_another_topic_of_that_name_is_not_served(
        self, broker_factory: Callable[..., BrokerProcess], topic: str
    ) -> None:
        """Deleted and made again by another broker while this one was down."""
        broker, other = broker_factory({"broker.id": "0"}), broker_factory({"broker.id": "1"}, name="other")
        assignments = [{"partition_index": 0, "broker_ids": [0]}]
        wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        with Requests(broker.bootstrap) as ask:
            assert ask.create_topics(wanted)[0].error_code is ErrorCode.none
            ask.put(topic, b"old")
        broker.kill()
        with Requests(other.bootstrap) as ask:
            eventually(lambda: ask.delete(topic) is ErrorCode.none)  # it hears of the topic a little later
            while (made := ask.create_topics(wanted)[0]).error_code is ErrorCode.invalid_replica_assignment:
                broker.start()  # its registration has expired
            assert made.error_code is ErrorCode.none
        broker.start()
        with Requests(broker.bootstrap) as ask:
            assert ask.values(topic) == []


class TestMorePartitions:
    @staticmethod
    def grow(ask: Requests, name: str, count: int, version: int | None = None, **more: Any) -> Any:
        body = {"topics": [{"name": name, "count": count, "assignments": more.pop("assignments", None)}], **more}
        return ask.ask(ApiKey.CREATE_PARTITIONS, {"timeout": 10_000, "validate_only": False, **body}, version).results[
            0
        ]

    @pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
    def test_every_version_adds_partitions_that_serve_at_once(self, ask: Requests, topic: str, version: int) -> None:
        ask.create(topic)
        ask.put(topic, b"kept")
        assert self.grow(ask, topic, 3, version).error_code is ErrorCode.none
        assert ask.put(topic, b"new", partition=2) == 0
        assert ask.values(topic) == [b"kept"]

    @pytest.mark.parametrize("count", [-1, 0, 1, 2, MANY])
    def test_never_fewer_or_far_too_many(self, ask: Requests, topic: str, count: int) -> None:
        ask.create(topic, 2)
        answer = self.grow(ask, topic, count)
        assert answer.error_code is ErrorCode.invalid_partitions
        assert answer.error_message

    def test_what_is_named_twice_is_refused(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        topics = [{"name": topic, "count": count, "assignments": None} for count in (2, 3)]
        body = {"topics": topics, "timeout": 10_000, "validate_only": False}
        answers = ask.ask(ApiKey.CREATE_PARTITIONS, body).results
        assert [a.error_code for a in answers] == [ErrorCode.invalid_request]
        assert len(ask.metadata(topic).topics[0].partitions) == 1

    def test_validate_only_adds_nothing(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        assert self.grow(ask, topic, 3, validate_only=True).error_code is ErrorCode.none
        assert len(ask.metadata(topic).topics[0].partitions) == 1

    def test_an_assignment_must_fit(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        for brokers in ([[0]], [[0], [99]], [[0], []]):
            assignments = [{"broker_ids": ids} for ids in brokers]
            answer = self.grow(ask, topic, 3, assignments=assignments)
            assert answer.error_code is ErrorCode.invalid_replica_assignment
        assert self.grow(ask, topic, 2, assignments=[{"broker_ids": [0]}]).error_code is ErrorCode.none

    def test_unknown_and_internal_topics_are_refused(self, ask: Requests) -> None:
        ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["g"]})
        assert self.grow(ask, "no-such-topic", 3).error_code is ErrorCode.unknown_topic_or_partition
        assert self.grow(ask, "__consumer_offsets", 300).error_code is ErrorCode.invalid_request
