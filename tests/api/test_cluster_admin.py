"""Requests of admin clients about the cluster: log directories, elections, reassignments, pages of partitions, ACLs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions

LATER = 60_000  # ms


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_every_version_describes_the_cluster(ask: Requests, broker: BrokerProcess, version: int) -> None:
    body = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    answer = ask.ask(ApiKey.DESCRIBE_CLUSTER, body, version)
    assert (answer.error_code, answer.controller_id) == (ErrorCode.none, 0)
    assert [(b.broker_id, b.port) for b in answer.brokers] == [(0, broker.port)]
    assert answer.cluster_authorized_operations > 0
    unasked = ask.ask(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": 1}, version)
    assert unasked.cluster_authorized_operations == -(2**31)


def test_a_broker_is_no_controller_of_kraft(ask: Requests) -> None:
    codes = [ask.ask(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": kind}).error_code for kind in (2, 9)]
    assert codes == [ErrorCode.mismatched_endpoint_type, ErrorCode.unsupported_endpoint_type]


class TestLogDirs:
    @pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
    def test_every_version_tells_sizes(self, ask: Requests, broker: BrokerProcess, topic: str, version: int) -> None:
        ask.create(topic, 2)
        ask.put(topic, b"x" * 1000, partition=1)
        asked = [{"topic": topic, "partitions": [0, 1, 7]}]
        (directory,) = ask.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": asked}, version).results
        assert (directory.error_code, Path(directory.log_dir)) == (ErrorCode.none, broker.data_dir / "broker")
        (found,) = directory.topics
        sizes = {p.partition_index: p.partition_size for p in found.partitions}
        assert found.name == topic
        assert sizes.keys() == {0, 1}
        assert sizes[0] == 0
        assert 1000 < sizes[1] < 1200
        if version >= 4:
            assert 0 < directory.usable_bytes < directory.total_bytes

    def test_null_means_all_and_no_topics_mean_none(self, ask: Requests, topic: str) -> None:
        ask.create(topic)

        def told(topics: list[str] | None) -> list[str]:
            (directory,) = ask.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics}).results
            return [found.name for found in directory.topics]

        assert topic in told(None)
        assert told([]) == []

    @pytest.mark.parametrize("version", versions(ApiKey.ALTER_REPLICA_LOG_DIRS))
    def test_a_partition_stays_where_it_is(
        self, ask: Requests, broker: BrokerProcess, topic: str, version: int
    ) -> None:
        ask.create(topic)
        here = str(broker.data_dir / "broker")

        def move(path: str, name: str) -> ErrorCode:
            dirs = [{"path": path, "topics": [{"name": name, "partitions": [0]}]}]
            answer = ask.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": dirs}, version)
            return ErrorCode(answer.results[0].partitions[0].error_code)

        assert move(here, topic) is ErrorCode.none
        assert move("/no/such/directory", topic) is ErrorCode.log_dir_not_found
        assert move(here, "no-such-topic") is ErrorCode.unknown_topic_or_partition

    def test_a_partition_is_not_moved_to_another_directory(
        self, broker_factory: Callable[..., BrokerProcess], tmp_path: Path, topic: str
    ) -> None:
        directories = [str(tmp_path / name) for name in ("one", "two")]
        with Requests(broker_factory({"log.dirs": ",".join(directories)}).bootstrap) as ask:
            ask.create(topic, 2)
            described = ask.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}).results
            assert [d.log_dir for d in described] == directories
            at = {p.partition_index: d.log_dir for d in described for t in d.topics for p in t.partitions}
            assert sorted(at.values()) == directories
            dirs = [{"path": at[0], "topics": [{"name": topic, "partitions": [0, 1]}]}]
            answer = ask.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": dirs}).results[0].partitions
        assert [p.error_code for p in answer] == [ErrorCode.none, ErrorCode.invalid_request]


class TestElection:
    @pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
    def test_the_one_broker_leads_already(self, ask: Requests, topic: str, version: int) -> None:
        ask.create(topic)
        asked = [{"topic": topic, "partitions": [0, 5]}]
        for kind in (0, 1):
            body = {"election_type": kind, "topic_partitions": asked, "timeout": LATER}
            (found,) = ask.ask(ApiKey.ELECT_LEADERS, body, version).replica_election_results
            assert {p.partition_id: p.error_code for p in found.partition_result} == {
                0: ErrorCode.election_not_needed,
                5: ErrorCode.unknown_topic_or_partition,
            }

    def test_of_all_partitions_those_that_need_none_are_left_out(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        answer = ask.ask(ApiKey.ELECT_LEADERS, {"topic_partitions": None, "timeout": LATER})
        assert (answer.error_code, list(answer.replica_election_results)) == (ErrorCode.none, [])

    def test_there_are_two_kinds(self, ask: Requests) -> None:
        answer = ask.ask(ApiKey.ELECT_LEADERS, {"election_type": 2, "topic_partitions": None, "timeout": LATER})
        assert answer.error_code is ErrorCode.invalid_request


class TestReassignment:
    @pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
    @pytest.mark.parametrize(
        ("replicas", "code"),
        [
            ([0], ErrorCode.none),
            ([], ErrorCode.invalid_replica_assignment),
            ([0, 0], ErrorCode.invalid_replica_assignment),
            ([9], ErrorCode.invalid_replica_assignment),
            ([0, 9], ErrorCode.invalid_replica_assignment),
            (None, ErrorCode.no_reassignment_in_progress),
        ],
    )
    def test_a_partition_stays_where_it_is(
        self, ask: Requests, topic: str, version: int, replicas: list[int] | None, code: ErrorCode
    ) -> None:
        ask.create(topic)
        assert self.alter(ask, topic, 0, replicas, version) is code

    def test_what_is_not_there_is_not_moved(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        for name, index in ((topic, 4), ("no-such-topic", 0)):
            assert self.alter(ask, name, index, [0]) is ErrorCode.unknown_topic_or_partition

    @staticmethod
    def alter(
        ask: Requests, name: str, index: int, replicas: list[int] | None, version: int | None = None
    ) -> ErrorCode:
        topics = [{"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        body = {"timeout": LATER, "allow_replication_factor_change": True, "topics": topics}
        (answer,) = ask.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, version).responses
        return ErrorCode(answer.partitions[0].error_code)

    def test_none_is_under_way(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        for topics in (None, [{"name": topic, "partition_indexes": [0]}]):
            answer = ask.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"timeout": LATER, "topics": topics})
            assert (answer.error_code, list(answer.topics)) == (ErrorCode.none, [])


class TestPagesOfPartitions:
    @staticmethod
    def page(ask: Requests, names: list[str], limit: int, cursor: Mapping[str, Any] | None = None) -> Any:
        body = {"topics": [{"name": n} for n in names], "response_partition_limit": limit, "cursor": cursor}
        return ask.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, body)

    def test_pages_follow_each_other_without_a_gap(self, ask: Requests, topic: str) -> None:
        names = [f"{topic}-{letter}" for letter in "abc"]
        for name, count in zip(names, (3, 2, 4), strict=True):
            ask.create(name, count)
        for limit in (1, 2, 3, 5, 9, 100):
            seen: list[tuple[str, int]] = []
            cursor = None
            while True:
                answer = self.page(ask, names[::-1], limit, cursor)
                found = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
                assert 0 < len(found) <= limit
                seen += found
                if answer.next_cursor is None:
                    break
                at = answer.next_cursor
                cursor = {"topic_name": at.topic_name, "partition_index": at.partition_index}
            assert seen == [(name, i) for name, count in zip(names, (3, 2, 4), strict=True) for i in range(count)]

    def test_what_is_known_of_a_partition(self, ask: Requests, topic: str) -> None:
        topic_id = ask.create(topic)
        (found,) = self.page(ask, [topic], 10).topics
        assert (found.error_code, found.topic_id.bytes, found.is_internal) == (ErrorCode.none, topic_id.bytes, False)
        (partition,) = found.partitions
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, (0,), (0,))
        assert partition.error_code is ErrorCode.none

    def test_no_names_mean_all_topics(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        assert topic in {t.name for t in self.page(ask, [], 2000).topics}

    def test_what_is_not_there_is_said(self, ask: Requests) -> None:
        answer = self.page(ask, ["no-such-topic", "no/topic"], 10)
        assert {t.name: t.error_code for t in answer.topics} == {
            "no-such-topic": ErrorCode.unknown_topic_or_partition,
            "no/topic": ErrorCode.invalid_topic_exception,
        }

    def test_a_cursor_must_point_at_a_partition(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        answer = self.page(ask, [topic], 10, {"topic_name": topic, "partition_index": -1})
        assert [t.error_code for t in answer.topics] == [ErrorCode.invalid_request]


class TestConfigResources:
    def test_there_are_topics_brokers_and_their_loggers(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        answer = ask.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": []})
        found = {(r.resource_type, r.resource_name) for r in answer.config_resources}
        assert {(2, topic), (4, "0"), (8, "0")} <= found
        only = ask.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [4]}).config_resources
        assert [(r.resource_type, r.resource_name) for r in only] == [(4, "0")]

    def test_no_client_metrics(self, ask: Requests) -> None:
        assert list(ask.ask(ApiKey.LIST_CONFIG_RESOURCES, {}, 0).config_resources) == []

    def test_an_unknown_type(self, ask: Requests) -> None:
        answer = ask.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [99]})
        assert answer.error_code is ErrorCode.unsupported_version


class TestAccess:
    """The answers of a Kafka without an authorizer and without quotas."""

    @pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
    def test_there_are_no_acls(self, ask: Requests, version: int) -> None:
        filters = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        assert ask.ask(ApiKey.DESCRIBE_ACLS, filters, version).error_code is ErrorCode.security_disabled
        (deleted,) = ask.ask(ApiKey.DELETE_ACLS, {"filters": [filters]}, version).filter_results
        assert deleted.error_code is ErrorCode.security_disabled
        acl = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "operation": 3}
        wanted = {**acl, "principal": "User:a", "host": "*", "permission_type": 3}
        (created,) = ask.ask(ApiKey.CREATE_ACLS, {"creations": [wanted]}, version).results
        assert created.error_code is ErrorCode.security_disabled

    def test_there_are_no_quotas(self, ask: Requests) -> None:
        answer = ask.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
        assert (answer.error_code, list(answer.entries)) == (ErrorCode.none, [])
