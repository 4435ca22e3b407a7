"""FindCoordinator names a broker only once that broker has begun to coordinate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests
from tests.support.replicating import Brokers
from tests.support.waiting import eventually

GROUP, TRANSACTION = 0, 1
TOPICS = {GROUP: "__consumer_offsets", TRANSACTION: "__transaction_state"}


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_nobody_is_sent_to_a_coordinator_that_has_not_taken_over_yet(tmp_path: Path, kind: int) -> None:
    broker = BrokerProcess(tmp_path / "data", standalone=True).start()
    with broker, Requests(broker.bootstrap) as first, Requests(broker.bootstrap) as second:
        first.send(ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": ["first"]})  # makes the topic
        while not _exists(second, TOPICS[kind]):
            pass
        while (code := _find(second, kind, "second")) is not ErrorCode.none:
            assert code is ErrorCode.coordinator_not_available
        assert _ask(second, kind, "second") in (ErrorCode.none, ErrorCode.coordinator_load_in_progress)


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
async def test_brokers_with_different_settings_name_the_same_coordinator(
    tmp_path: Path, zookeeper: str, kind: int
) -> None:
    """The topic has as many partitions as the broker asks for that creates it, whatever the others would ask for."""
    numbers = {"offsets.topic.num.partitions": "{id}", "transaction.state.log.num.partitions": "{id}"}
    brokers = Brokers(tmp_path, f"{zookeeper}/{tmp_path.name}", numbers)
    names = [f"name-{number}" for number in range(10)]
    try:
        for broker_id in (2, 5):
            await brokers.start(broker_id)
        await asyncio.to_thread(_same_everywhere, brokers.ports, kind, names)
    finally:
        for broker_id in list(brokers.running):
            await brokers.stop(broker_id)


def _same_everywhere(ports: dict[int, int], kind: int, names: list[str]) -> None:
    with Requests(f"127.0.0.1:{ports[5]}") as creator, Requests(f"127.0.0.1:{ports[2]}") as other:

        def found(client: Requests) -> list[tuple[ErrorCode, int]]:
            answer = client.ask(ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": names})
            return [(one.error_code, one.node_id) for one in answer.coordinators]

        eventually(lambda: all(code is ErrorCode.none for code, _ in found(creator)))
        eventually(lambda: found(other) == found(creator))
        asked = {2: other, 5: creator}
        for name, (_, coordinator) in zip(names, found(creator), strict=True):
            eventually(lambda name=name, at=coordinator: _ask(asked[at], kind, name) is ErrorCode.none)  # type: ignore[misc]
            assert _ask(asked[7 - coordinator], kind, name) is ErrorCode.not_coordinator


def _exists(client: Requests, topic: str) -> bool:
    body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    return client.ask(ApiKey.METADATA, body, 9).topics[0].error_code is ErrorCode.none


def _find(client: Requests, kind: int, name: str) -> ErrorCode:
    (found,) = client.ask(ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": [name]}).coordinators
    code: ErrorCode = found.error_code
    return code


def _ask(client: Requests, kind: int, name: str) -> ErrorCode:
    """The coordinator's answer to a first request about the group or transaction."""
    code: ErrorCode
    if kind == GROUP:
        answer = client.ask(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": name, "topics": None}]}, 8)
        code = answer.groups[0].error_code
    else:
        body = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        code = client.ask(ApiKey.INIT_PRODUCER_ID, body).error_code
    return code
