"""docs/how-to/install.md names every extra that a user can install."""

from __future__ import annotations

import re
import tomllib

from tests.support.source_tree import ROOT

FOR_CONTRIBUTORS = {"bench", "dev", "dist", "docs", "mutants", "oldest", "test"}


def test_every_extra_has_a_row() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    rows = page.partition("| extra | for |\n")[2].partition("\n\n")[0].splitlines()
    named = {name for row in rows for name in re.findall(r"`([a-z0-9]+)`", row.split("|")[1])}
    assert named == set(extras) - FOR_CONTRIBUTORS
