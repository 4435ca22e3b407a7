"""README.md, the site's first page and the tutorials do what they say: every snippet runs and prints what is shown.

One newcomer works through all pages, in one clean directory, with one broker and one Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.snippets import START, Newcomer, Snippet, matches, snippets
from tests.support.source_tree import ROOT
from tests.support.users_environment import users_environment

TUTORIALS = [
    ROOT / "docs" / "tutorials" / f"{name}.md" for name in ("read", "stream", "write", "typed-records", "load")
]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *TUTORIALS]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    with Newcomer(tmp_path_factory.mktemp("clean"), users_environment()) as newcomer:
        newcomer.run(next(one for one in snippets(ROOT / "README.md") if one.text.startswith(START)))
        yield newcomer


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_snippet_prints_what_the_page_shows(newcomer: Newcomer, page: Path) -> None:
    run = [one for one in snippets(page) if one.language in {"bash", "python"}]
    assert run
    for snippet in run:
        printed = newcomer.run(snippet)
        if snippet.printed is not None:
            assert matches(snippet.printed, printed), f"{snippet.text}\nprinted\n{printed}"


def test_a_newcomer_has_the_catalogs_of_the_working_directory_whatever_other_tests_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / ".pyiceberg.yaml").write_text("catalog:\n  other:\n    type: sql\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(others))
    monkeypatch.setenv("PYICEBERG_CATALOG__THIRD__TYPE", "sql")
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lake:\n    type: sql\n")
    code = "from pyiceberg.catalog import list_catalogs\nprint(*list_catalogs())"
    with Newcomer(tmp_path, users_environment()) as newcomer:
        assert newcomer.run(Snippet("page", "python", code, None)) == "lake\n"
