"""InitProducerId: two producers never get the same id, even if the broker crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions


def take(ask: Requests, version: int | None = None) -> Any:
    body = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return ask.ask(ApiKey.INIT_PRODUCER_ID, body, version)


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_every_version_gives_an_id(ask: Requests, version: int) -> None:
    answer = take(ask, version)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
    assert answer.producer_id >= 0


def test_ids_are_never_given_twice(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory()
    given: list[int] = []
    with Requests(broker.bootstrap) as ask:
        given += [take(ask).producer_id for _ in range(400)]
    broker.kill()
    broker.start()
    with Requests(broker.bootstrap) as ask:
        given += [take(ask).producer_id for _ in range(1200)]  # more than a block
    assert len(set(given)) == len(given)
