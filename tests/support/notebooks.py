"""Runs the notebooks, and compares two runs of one.

`python -m tests.support.notebooks` (`make notebooks`) runs them and stores their outputs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import start_new_kernel
from matplotlib import font_manager
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VARIES = "varies"
"""The tag of a cell whose text is another one in every run: ports, times, load ids."""


@contextmanager
def kernel() -> Iterator[Any]:
    """The manager of a Python process that runs notebooks one after the other: a Spark starts in it only once."""
    font_manager.get_font_names()  # fills the cache of fonts; the notebook would show that it is being built
    # As in an activated environment: `!pykafka` is the one of this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    manager, client = start_new_kernel(kernel_name="python3", env={**os.environ, "PATH": path})
    try:
        yield manager
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(path: Path, directory: Path, manager: Any) -> NotebookNode:
    """The notebook with the outputs of a run in `directory`. Raises CellExecutionError where a cell fails.

    Names of the notebook before it are gone.
    """
    notebook = nbformat.read(path, as_version=4)
    start = nbformat.v4.new_code_cell(f"import os\nos.chdir({str(directory)!r})\n%reset -f")
    notebook.cells.insert(0, start)
    client = NotebookClient(notebook, km=manager, timeout=300, record_timing=False)
    client.execute(cleanup_kc=False)
    assert client.kc is not None
    client.kc.stop_channels()
    notebook.cells.remove(start)
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
        with tempfile.TemporaryDirectory() as directory, kernel() as manager:
            notebook = run(path, Path(directory), manager)
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
