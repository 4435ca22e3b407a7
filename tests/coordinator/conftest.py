"""The tests of coordinators use the fixtures of a slow disk, and one group."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.coordinators import Groups, running_groups
from tests.support.groups import GroupDriver
from tests.support.slow_disk import clock, disk, threads

__all__ = ["clock", "disk", "threads"]


@pytest.fixture
async def groups() -> AsyncIterator[Groups]:
    async with running_groups() as groups:
        yield groups


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()
