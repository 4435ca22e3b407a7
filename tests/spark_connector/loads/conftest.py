"""Where the tests of loads write, and what they load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import Kafka
from tests.support.memory_directory import is_there, memory_directory
from tests.support.topic_data import TopicData


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is any: a load syncs each of its steps, and what dies here is a process, no machine."""
    if not is_there():
        yield tmp_path
        return
    with memory_directory() as made:
        yield made


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    """Two partitions with ten records each."""
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(20)
    return data
