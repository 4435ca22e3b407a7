"""Random tables: each row is found by a filter of each of its values. tests/support/random_tables.py draws them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.filter_tables import FORMATS
from tests.support.random_tables import look


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 201))])
def test_each_row_is_found_by_each_of_its_values(tmp_path: Path, format: str, seed: int) -> None:
    tried, wrong = look(tmp_path, format, seed)
    assert wrong == []
    assert tried > 0
