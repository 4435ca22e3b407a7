"""The session of a console command, and its progress line."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

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


@pytest.mark.parametrize(
    ("url", "setting", "other"),
    [("sc://host:15002", "spark.remote", "spark.master"), ("spark://host:7077", "spark.master", "spark.remote")],
)
def test_the_master_may_be_a_server_of_spark_connect(
    monkeypatch: pytest.MonkeyPatch, url: str, setting: str, other: str
) -> None:
    """Which has settings of its own, and takes those of the session."""
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: dict(builder._options))
    given = dict(LazySession("test", url, {"spark.sql.shuffle.partitions": "7"}).session())  # type: ignore[call-overload]
    assert given[setting] == url
    assert other not in given
    assert given["spark.sql.session.timeZone"] == "UTC"
    assert given["spark.sql.shuffle.partitions"] == "7"
    assert ("spark.ui.enabled" in given) == (other == "spark.remote")
