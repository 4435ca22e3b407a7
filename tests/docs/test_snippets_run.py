"""README.md, the site's first page and the tutorials do what they say: every snippet runs and prints what is shown.

One newcomer works through all pages, in one clean directory, with one broker and one Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.snippets import Newcomer, matches, snippets
from tests.support.source_tree import ROOT

TUTORIALS = [ROOT / "docs" / "tutorials" / f"{name}.md" for name in ("read", "stream", "write", "load")]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *TUTORIALS]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with Newcomer(tmp_path_factory.mktemp("clean"), {**os.environ, "PATH": path}) as newcomer:
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
