"""OffsetCommit, OffsetFetch, FindCoordinator: every version, and offsets that survive a restart of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions
from tests.support.waiting import eventually


def find(ask: Requests, group: str, version: int | None = None, key_type: int = 0) -> Any:
    body = {"key": group, "coordinator_keys": [group], "key_type": key_type}
    answer = ask.ask(ApiKey.FIND_COORDINATOR, body, version)
    return answer.coordinators[0] if version is None or version >= 4 else answer


def await_coordinator(ask: Requests, group: str) -> None:
    """Return when the coordinator of the group has loaded its offsets. A broker waits a moment for that, no longer."""

    def is_loaded() -> bool:
        body = {"groups": [{"group_id": group, "topics": []}]}
        (held,) = ask.ask(ApiKey.OFFSET_FETCH, body, 8).groups
        return held.error_code is ErrorCode.none

    eventually(lambda: find(ask, group, 4).error_code is ErrorCode.none)
    eventually(is_loaded)


def commit(
    ask: Requests, group: str, offsets: dict[tuple[str, int], int], version: int | None = None
) -> dict[tuple[str, int], ErrorCode]:
    topics = [
        {
            **ask.named(name),
            "partitions": [
                {"partition_index": index, "committed_offset": offset, "committed_metadata": f"at {offset}"}
            ],
        }
        for (name, index), offset in offsets.items()
    ]
    body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    answer = ask.ask(ApiKey.OFFSET_COMMIT, {**body, "retention_time": -1}, version)
    return {(ask.name_of(t), p.partition_index): p.error_code for t in answer.topics for p in t.partitions}


def committed(
    ask: Requests, group: str, wanted: dict[str, list[int]] | None, version: int = 7
) -> dict[tuple[str, int], tuple[int, str | None]]:
    topics = None if wanted is None else [{**ask.named(n), "partition_indexes": i} for n, i in wanted.items()]
    body = {"group_id": group, "topics": topics, "groups": [{"group_id": group, "topics": topics}]}
    answer = ask.ask(ApiKey.OFFSET_FETCH, body, version)
    held = answer.groups[0] if version >= 8 else answer
    return {
        (ask.name_of(t), p.partition_index): (p.committed_offset, p.metadata) for t in held.topics for p in t.partitions
    }


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_every_version_finds_the_coordinator(ask: Requests, broker: BrokerProcess, group: str, version: int) -> None:
    found = find(ask, group, version)
    assert (found.error_code, f"{found.host}:{found.port}") == (ErrorCode.none, broker.bootstrap)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT)[1:])
def test_every_version_commits(ask: Requests, topic: str, group: str, version: int) -> None:
    await_coordinator(ask, group)
    ask.create(topic)
    assert commit(ask, group, {(topic, 0): 42}, version) == {(topic, 0): ErrorCode.none}
    assert committed(ask, group, {topic: [0]}) == {(topic, 0): (42, "at 42")}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[1:])
def test_every_version_fetches_what_is_and_what_is_not_committed(
    ask: Requests, topic: str, group: str, version: int
) -> None:
    await_coordinator(ask, group)
    ask.create(topic, 2)
    commit(ask, group, {(topic, 1): 5})
    found = committed(ask, group, {topic: [0, 1]}, version)
    assert (found[topic, 0][0], found[topic, 1]) == (-1, (5, "at 5"))


@pytest.mark.parametrize("version", [v for v in versions(ApiKey.OFFSET_FETCH) if v >= 2])
def test_no_topics_mean_all_that_are_committed(ask: Requests, topic: str, group: str, version: int) -> None:
    await_coordinator(ask, group)
    ask.create(topic, 2)
    commit(ask, group, {(topic, 1): 5})
    assert committed(ask, group, None, version) == {(topic, 1): (5, "at 5")}


def test_a_partition_that_is_not_there_does_not_stop_the_others(ask: Requests, topic: str, group: str) -> None:
    await_coordinator(ask, group)
    ask.create(topic)
    assert commit(ask, group, {(topic, 0): 1, (topic, 7): 1, ("no-such-topic", 0): 1}) == {
        (topic, 0): ErrorCode.none,
        (topic, 7): ErrorCode.unknown_topic_or_partition,
        ("no-such-topic", 0): ErrorCode.unknown_topic_or_partition,
    }


def test_offsets_of_a_deleted_topic_are_forgotten(ask: Requests, topic: str, group: str) -> None:
    await_coordinator(ask, group)
    ask.create(topic)
    commit(ask, group, {(topic, 0): 1})
    ask.delete(topic)
    eventually(lambda: committed(ask, group, None) == {})


def test_offsets_outlive_a_kill_and_a_clean_restart(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str
) -> None:
    broker = broker_factory({"offsets.topic.num.partitions": "3", "log.flush.interval.messages": "1"})
    with Requests(broker.bootstrap) as ask:
        ask.create(topic)
        await_coordinator(ask, group)
    for number, end in enumerate((broker.kill, broker.stop)):
        with Requests(broker.bootstrap) as ask:
            assert commit(ask, group, {(topic, 0): number}) == {(topic, 0): ErrorCode.none}
            end()
        broker.start()
        with Requests(broker.bootstrap) as ask:
            await_coordinator(ask, group)
            assert committed(ask, group, {topic: [0]}) == {(topic, 0): (number, f"at {number}")}


def test_a_client_that_leaves_while_the_offsets_topic_is_made_does_no_harm(
    broker_factory: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = broker_factory({"offsets.topic.num.partitions": "50"})
    for _ in range(3):
        with Requests(broker.bootstrap) as leaving:
            leaving.send(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["g"]})
    with Requests(broker.bootstrap) as ask:
        ask.create(topic)
        for number in range(60):
            group = f"group-{number}"
            eventually(lambda group=group: find(ask, group).error_code is ErrorCode.none)  # type: ignore[misc]
            eventually(lambda group=group: commit(ask, group, {(topic, 0): 1})[topic, 0] is ErrorCode.none)  # type: ignore[misc]
