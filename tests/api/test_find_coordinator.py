"""FindCoordinator names a broker only once that broker has begun to coordinate."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests

GROUP, TRANSACTION = 0, 1
TOPICS = {GROUP: "__consumer_offsets", TRANSACTION: "__transaction_state"}


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_nobody_is_sent_to_a_coordinator_that_has_not_taken_over_yet(tmp_path: Path, kind: int) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    with broker, Requests(broker.bootstrap) as first, Requests(broker.bootstrap) as second:
        first.send(ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": ["first"]})  # makes the topic
        while not _exists(second, TOPICS[kind]):
            pass
        while (code := _find(second, kind, "second")) is not ErrorCode.none:
            assert code is ErrorCode.coordinator_not_available
        assert _ask(second, kind, "second") in (ErrorCode.none, ErrorCode.coordinator_load_in_progress)


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
