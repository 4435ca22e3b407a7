"""The hosts of one test; those who need more of them have fixtures of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Network
from tests.support.requirements import Unavailable, give_up


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    try:
        with Network(tmp_path) as network:
            yield network
    except Unavailable as missing:
        give_up(str(missing))
