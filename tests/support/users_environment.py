"""The environment of a user's shell, for what runs as a reader of the documents would run it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def users_environment() -> dict[str, str]:
    """That of this process as if this Python's environment were activated, without the catalogs of other tests.

    pyiceberg reads `.pyiceberg.yaml` in PYICEBERG_HOME, and then none in the working directory.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYICEBERG_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
