"""A registry of schemas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_connector.formats import schema_registry as module
from tests.support.schema_registry import Registry, schema_registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Its clients do not wait before they try again."""
    monkeypatch.setattr(module, "_BACK_OFF_S", 0.001)
    with schema_registry() as running:
        yield running
