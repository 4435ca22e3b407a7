"""Spares the processes that tests start the import of Hypothesis, a third of what a broker takes to start.

kio, which has the protocol's messages, registers them with Hypothesis wherever that is installed. The processes of an
installation without it do not import it either.
"""

from __future__ import annotations

import os

from tests.support.source_tree import ROOT

_SITE = 'import sys\n\nsys.modules["hypothesis"] = None\n'


def spare_hypothesis() -> None:
    """Let every Python that is started from now on do without. Not for a process that starts pytest."""
    directory = ROOT / ".pytest_cache" / "children"
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f"{os.getpid()}.new"
    new.write_text(_SITE, encoding="utf-8")
    new.replace(directory / "sitecustomize.py")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
