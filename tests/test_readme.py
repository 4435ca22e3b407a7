"""The tables in README.md say what the code says, and its links and files exist."""

from __future__ import annotations

import re

import pytest

from tests.support.readme_tables import BLOCK, README, TABLES, names, regenerate
from tests.support.source_tree import ROOT

TEXT = README.read_text(encoding="utf-8")


def test_every_table_has_its_place() -> None:
    assert sorted(names(TEXT)) == sorted(TABLES)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_table_equals_the_code(name: str) -> None:
    written = {match["name"]: match[0] for match in BLOCK.finditer(TEXT)}
    assert regenerate(written[name]) == written[name], "run `make readme`"


def test_links_to_files_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", TEXT)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_make_targets_it_names_exist() -> None:
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", TEXT)) <= rules


def test_a_table_that_differs_is_seen() -> None:
    assert regenerate("<!-- table: options -->\n| stale |\n<!-- end of table -->") != (
        "<!-- table: options -->\n| stale |\n<!-- end of table -->"
    )
