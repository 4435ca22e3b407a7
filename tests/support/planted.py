"""Code of a test that runs in the broker processes, before the broker: the product needs no switch for it.

    with planted(tmp_path, "tests.support.broken_replication:acknowledge_early"):
        …  # each broker that starts here calls acknowledge_early() first

Python imports a module `sitecustomize` when it starts. The one written here imports the function and calls it in
processes of `python -m broker start` only, and says so in the broker's log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.source_tree import ROOT

_SITE = """
import sys

if sys.orig_argv[1:4] == ["-m", "broker", "start"]:
    from importlib import import_module

    for planted in {functions!r}:
        module, _, name = planted.partition(":")
        getattr(import_module(module), name)()
        print("planted:", planted, file=sys.stderr, flush=True)
"""


@contextmanager
def planted(directory: Path, *functions: str) -> Iterator[None]:
    """Call `functions`, each "module:name", in every broker process that starts in this block."""
    site, before = directory / "site", os.environ.get("PYTHONPATH")
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE.format(functions=_checked(functions)))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(ROOT), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _checked(functions: Sequence[str]) -> list[str]:
    assert all(":" in function for function in functions), functions
    return list(functions)
