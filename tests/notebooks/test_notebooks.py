"""The notebooks run from the first cell to the last, and show what is stored in them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import NOTEBOOKS, VARIES, outputs, run


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_again_what_is_stored_in_it(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    fresh = run(path, tmp_path)
    for old, new in zip(stored.cells, fresh.cells, strict=True):
        if VARIES in old.metadata.get("tags", ()):
            assert [kind for kind, _ in outputs(new)] == [kind for kind, _ in outputs(old)], old.source
        else:
            assert outputs(new) == outputs(old), f"{old.source}\n(`make notebooks` stores new outputs)"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_outputs_and_without_traces(path: Path) -> None:
    shown = [entry for cell in nbformat.read(path, as_version=4).cells for entry in outputs(cell)]
    assert shown
    assert [text for kind, text in shown if kind == "error" or "Exception" in text or " WARN " in text] == []
