"""Tests that need a PySpark newer than the oldest one we support, or an older one than the newest:
`@since_spark("4.2", "admission control")`, `@before_spark("4.2", "Trigger.AvailableNow is one batch")`."""

from __future__ import annotations

from importlib.metadata import version

import pytest

_HERE = version("pyspark")  # the package itself would take a third of a second


def since_spark(first: str, what: str) -> pytest.MarkDecorator:
    """Skips the test where PySpark is older than `first`, the version that brought `what`."""
    return pytest.mark.skipif(_release(_HERE) < _release(first), reason=f"PySpark {_HERE}: {what} came with {first}")


def before_spark(first: str, what: str) -> pytest.MarkDecorator:
    """Skips the test from `first` on: `what` is so only before that version."""
    return pytest.mark.skipif(_release(_HERE) >= _release(first), reason=f"PySpark {_HERE}: {what} only before {first}")


def _release(text: str) -> tuple[int, ...]:
    """(4, 2) of 4.2, 4.2.1 and 4.2.0.dev1: a feature comes with a minor version."""
    return tuple(int(part) for part in text.split(".")[:2])
