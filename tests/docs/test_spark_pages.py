"""The pages about Spark Connect, SQL and pipelines, as a reader follows them: with servers and shells of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.snippets import Newcomer, Snippet, matches, snippets
from tests.support.source_tree import ROOT
from tests.support.spark_versions import since_spark
from tests.support.users_environment import users_environment

HOW_TO = ROOT / "docs" / "how-to"
STORAGE = "/tmp/flights-pipeline"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    """One who has a broker with the topic `flights`, as README makes it."""
    environment = {**users_environment(), "PYSPARK_PYTHON": sys.executable}
    with Newcomer(tmp_path, environment) as newcomer:
        start, write, *_ = (one for one in snippets(ROOT / "README.md") if one.language == "bash")
        for snippet in (start, write):
            newcomer.run(snippet)
        yield newcomer


def follow(newcomer: Newcomer, steps: list[Snippet]) -> str:
    """Run the steps, compare what the page shows of each, and return what the last one printed."""
    printed = ""
    for snippet in steps:
        if snippet.language in {"bash", "python"}:
            printed = newcomer.run(snippet)
            assert snippet.printed is None or matches(snippet.printed, printed), f"{snippet.text}\nprinted\n{printed}"
    return printed


def parts() -> tuple[list[Snippet], list[Snippet]]:
    """The steps of the page about SQL, and those about pipelines, which begin with the pipeline's file."""
    steps = snippets(HOW_TO / "sql-and-pipelines.md")
    cut = [one.language for one in steps].index("yaml")
    return steps[:cut], steps[cut:]


def test_a_server_of_spark_connect_is_started_and_asked(newcomer: Newcomer) -> None:
    assert follow(newcomer, snippets(HOW_TO / "spark-connect.md")) == "3 records\n"


def test_sql_is_typed_where_the_page_says(newcomer: Newcomer) -> None:
    assert "records" in follow(newcomer, parts()[0])


@since_spark("4.1", "declarative pipelines")
def test_a_pipeline_is_saved_and_run(newcomer: Newcomer, tmp_path: Path) -> None:
    _, (specification, definitions, run) = parts()
    texts = {
        "spark-pipeline.yml": specification.text.replace(STORAGE, str(tmp_path / "storage")),
        "flights.py": newcomer.here(definitions.text),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert newcomer.run(run).splitlines()[-1] == "late"
