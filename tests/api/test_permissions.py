"""The table of rights (broker/protocol/permissions.py), cell by cell: what is answered without the right, and with it.

The client is anonymous. Before each request it gets the rights that the API asks for besides, and no others.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.api.table import API_TABLE
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import OPEN_APIS, PERMISSIONS, PRODUCE_TOPIC, Permission
from broker.security.acl_types import CLUSTER_NAME, AclOperation, AclPermission, AclResourceType
from tests.support.broker_process import BrokerProcess
from tests.support.permission_cases import (
    CASES,
    DENIED,
    GUARDED_SETTINGS,
    World,
    admin_of,
    codes_in,
    creation,
    log_in,
    scram_deletion,
)
from tests.support.raw_requests import NO_ID, SERVED, Requests, ask_for, batch


def cells() -> Iterator[Any]:
    for need in PERMISSIONS:
        low, high = SERVED.get(need.api, (0, -1))  # one that is not served is told of below
        for version in range(max(low, need.low), min(high, need.high or high) + 1):
            name = f"{need.request}-v{version}-{need.operation.title}-{need.resource.title}"
            yield pytest.param(need, version, id=name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("permissions")
    with (
        BrokerProcess(directory, GUARDED_SETTINGS, standalone=True) as broker,
        admin_of(broker.listeners["SASL_PLAINTEXT"]) as admin,
        Requests(broker.listeners["PLAINTEXT"]) as mine,
        Requests(broker.listeners["SASL_PLAINTEXT"]) as known,
    ):
        log_in(known, "known")
        yield World(admin, mine, known)


def test_every_api_asks_for_a_right_or_needs_none() -> None:
    served = {api for api, *_ in API_TABLE}
    asking = {need.api for need in PERMISSIONS}
    unsaid = [api.name for api in served - asking - OPEN_APIS]
    assert not unsaid, f"give {unsaid} a row, or a place in OPEN_APIS, in broker/protocol/permissions.py"
    assert not asking & OPEN_APIS
    assert asking | OPEN_APIS == served, "a row of an API that is not served: take it out of permissions.py"
    assert CASES.keys() == set(PERMISSIONS), "each row needs a case in tests/support/permission_cases.py"


@pytest.mark.parametrize(("need", "version"), list(cells()))
def test_a_right_is_asked_for(world: World, need: Permission, version: int) -> None:
    case = CASES[need]
    mine = world.known if case.logged_in else world.mine
    assert mine is not None
    world.allow(*case.others)
    refused = mine.ask(need.api, case.body(world, version), version)
    world.allow(need, *case.others)
    answered = mine.ask(need.api, case.body(world, version), version)
    if case.look is not None:
        assert (case.look(refused), case.look(answered)) == (False, True), (refused, answered)
    elif case.shows:
        assert (case.shows in repr(refused), case.shows in repr(answered)) == (False, True), (refused, answered)
        assert codes_in(refused) <= {ErrorCode.none}
    else:
        assert codes_in(refused) & DENIED == {case.code or need.code}, refused
        assert not codes_in(answered) & DENIED, answered


def test_records_of_no_transaction_need_no_right_on_the_transactional_id(world: World) -> None:
    """As in Kafka: they are no part of a transaction, whatever id the request names."""
    world.allow(PRODUCE_TOPIC)
    records = {(world.topic, 0): batch(b"v")}
    (answer,) = world.mine.produce(records, transactional_id=world.transaction).values()
    assert answer.error_code is ErrorCode.none


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
    with BrokerProcess(tmp_path, {**GUARDED_SETTINGS, "listeners": listeners}, standalone=True) as broker:
        port = broker.listeners["PLAINTEXT"].rpartition(":")[2]
        with admin_of(broker.listeners["SASL_PLAINTEXT"]) as admin, Requests(f"127.0.0.1:{port}") as mine:
            admin.create("t")
            granted = creation(AclOperation.READ, AclResourceType.TOPIC)
            admin.ask(ApiKey.CREATE_ACLS, {"creations": [granted]})
            assert mine.fetch([ask_for("t")], version=12)[0].error_code is ErrorCode.none
            denied = {**granted, "host": "127.0.0.1", "permission_type": AclPermission.DENY}
            admin.ask(ApiKey.CREATE_ACLS, {"creations": [denied]})
            (answer,) = mine.fetch([ask_for("t")], version=12)
            assert answer.error_code is ErrorCode.topic_authorization_failed
