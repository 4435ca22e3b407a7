"""What the tests of reads with `history` share: a table of loads in each form, and its topic."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.history_loads import FORMATS, HistoryLoads
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData

# Known to Spark's workers, which `tests.support.history_loads.use_catalog` could no longer tell.
os.environ.setdefault("PYICEBERG_HOME", tempfile.mkdtemp(prefix="pyiceberg-"))


@pytest.fixture(params=FORMATS)
def loads(request: pytest.FixtureRequest, broker: Kafka, topic: str, tmp_path: Path) -> HistoryLoads:
    return HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), request.param)


@pytest.fixture
def data(loads: HistoryLoads) -> TopicData:
    """Two partitions with ten records each."""
    made = TopicData(loads.bootstrap, loads.topic, partitions=2)
    made.produce(20)
    return made
