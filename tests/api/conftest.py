"""A raw connection to the session's broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests


@pytest.fixture
def ask(broker: BrokerProcess) -> Iterator[Requests]:
    with Requests(broker.bootstrap) as made:
        yield made
