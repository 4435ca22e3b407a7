"""Tests that need a PySpark newer than the oldest one we support: `@since_spark("4.2", "admission control")`."""

from __future__ import annotations

from importlib.metadata import version

import pytest

__all__ = ["since_spark"]

_HERE = version("pyspark")  # the package itself would take a third of a second


def since_spark(first: str, what: str) -> pytest.MarkDecorator:
    """Skips the test where PySpark is older than `first`, the version that brought `what`."""
    return pytest.mark.skipif(_release(_HERE) < _release(first), reason=f"PySpark {_HERE}: {what} came with {first}")


def _release(text: str) -> tuple[int, ...]:
    """(4, 2) of 4.2, 4.2.1 and 4.2.0.dev1: a feature comes with a minor version."""
    return tuple(int(part) for part in text.split(".")[:2])
