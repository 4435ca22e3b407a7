"""The last batch of a run in the offset store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.offset_store.base import open_store
from spark_connector.progress.last_commit import LastCommit
from spark_connector.progress.stream_lag import QueryLag, query_lag
from tests.spark_connector.progress.reports import offset, report, source


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    store = {"offsetStore": "files", "offsetStore.path": str(tmp_path / "offsets"), "group": "g"}
    return {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **store}


def a_lag(end: int, topic: str = "t", **changes: Any) -> QueryLag:
    return query_lag(report(source(None, offset({topic: {0: end}})), **changes))


def stored(options: dict[str, str]) -> dict[TopicPartition, int]:
    return open_store("files", options).read("g")


def test_the_end_of_the_last_report_is_published_when_the_run_ends(options: dict[str, str]) -> None:
    commit = LastCommit(options)
    commit.progressed(a_lag(5))
    commit.progressed(a_lag(9))
    assert stored(options) == {}
    commit.ended("run-1")
    assert stored(options) == {TopicPartition("t", 0): 9}


def test_a_run_that_reported_nothing_publishes_nothing(options: dict[str, str]) -> None:
    commit = LastCommit(options)
    commit.ended("run-1")
    commit.progressed(a_lag(5))
    commit.ended("another")
    assert stored(options) == {}


@pytest.mark.parametrize("selected", [{"subscribe": "u,v"}, {"subscribePattern": "u.*"}, {"assign": '{"t":[1]}'}])
def test_sources_of_other_topics_are_left_alone(options: dict[str, str], selected: dict[str, str]) -> None:
    del options["subscribe"]
    commit = LastCommit(options | selected)
    commit.progressed(a_lag(5))
    commit.ended("run-1")
    assert stored(options) == {}


@pytest.mark.parametrize("selected", [{"subscribe": "u,t"}, {"subscribePattern": "t|u"}, {"assign": '{"t":[0,1]}'}])
def test_sources_of_the_selected_topics_count(options: dict[str, str], selected: dict[str, str]) -> None:
    del options["subscribe"]
    commit = LastCommit(options | selected)
    commit.progressed(a_lag(5))
    commit.ended("run-1")
    assert stored(options) == {TopicPartition("t", 0): 5}


def test_with_a_name_only_that_query_counts(options: dict[str, str]) -> None:
    commit = LastCommit(options, query="mine")
    commit.progressed(a_lag(5, name="yours", runId="run-2"))
    commit.progressed(a_lag(7, name="mine"))
    commit.ended("run-2")
    assert stored(options) == {}
    commit.ended("run-1")
    assert stored(options) == {TopicPartition("t", 0): 7}


def test_options_without_a_store_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="offsetStore"):
        LastCommit({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
