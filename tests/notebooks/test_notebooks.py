"""The notebooks run from the first cell to the last, as a user would run them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SAYS = {
    "01_quickstart": "Proof(rows_in=336776, rows_out=336776, duplicates=0, missing=0)",
    "02_streams_and_lag": "45,000 rows, 45,000 different numbers",
}
"""What each prints when it has done what it tells of."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if cell.cell_type == "code"
    )
    assert SAYS[path.stem] in printed


def test_no_notebook_is_committed_with_outputs() -> None:
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells), path.name
