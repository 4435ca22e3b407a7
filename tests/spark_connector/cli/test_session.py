"""The progress line of a console command."""

from __future__ import annotations

import threading

import pytest

from spark_connector.cli.screen import Screen
from spark_connector.cli.session import LazySession


class GoneSession:
    """Spark, whose Java process has ended."""

    def __init__(self) -> None:
        self.was_asked = threading.Event()

    @property
    def sparkContext(self) -> object:  # noqa: N802
        self.was_asked.set()
        raise ConnectionResetError("Spark's Java process is gone")


def test_the_progress_line_ends_quietly_when_spark_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    spark, gone = LazySession("test", "local[1]", {}), GoneSession()
    spark._session = gone  # type: ignore[assignment]
    with Screen() as screen, spark.shown(screen):
        assert gone.was_asked.wait(10)
    assert failed == []
