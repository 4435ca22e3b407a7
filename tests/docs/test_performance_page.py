"""Commands of measurements that the pages name can be run, and the table of ratios has a row for each comparison."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from bench.__main__ import BESIDE, SUITES
from tests.support.snippets import pages
from tests.support.source_tree import ROOT

COMMAND = re.compile(r"python -m bench((?: [a-z][a-z-]*)+)")


def named_suites(text: str) -> Iterator[str]:
    """Suites of all commands in a page."""
    for command in COMMAND.finditer(text):
        yield from command[1].split()


def test_each_measurement_that_a_page_names_exists() -> None:
    wrong = {
        f"{page.relative_to(ROOT)}: python -m bench {suite}"
        for page in pages()
        for suite in named_suites(page.read_text(encoding="utf-8"))
        if suite not in SUITES
    }
    assert wrong == set()


def test_each_measurement_leads_to_a_function() -> None:
    for suite, place in SUITES.items():
        module, _, function = place.partition(":")
        tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        assert function in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, suite


def test_each_comparison_with_others_has_rows_in_the_table() -> None:
    """A row without its command cannot be measured again, and a comparison without a row is not read."""
    table = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("| ") and BESIDE in line]
    in_rows = {suite for row in rows for suite in re.findall(rf"`({BESIDE}[a-z-]+)`", row)}
    assert in_rows == {suite for suite in SUITES if suite.startswith(BESIDE)}


def test_a_command_that_is_misspelt_is_found() -> None:
    text = "Run `python -m bench cluster failver` or `python -m bench [SUITE …]`, or `python -m bench.load_first`."
    assert list(named_suites(text)) == ["cluster", "failver"]
