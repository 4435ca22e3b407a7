"""A log on disk and its transactional producers, for tests that do not make their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.log.log import Log
from tests.support.batches import open_log
from tests.support.log_transactions import Producers


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


@pytest.fixture
def log(directory: Path) -> Log:
    return open_log(directory)


@pytest.fixture
def producers(log: Log) -> Producers:
    return Producers(log)
