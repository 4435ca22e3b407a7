"""Produce 13, OffsetCommit 10 and OffsetFetch 10, which call topics by their ids (KIP-516)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.named_topics import name_of
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import COMMIT_GROUP, FETCH_OFFSETS_GROUP
from broker.replica.cluster_metadata import ClusterMetadata, Topic
from tests.api.test_group_offsets import await_coordinator
from tests.support.broker_process import BrokerProcess
from tests.support.permission_cases import GUARDED_SETTINGS, World, admin_of
from tests.support.raw_requests import NO_ID, Requests, batch
from tests.support.waiting import eventually

Errors = dict[tuple[uuid.UUID | None, int], ErrorCode]
OK, UNKNOWN_ID, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition


def produce(ask: Requests, *wanted: tuple[uuid.UUID, int], value: bytes = b"v", acks: int = -1) -> Any:
    rows = [{"topic_id": id_, "partition_data": [{"index": index, "records": batch(value)}]} for id_, index in wanted]
    body = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": rows}
    if acks == 0:
        ask.send(ApiKey.PRODUCE, body, 13)
        return None
    return ask.ask(ApiKey.PRODUCE, body, 13).responses


def produced(ask: Requests, *wanted: tuple[uuid.UUID, int], value: bytes = b"v") -> Errors:
    answers = produce(ask, *wanted, value=value)
    return {(topic.topic_id, p.index): p.error_code for topic in answers for p in topic.partition_responses}


def commit(ask: Requests, group: str, *wanted: tuple[uuid.UUID, int], offset: int = 7) -> Errors:
    entry = {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "m"}
    topics = [{"topic_id": id_, "partitions": [{"partition_index": index, **entry}]} for id_, index in wanted]
    body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    answer = ask.ask(ApiKey.OFFSET_COMMIT, body, 10)
    return {(topic.topic_id, p.partition_index): p.error_code for topic in answer.topics for p in topic.partitions}


def committed(
    ask: Requests, group: str, *wanted: tuple[uuid.UUID, int]
) -> dict[tuple[uuid.UUID | None, int], tuple[int, ErrorCode]]:
    """Of all topics if none is wanted."""
    topics = [{"topic_id": id_, "partition_indexes": [index]} for id_, index in wanted]
    asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics or None}
    (answer,) = ask.ask(ApiKey.OFFSET_FETCH, {"groups": [asked], "require_stable": False}, 10).groups
    assert answer.error_code is OK
    return {
        (topic.topic_id, row.partition_index): (row.committed_offset, row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    }


def test_what_is_for_a_deleted_topic_is_not_written_into_the_new_one(ask: Requests, topic: str, group: str) -> None:
    await_coordinator(ask, group)
    old = ask.create(topic)
    assert produced(ask, (old, 0)) == {(old, 0): OK}
    assert commit(ask, group, (old, 0)) == {(old, 0): OK}
    ask.delete(topic)
    new = ask.create(topic)
    eventually(lambda: committed(ask, group) == {})
    assert produced(ask, (old, 0), (new, 0), value=b"new") == {(old, 0): UNKNOWN_ID, (new, 0): OK}
    assert commit(ask, group, (old, 0), (new, 0), offset=1) == {(old, 0): UNKNOWN_ID, (new, 0): OK}
    assert committed(ask, group, (old, 0), (new, 0)) == {(old, 0): (-1, UNKNOWN_ID), (new, 0): (1, OK)}
    assert ask.values(topic) == [b"new"]


def test_ids_and_partitions_that_are_not_there_do_not_stop_the_others(ask: Requests, topic: str, group: str) -> None:
    await_coordinator(ask, group)
    known = ask.create(topic, 2)
    ids = (uuid.uuid4(), uuid.uuid4())
    wanted = [(ids[0], 0), (known, 1), (NO_ID, 0), (known, 7), (ids[1], 0), (known, 0)]
    expected: Errors = {(known, 0): OK, (known, 1): OK, (known, 7): UNKNOWN}
    expected |= {(id_, 0): UNKNOWN_ID for id_ in (*ids, None)}
    assert produced(ask, *wanted) == expected
    assert commit(ask, group, *wanted) == expected
    assert committed(ask, group, *wanted) == {
        place: (7 if code is OK else -1, OK if code is UNKNOWN else code) for place, code in expected.items()
    }
    assert committed(ask, group) == {(known, 0): (7, OK), (known, 1): (7, OK)}


def test_no_id_is_not_the_id_of_a_topic_that_has_none() -> None:
    none, some = uuid.UUID(int=0), uuid.uuid4()
    topics = {name: Topic(name, id_, {}) for name, id_ in [("old", none), ("new", some)]}
    context: Any = SimpleNamespace(topics=SimpleNamespace(metadata=ClusterMetadata("id", topics=topics)))
    assert [name_of(context, id_) for id_ in (None, uuid.uuid4(), some)] == ["", "", "new"]


def test_acks_0_for_an_id_that_is_not_there_closes_the_connection(ask: Requests) -> None:
    produce(ask, (uuid.uuid4(), 0), acks=0)
    assert ask.is_hung_up()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        BrokerProcess(tmp_path_factory.mktemp("topic-ids"), GUARDED_SETTINGS, standalone=True) as broker,
        admin_of(broker.listeners["SASL_PLAINTEXT"]) as admin,
        Requests(broker.listeners["PLAINTEXT"]) as mine,
    ):
        yield World(admin, mine)


def test_a_client_without_the_right_does_not_learn_the_name_of_an_id(world: World) -> None:
    """As in Kafka it learns whether there is a topic of the id."""
    denied, unknown, group = ErrorCode.topic_authorization_failed, uuid.uuid4(), world.new_group()
    world.allow(COMMIT_GROUP, FETCH_OFFSETS_GROUP)
    both = (world.topic_id, 0), (unknown, 0)
    answer = produce(world.mine, *both)
    assert world.topic not in repr(answer)
    assert str(world.topic_id) in answer[0].partition_responses[0].error_message
    errors = {(world.topic_id, 0): denied, (unknown, 0): UNKNOWN_ID}
    assert produced(world.mine, *both) == commit(world.mine, group, *both) == errors
    assert committed(world.mine, group, *both) == {place: (-1, code) for place, code in errors.items()}
    assert committed(world.mine, group) == {}
