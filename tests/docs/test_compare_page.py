"""The table of docs/compare.md leads to tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.source_tree import ROOT

SHOWN = re.compile(r'\[✓\]\(\.\./(tests/\S+) "(test_\w+)"\)')
CELLS = SHOWN.findall((ROOT / "docs" / "compare.md").read_text(encoding="utf-8"))


def test_the_table_leads_to_tests() -> None:
    assert len(CELLS) >= 10


@pytest.mark.parametrize(("path", "name"), CELLS, ids=[name for _, name in CELLS])
def test_what_a_cell_leads_to_exists(path: str, name: str) -> None:
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
