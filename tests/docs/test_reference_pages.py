"""The generated parts of docs/reference say what the code says."""

from __future__ import annotations

import pytest

from tests.support.reference_pages import BLOCK, REFERENCE, TABLES, names, regenerate

WRITTEN = {
    match["name"]: match[0]
    for page in REFERENCE.glob("*.md")
    for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
}


def test_every_generated_part_has_its_place() -> None:
    placed = [name for page in REFERENCE.glob("*.md") for name in names(page.read_text(encoding="utf-8"))]
    assert sorted(placed) == sorted(TABLES)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_what_is_written_equals_the_code(name: str) -> None:
    assert regenerate(WRITTEN[name]) == WRITTEN[name], "run `make reference`"


def test_a_table_that_differs_is_seen() -> None:
    stale = "<!-- table: options -->\n\n| stale |\n<!-- end of table -->"
    assert regenerate(stale) != stale
