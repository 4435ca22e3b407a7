"""Runs the notebooks, and compares two runs of one.

`python -m tests.support.notebooks` (`make notebooks`) runs them and stores their outputs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat
from matplotlib import font_manager
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.source_tree import ROOT
from tests.support.users_environment import users_environment

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VARIES = "varies"
"""The tag of a cell whose text is another one in every run: ports, times, load ids."""


def run(path: Path, directory: Path) -> NotebookNode:
    """The notebook with the outputs of a run in `directory`. Raises CellExecutionError where a cell fails.

    It has a process of its own, as for its reader: Spark's Python workers know the environment of the time when the
    JVM started, and pyiceberg that of its import.
    """
    font_manager.get_font_names()  # fills the cache of fonts; the notebook would show that it is being built
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, kernel_name="python3", timeout=300, record_timing=False)
    client.execute(cwd=str(directory), env=users_environment())  # `!pykafka` is the one of this Python
    return notebook


def outputs(cell: NotebookNode) -> list[tuple[str, str]]:
    """(kind, text) of what a cell shows, in order. Of a picture there is the kind only."""
    shown = []
    for output in _joined(cell.get("outputs", ())):
        if output.output_type == "stream":
            shown.append((output.name, output.text))
        elif output.output_type == "error":
            shown.append(("error", output.evalue))
        else:
            picture = next((kind for kind in output.data if kind.startswith("image/")), None)
            shown.append((picture, "") if picture else ("text/plain", output.data["text/plain"]))
    return shown


def _joined(cell_outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """What a cell printed as one output: the kernel cuts it into pieces by time."""
    joined: list[NotebookNode] = []
    for output in cell_outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(NotebookNode(output))
    return joined


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as directory:
            notebook = run(path, Path(directory))
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = None
                cell.outputs = _joined(cell.outputs)
                for output in cell.outputs:
                    if "execution_count" in output:
                        output.execution_count = None
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main()
