"""A local path as destination where Spark's executors run on other hosts: refused before anything is written, by the
master alone, whether the driver would write the load itself or not."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.errors import ConfigError
from spark_connector.load import run_load
from spark_connector.loads.files.directory import FilesDestination
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.shared_path import SHARED
from tests.support.console import error_of
from tests.support.history_loads import no_session
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

STANDALONE = "spark://spark-master:7077"
JSON = {"valueFormat": "json", "valueSchema": "n INT"}
FORMATS = ("parquet", "json", "orc", "avro", "delta", "iceberg", "sql")


def place_of(format: str, root: Path) -> dict[str, Any]:
    """A destination on this host's disk."""
    if format == "iceberg":
        return {"to": "iceberg:lake.t", "catalog": add_catalog(root / "place")}
    return {"to": f"sqlite:///{root}/place.db#t" if format == "sql" else str(root / "place")}


@pytest.fixture
def loaded(broker: Kafka, topic: str, tmp_path: Path) -> Callable[..., LoadResult]:
    """Loads one record; without Spark."""
    Topic(broker.bootstrap, topic).produce([b'{"n": 1}'], key=b"k")

    def run(format: str, master: str, session: Any = no_session, **given: Any) -> LoadResult:
        target = Target(**{"group": f"g-{topic}", "format": format, **place_of(format, tmp_path)}).check()
        arguments: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "options": JSON}
        arguments["publish_offsets"] = False
        return run_load(LoadRequest.build(target, master=master, **arguments | given), session, lambda *_: None)

    return run


def files_below(root: Path) -> set[Path]:
    """But those of catalogs and databases, which opening them makes."""
    return {path for path in root.rglob("*") if path.is_file() and path.suffix != ".db"}


@pytest.mark.parametrize("format", FORMATS)
def test_each_destination_is_refused(loaded: Callable[..., LoadResult], tmp_path: Path, format: str) -> None:
    before = files_below(tmp_path)
    with pytest.raises(ConfigError) as refused:
        loaded(format, STANDALONE)
    text = str(refused.value)
    assert text.startswith("to ")
    assert str(tmp_path) in text
    assert (
        f"the driver runs on host {socket.gethostname()}, the executors of {STANDALONE} on hosts of their own" in text
    )
    assert f"{SHARED}. If it is such a mount, say so by shared_mount=True (--shared-mount)" in text
    assert files_below(tmp_path) == before
    if format != "orc":  # which Spark writes
        assert loaded(format, STANDALONE, shared_mount=True).rows == 1


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_changes_of_an_upsert(loaded: Callable[..., LoadResult], format: str) -> None:
    given = {"mode": "upsert", "key": "n", "order_by": "timestamp"}
    with pytest.raises(ConfigError, match="is a local path, and another place on each host"):
        loaded(format, "yarn", **given)
    assert loaded(format, "yarn", shared_mount=True, **given).rows == 1
    with pytest.raises(ConfigError, match="is a local path, and another place on each host"):
        loaded(format, "yarn", **given)  # of the table that is there, too


def test_dead_letters(loaded: Callable[..., LoadResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilesDestination, "local_place", lambda self: None)  # as on hdfs://
    with pytest.raises(ConfigError, match=rf"^dead_letters \(--dead-letters\) file://{tmp_path}/bad is a local path"):
        loaded("parquet", STANDALONE, dead_letters=f"delta:{tmp_path}/bad")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]", ""])
def test_a_master_of_one_host_and_one_that_is_not_known(loaded: Callable[..., LoadResult], master: str) -> None:
    assert loaded("parquet", master).rows == 1


@pytest.mark.parametrize(("master", "is_refused"), [("local[*]", False), ("k8s://https://api:443", True)])
def test_the_server_of_spark_connect_is_asked(loaded: Callable[..., LoadResult], master: str, is_refused: bool) -> None:
    session = mock.Mock()
    session.conf.get = {"spark.master": master}.get
    if is_refused:
        with pytest.raises(ConfigError, match=f"the executors of {master} on hosts of their own"):
            loaded("parquet", "sc://server:15002", lambda: session)
    else:
        assert loaded("parquet", "sc://server:15002", lambda: session).rows == 1


@pytest.mark.parametrize("words", [["--master", STANDALONE], ["--conf", f"spark.master={STANDALONE}"]])
def test_the_command_knows_the_master_before_spark_starts(tmp_path: Path, words: list[str]) -> None:
    place = ["--to", str(tmp_path / "place"), "--group", "g"]
    said = error_of("load", "--topic", "t", "-b", "localhost:1", *place, *words, status=2)
    assert f"the executors of {STANDALONE} on hosts of their own" in said
    assert not (tmp_path / "place").exists()


def test_a_server_that_shows_no_settings_is_not_known(loaded: Callable[..., LoadResult]) -> None:
    session = mock.Mock()
    session.conf.get.side_effect = RuntimeError("[CONFIG_NOT_AVAILABLE] Configuration spark.master is not available")
    assert loaded("parquet", "sc://server:15002", lambda: session).rows == 1
