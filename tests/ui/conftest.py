"""A console of any Kafka, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess


@pytest.fixture(scope="module")
def ui(broker: Kafka) -> Iterator[UiProcess]:
    with UiProcess(broker.bootstrap) as process:
        yield process
