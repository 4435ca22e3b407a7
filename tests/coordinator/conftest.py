"""The tests of coordinators use the fixtures of a slow disk, and one group."""

from __future__ import annotations

import pytest

from tests.support.groups import GroupDriver
from tests.support.slow_disk import clock, disk, threads

__all__ = ["clock", "disk", "threads"]


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()
