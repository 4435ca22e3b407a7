"""Where the tests of loads write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_directory import is_there, memory_directory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is any: a load syncs each of its steps, and what dies here is a process, no machine."""
    if not is_there():
        yield tmp_path
        return
    with memory_directory() as made:
        yield made
