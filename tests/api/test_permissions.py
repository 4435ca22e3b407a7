"""The table of rights (broker/protocol/permissions.py), cell by cell: what is answered without the right, and with it.

The client is anonymous. Before each request it gets the rights that the API asks for besides, and no others.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.api.table import API_TABLE
from broker.errors import ErrorCode
from broker.protocol import permissions as p
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import OPEN_APIS, PERMISSIONS, Permission
from broker.security.acl_types import CLUSTER_NAME, AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import NO_ID, SERVED, Requests, ask_for, batch, fetch_body
from tests.support.raw_transactions import RawProducer

DENIED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
ANONYMOUS = "User:ANONYMOUS"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="admin";'
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "super.users": "User:admin",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "group.initial.rebalance.delay.ms": "0",
}
EVERY_ACL = {
    "resource_type_filter": AclResourceType.ANY,
    "pattern_type_filter": PatternType.ANY,
    "operation": AclOperation.ANY,
    "permission_type": AclPermission.ANY,
}


def creation(operation: AclOperation, resource: AclResourceType, principal: str = ANONYMOUS) -> dict[str, Any]:
    return {
        "resource_type": resource,
        "resource_name": CLUSTER_NAME if resource is AclResourceType.CLUSTER else "*",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": AclPermission.ALLOW,
    }


class World:
    """A broker with an authorizer, one of each thing, and two clients: a super user and one with chosen rights."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.admin = Requests(broker.listeners["SASL_PLAINTEXT"])
        self.admin.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, 1)
        self.admin.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0admin\0admin"})
        self.mine = Requests(broker.listeners["PLAINTEXT"])
        self._numbers = itertools.count()
        self.topic, self.group, self.transaction = "known-topic", "known-group", "known-transaction"
        self.topic_id = self.admin.create(self.topic)
        self.producer = RawProducer(self.admin, self.transaction).begin()
        assert self.producer.add((self.topic, 0)) == [ErrorCode.none]
        self.admin.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "key": self.group, "coordinator_keys": [self.group]})
        self.commit(self.group)

    def close(self) -> None:
        self.admin.close()
        self.mine.close()

    def allow(self, *needs: Permission) -> None:
        """Let the other client have these rights, on all resources, and no others."""
        self.admin.ask(ApiKey.DELETE_ACLS, {"filters": [EVERY_ACL]})
        wanted = [creation(need.operation, need.resource) for need in needs]
        if wanted:
            results = self.admin.ask(ApiKey.CREATE_ACLS, {"creations": wanted}).results
            assert {result.error_code for result in results} == {ErrorCode.none}

    def new(self, kind: str = "made") -> str:
        return f"{kind}-{next(self._numbers)}"

    def new_topic(self) -> str:
        name = self.new("topic")
        self.admin.create(name)
        return name

    def new_group(self) -> str:
        name = self.new("group")
        self.commit(name)
        return name

    def commit(self, group: str) -> None:
        answer = self.admin.ask(ApiKey.OFFSET_COMMIT, commit_body(self, group))
        assert codes_in(answer) == {ErrorCode.none}, answer


def codes_in(answer: Any) -> set[ErrorCode]:
    """Every error code in an answer, whatever its field."""
    found: set[ErrorCode] = set()
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        for one in dataclasses.fields(answer):
            value = getattr(answer, one.name)
            if one.name.endswith("error_code"):
                found.add(ErrorCode(value))
            else:
                found |= codes_in(value)
    elif isinstance(answer, (list, tuple)):
        for item in answer:
            found |= codes_in(item)
    return found


Body = Callable[[World, int], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """How one right is asked for."""

    body: Body
    others: Sequence[Permission] = ()
    """What the same request needs besides."""
    code: ErrorCode | None = None
    """Of the answer without the right, if it is not that of the right."""
    shows: str = ""
    """What only the answer with the right contains; there is no error code then."""
    look: Callable[[Any], bool] | None = None
    """Tells an answer with the right from one without."""


def commit_body(world: World, group: str) -> dict[str, Any]:
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "member_id": "",
        "retention_time": -1,
        "transactional_id": world.transaction,
        "producer_id": 1,
        "producer_epoch": 0,
        "topics": [{"name": world.topic, "partitions": [offset]}],
    }


def produce_body(world: World, transactional_id: str | None = None) -> dict[str, Any]:
    data = {"name": world.topic, "partition_data": [{"index": 0, "records": batch(b"v")}]}
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 30_000, "topic_data": [data]}


def wanted(world: World, version: int) -> list[Mapping[str, Any]]:
    return [ask_for(world.topic if version < 13 else world.topic_id)]


def partitions(world: World, name: str = "name", index: str = "partitions") -> list[dict[str, Any]]:
    return [{name: world.topic, index: [0]}]


def member(world: World, **more: Any) -> dict[str, Any]:
    one = {"member_id": "m", "group_instance_id": None}
    return {
        "group_id": world.new("group"),
        "generation_id": 1,
        "group_instance_id": None,
        "member_id": "",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "protocols": [{"name": "range", "metadata": b""}],
        "assignments": (),
        "members": [one],
        **more,
    }


def topics_to_create(world: World, version: int) -> dict[str, Any]:
    topic = {"name": world.new(), "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    return {"topics": [topic], "timeout": 30_000, "validate_only": False}


def topic_to_delete(world: World, version: int) -> dict[str, Any]:
    name = world.new_topic()
    return {"topics": [{"name": name, "topic_id": NO_ID}], "topic_names": [name], "timeout": 30_000}


def find(kind: int, name: Callable[[World], str]) -> Body:
    return lambda world, version: {"key_type": kind, "key": name(world), "coordinator_keys": [name(world)]}


def offsets_of(world: World, version: int) -> dict[str, Any]:
    topics = [{"name": world.topic, "partition_indexes": [0]}]
    return {
        "group_id": world.group,
        "topics": topics,
        "groups": [{"group_id": world.group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": False,
    }


def transaction(world: World, **more: Any) -> dict[str, Any]:
    names = {"transactional_id": world.transaction, "producer_id": 99, "producer_epoch": 0}
    added = {**names, "topics": partitions(world)}
    return {
        **names,
        **{f"v3_and_below_{name}": value for name, value in added.items()},
        "transactions": [{**added, "verify_only": True}],
        "group_id": world.group,
        "committed": False,
        "transaction_timeout": 60_000,
        **more,
    }


def deleted_offsets(world: World, version: int) -> dict[str, Any]:
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}]}]
    return {"group_id": world.new_group(), "topics": topics}


def markers(world: World, version: int) -> dict[str, Any]:
    marker = {
        "producer_id": 4711,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": partitions(world, index="partition_indexes"),
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    return {"markers": [marker]}


def settings_of(kind: int, name: Callable[[World], str], **setting: str) -> Body:
    def body(world: World, version: int) -> dict[str, Any]:
        configs = [{"name": key, "value": value, "config_operation": 0} for key, value in setting.items()]
        resource = {
            "resource_type": kind,
            "resource_name": name(world),
            "configuration_keys": None,
            "configs": configs,
        }
        return {"resources": [resource], "validate_only": False, "include_synonyms": False}

    return body


def scram_deletion(user: str) -> Body:
    return lambda world, version: {"deletions": [{"name": user, "mechanism": 1}], "upsertions": ()}


def log_start(world: World, version: int) -> dict[str, Any]:
    topic = {"name": world.topic, "partitions": [{"partition_index": 0, "offset": 0}]}
    return {"topics": [topic], "timeout": 30_000}


def follower(world: World, version: int) -> dict[str, Any]:
    state = {"replica_id": 7, "replica_epoch": -1}
    return {**fetch_body(wanted(world, version)), "replica_id": 7, "replica_state": state}


def end_of_epoch(world: World, version: int) -> dict[str, Any]:
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    return {"replica_id": -1, "topics": [{"topic": world.topic, "partitions": [asked]}]}


def latest(world: World, version: int) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": world.topic, "partitions": [asked]}]}


def metadata_of(name: Callable[[World], str], *, create: bool = False) -> Body:
    return lambda world, version: {"topics": [{"name": name(world)}], "allow_auto_topic_creation": create}


TOPIC, GROUP, BROKER = 2, 32, 4
OPERATIONS = {"include_cluster_authorized_operations": True, "topics": (), "endpoint_type": 1}


def shows_operations(answer: Any) -> bool:
    return bool(answer.cluster_authorized_operations)


def is_anything(world: World, version: int) -> dict[str, Any]:
    return {}


CASES: dict[Permission, Case] = {
    p.PRODUCE_TRANSACTION: Case(lambda w, v: produce_body(w, w.transaction), [p.PRODUCE_TOPIC]),
    p.PRODUCE_TOPIC: Case(lambda w, v: produce_body(w)),
    p.FETCH_TOPIC: Case(lambda w, v: fetch_body(wanted(w, v))),
    p.FETCH_AS_FOLLOWER: Case(follower, code=ErrorCode.topic_authorization_failed),
    p.LIST_OFFSETS_TOPIC: Case(latest),
    p.END_OF_EPOCH_AS_BROKER: Case(end_of_epoch, code=ErrorCode.topic_authorization_failed),
    p.END_OF_EPOCH_TOPIC: Case(end_of_epoch),
    p.DELETE_RECORDS_TOPIC: Case(log_start),
    p.DESCRIBE_PRODUCERS_TOPIC: Case(lambda w, v: {"topics": partitions(w, index="partition_indexes")}),
    p.METADATA_TOPIC: Case(metadata_of(lambda w: w.topic)),
    p.METADATA_CREATE_ANY: Case(
        metadata_of(World.new, create=True), [p.METADATA_TOPIC], ErrorCode.topic_authorization_failed
    ),
    p.METADATA_CREATE: Case(metadata_of(World.new, create=True), [p.METADATA_TOPIC]),
    p.METADATA_CLUSTER: Case(lambda w, v: OPERATIONS, look=shows_operations),
    p.DESCRIBE_TOPIC_PARTITIONS_TOPIC: Case(
        lambda w, v: {"topics": [{"name": w.topic}], "response_partition_limit": 10, "cursor": None}
    ),
    p.DESCRIBE_CLUSTER_OPERATIONS: Case(lambda w, v: OPERATIONS, look=shows_operations),
    p.CREATE_TOPICS_ANY: Case(topics_to_create, [p.CREATE_TOPICS_CONFIGS], code=ErrorCode.topic_authorization_failed),
    p.CREATE_TOPICS_TOPIC: Case(topics_to_create, [p.CREATE_TOPICS_CONFIGS]),
    p.CREATE_TOPICS_CONFIGS: Case(topics_to_create, [p.CREATE_TOPICS_TOPIC]),
    p.DELETE_TOPICS_DESCRIBE: Case(
        lambda w, v: {"topics": [{"name": None, "topic_id": w.topic_id}], "timeout": 30_000},
        look=lambda answer: answer.responses[0].name is not None,
    ),
    p.DELETE_TOPICS_TOPIC: Case(topic_to_delete),
    p.CREATE_PARTITIONS_TOPIC: Case(
        lambda w, v: {
            "topics": [{"name": w.new_topic(), "count": 2, "assignments": None}],
            "timeout": 30_000,
            "validate_only": False,
        }
    ),
    p.FIND_GROUP: Case(find(0, lambda w: w.group)),
    p.JOIN_GROUP: Case(lambda w, v: member(w)),
    p.SYNC_GROUP: Case(lambda w, v: member(w, member_id="m")),
    p.HEARTBEAT: Case(lambda w, v: member(w, member_id="m")),
    p.LEAVE_GROUP: Case(lambda w, v: member(w, member_id="m")),
    p.COMMIT_GROUP: Case(lambda w, v: commit_body(w, w.group), [p.COMMIT_TOPIC]),
    p.COMMIT_TOPIC: Case(lambda w, v: commit_body(w, w.group), [p.COMMIT_GROUP]),
    p.FETCH_OFFSETS_GROUP: Case(offsets_of, [p.FETCH_OFFSETS_TOPIC]),
    p.FETCH_OFFSETS_TOPIC: Case(offsets_of, [p.FETCH_OFFSETS_GROUP]),
    p.DESCRIBE_GROUPS_GROUP: Case(lambda w, v: {"groups": [w.group]}),
    p.LIST_GROUPS_ANY: Case(is_anything, shows="known-group"),
    p.LIST_GROUPS_GROUP: Case(is_anything, shows="known-group"),
    p.DELETE_GROUPS_GROUP: Case(lambda w, v: {"groups_names": [w.new_group()]}),
    p.DELETE_OFFSETS_GROUP: Case(deleted_offsets, [p.DELETE_OFFSETS_TOPIC]),
    p.DELETE_OFFSETS_TOPIC: Case(deleted_offsets, [p.DELETE_OFFSETS_GROUP]),
    p.FIND_TRANSACTION: Case(find(1, lambda w: w.transaction)),
    p.INIT_TRANSACTION: Case(
        lambda w, v: transaction(w, transactional_id=w.new("id"), producer_id=-1, producer_epoch=-1)
    ),
    p.INIT_IDEMPOTENT: Case(lambda w, v: transaction(w, transactional_id=None, producer_id=-1, producer_epoch=-1)),
    p.INIT_IDEMPOTENT_TOPIC: Case(
        lambda w, v: transaction(w, transactional_id=None, producer_id=-1, producer_epoch=-1),
        code=ErrorCode.cluster_authorization_failed,
    ),
    p.ADD_PARTITIONS_TRANSACTION: Case(lambda w, v: transaction(w), [p.ADD_PARTITIONS_TOPIC]),
    p.ADD_PARTITIONS_TOPIC: Case(lambda w, v: transaction(w), [p.ADD_PARTITIONS_TRANSACTION]),
    p.ADD_PARTITIONS_AS_BROKER: Case(lambda w, v: transaction(w)),
    p.ADD_OFFSETS_TRANSACTION: Case(lambda w, v: transaction(w), [p.ADD_OFFSETS_GROUP]),
    p.ADD_OFFSETS_GROUP: Case(lambda w, v: transaction(w), [p.ADD_OFFSETS_TRANSACTION]),
    p.END_TRANSACTION: Case(lambda w, v: transaction(w)),
    p.COMMIT_TRANSACTION: Case(
        lambda w, v: commit_body(w, w.group), [p.COMMIT_TRANSACTION_GROUP, p.COMMIT_TRANSACTION_TOPIC]
    ),
    p.COMMIT_TRANSACTION_GROUP: Case(
        lambda w, v: commit_body(w, w.group), [p.COMMIT_TRANSACTION, p.COMMIT_TRANSACTION_TOPIC]
    ),
    p.COMMIT_TRANSACTION_TOPIC: Case(
        lambda w, v: commit_body(w, w.group), [p.COMMIT_TRANSACTION, p.COMMIT_TRANSACTION_GROUP]
    ),
    p.WRITE_MARKERS_AS_ADMIN: Case(markers),
    p.WRITE_MARKERS_AS_BROKER: Case(markers),
    p.DESCRIBE_TRANSACTION: Case(lambda w, v: {"transactional_ids": [w.transaction]}),
    p.DESCRIBE_TRANSACTION_TOPIC: Case(
        lambda w, v: {"transactional_ids": [w.transaction]}, [p.DESCRIBE_TRANSACTION], shows="known-topic"
    ),
    p.LIST_TRANSACTION: Case(is_anything, shows="known-transaction"),
    p.DESCRIBE_CONFIGS_TOPIC: Case(settings_of(TOPIC, lambda w: w.topic)),
    p.DESCRIBE_CONFIGS_GROUP: Case(settings_of(GROUP, lambda w: w.group)),
    p.DESCRIBE_CONFIGS_CLUSTER: Case(settings_of(BROKER, lambda w: "0")),
    p.ALTER_CONFIGS_TOPIC: Case(settings_of(TOPIC, World.new_topic, **{"retention.ms": "1000"})),
    p.ALTER_CONFIGS_GROUP: Case(settings_of(GROUP, lambda w: w.group)),
    p.ALTER_CONFIGS_CLUSTER: Case(settings_of(BROKER, lambda w: "")),
    p.INCREMENTAL_ALTER_TOPIC: Case(settings_of(TOPIC, World.new_topic, **{"retention.ms": "1000"})),
    p.INCREMENTAL_ALTER_GROUP: Case(settings_of(GROUP, lambda w: w.group)),
    p.INCREMENTAL_ALTER_CLUSTER: Case(settings_of(BROKER, lambda w: "")),
    p.LIST_CONFIG_RESOURCES: Case(is_anything),
    p.DESCRIBE_QUOTAS: Case(lambda w, v: {"components": (), "strict": False}),
    p.ALTER_QUOTAS: Case(
        lambda w, v: {
            "entries": [{"entity": [{"entity_type": "user", "entity_name": "nobody"}], "ops": ()}],
            "validate_only": True,
        }
    ),
    p.DESCRIBE_SCRAM: Case(lambda w, v: {"users": None}),
    p.ALTER_SCRAM: Case(scram_deletion("nobody")),
    p.DESCRIBE_ACLS: Case(lambda w, v: EVERY_ACL),
    p.CREATE_ACLS: Case(
        lambda w, v: {"creations": [creation(AclOperation.READ, AclResourceType.TOPIC, "User:somebody")]}
    ),
    p.DELETE_ACLS: Case(lambda w, v: {"filters": [{**EVERY_ACL, "principal_filter": "User:nobody"}]}),
    p.ELECT_LEADERS: Case(lambda w, v: {"election_type": 0, "topic_partitions": partitions(w, "topic")}),
    p.ALTER_REASSIGNMENTS: Case(
        lambda w, v: {"topics": [{"name": w.topic, "partitions": [{"partition_index": 0, "replicas": None}]}]}
    ),
    p.LIST_REASSIGNMENTS: Case(lambda w, v: {"topics": None}),
    p.ALTER_LOG_DIRS: Case(lambda w, v: {"dirs": [{"path": "/nowhere", "topics": partitions(w)}]}),
    p.DESCRIBE_LOG_DIRS: Case(lambda w, v: {"topics": None}, look=lambda answer: bool(answer.results)),
}


def cells() -> Iterator[Any]:
    for need in PERMISSIONS:
        low, high = SERVED[need.api]
        for version in range(max(low, need.low), min(high, need.high or high) + 1):
            name = f"{need.request}-v{version}-{need.operation.title}-{need.resource.title}"
            yield pytest.param(need, version, id=name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("permissions")
    with BrokerProcess(directory, SETTINGS, standalone=True) as broker:
        made = World(broker)
        yield made
        made.close()


def test_every_api_asks_for_a_right_or_needs_none() -> None:
    served = {api for api, *_ in API_TABLE}
    assert {need.api for need in PERMISSIONS} | OPEN_APIS == served
    assert not {need.api for need in PERMISSIONS} & OPEN_APIS
    assert CASES.keys() == set(PERMISSIONS)


@pytest.mark.parametrize(("need", "version"), list(cells()))
def test_a_right_is_asked_for(world: World, need: Permission, version: int) -> None:
    case = CASES[need]
    world.allow(*case.others)
    refused = world.mine.ask(need.api, case.body(world, version), version)
    world.allow(need, *case.others)
    answered = world.mine.ask(need.api, case.body(world, version), version)
    if case.look is not None:
        assert (case.look(refused), case.look(answered)) == (False, True), (refused, answered)
    elif case.shows:
        assert (case.shows in repr(refused), case.shows in repr(answered)) == (False, True), (refused, answered)
        assert codes_in(refused) <= {ErrorCode.none}
    else:
        assert codes_in(refused) & DENIED == {case.code or need.code}, refused
        assert not codes_in(answered) & DENIED, answered


def test_no_right_is_enough_for_the_password_of_a_super_user(world: World) -> None:
    """Whoever could set it could do everything."""
    cluster = {"resource_type": AclResourceType.CLUSTER, "resource_name": CLUSTER_NAME}
    world.allow()
    world.admin.ask(
        ApiKey.CREATE_ACLS, {"creations": [{**creation(AclOperation.ALL, AclResourceType.CLUSTER), **cluster}]}
    )
    body = scram_deletion("admin")(world, 0)
    (refused,) = world.mine.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results
    assert refused.error_code is ErrorCode.cluster_authorization_failed
    (found,) = world.admin.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results
    assert found.error_code is ErrorCode.resource_not_found


def test_metadata_of_an_id_tell_whether_the_topic_is_denied_or_missing(world: World) -> None:
    """Kafka counts ids as no secret, and a client should not ask again and again for a topic that is denied."""
    world.allow()
    unknown = uuid.uuid4()
    wanted = [{"name": None, "topic_id": one} for one in (world.topic_id, unknown)]
    topics = world.mine.ask(ApiKey.METADATA, {"topics": wanted, "allow_auto_topic_creation": True}, 12).topics
    assert [(one.error_code, one.name, one.topic_id) for one in topics] == [
        (ErrorCode.topic_authorization_failed, None, world.topic_id),
        (ErrorCode.unknown_topic_id, None, unknown),
    ]


def test_a_denied_topic_is_not_shown_as_internal(world: World) -> None:
    world.allow()
    wanted = [{"name": "__consumer_offsets", "topic_id": NO_ID}]
    (topic,) = world.mine.ask(ApiKey.METADATA, {"topics": wanted}, 12).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.topic_authorization_failed, False)


def test_each_partition_of_a_denied_reassignment_is_refused(world: World) -> None:
    world.allow()
    asked = [{"partition_index": number, "replicas": None} for number in range(2)]
    answer = world.mine.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": [{"name": world.topic, "partitions": asked}]}
    )
    (topic,) = answer.responses
    assert [one.error_code for one in (answer, *topic.partitions)] == [ErrorCode.cluster_authorization_failed] * 3


def test_a_name_that_no_topic_has_is_refused_before_the_right_is_asked_for(world: World) -> None:
    world.allow()
    answer = world.mine.ask(ApiKey.DESCRIBE_PRODUCERS, {"topics": [{"name": "a b", "partition_indexes": (0,)}]})
    assert codes_in(answer) == {ErrorCode.invalid_topic_exception}


def test_a_denied_partition_ends_no_wait_for_others(world: World) -> None:
    """As in Kafka: otherwise a consumer whose right was revoked would ask again and again."""
    other = world.new_topic()
    world.allow()
    grant = {**creation(AclOperation.READ, AclResourceType.TOPIC), "resource_name": other}
    world.admin.ask(ApiKey.CREATE_ACLS, {"creations": [grant]})
    started = time.monotonic()
    denied, allowed = world.mine.fetch([ask_for(world.topic), ask_for(other)], version=12, max_wait=400)
    assert time.monotonic() - started >= 0.4
    assert (denied.error_code, allowed.error_code) == (ErrorCode.topic_authorization_failed, ErrorCode.none)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no listener for IPv4 and IPv6 here")
def test_a_denial_by_host_holds_on_a_listener_for_ipv4_and_ipv6(tmp_path: Path) -> None:
    listeners = "PLAINTEXT://[::]:0,SASL_PLAINTEXT://127.0.0.1:0"
    with BrokerProcess(tmp_path, {**SETTINGS, "listeners": listeners}, standalone=True) as broker:
        port = broker.listeners["PLAINTEXT"].rpartition(":")[2]
        with Requests(broker.listeners["SASL_PLAINTEXT"]) as admin, Requests(f"127.0.0.1:{port}") as mine:
            admin.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, 1)
            admin.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0admin\0admin"})
            admin.create("t")
            granted = creation(AclOperation.READ, AclResourceType.TOPIC)
            admin.ask(ApiKey.CREATE_ACLS, {"creations": [granted]})
            assert mine.fetch([ask_for("t")], version=12)[0].error_code is ErrorCode.none
            denied = {**granted, "host": "127.0.0.1", "permission_type": AclPermission.DENY}
            admin.ask(ApiKey.CREATE_ACLS, {"creations": [denied]})
            (answer,) = mine.fetch([ask_for("t")], version=12)
            assert answer.error_code is ErrorCode.topic_authorization_failed
