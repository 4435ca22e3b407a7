"""Environments of Python with packages that ours has not, made once in the user's cache: old clients, frameworks.

All or nothing, and safe when several test runs make the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.requirements import Unavailable, cache_directory

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
_TIMEOUT_S = 600


def python_with(version: str, *packages: str) -> Path:
    """An interpreter of Python `version` (`3.6`) with the packages (`kafka-python==1.4.0`). Raises Unavailable."""
    target = cache_directory() / f"python{version}-{'-'.join(packages).replace('==', '-')}"
    if not (target / "bin" / "python").exists():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            made = Path(scratch) / "root"
            _run([_interpreter(version), "-m", "venv", str(made)])
            _run([str(made / "bin" / "python"), "-m", "pip", "install", "-q", "--prefer-binary", *packages])
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target / "bin" / "python"


def _interpreter(version: str) -> str:
    for found in _candidates(version):
        probe = [found, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == version:
            return found
    raise Unavailable(f"there is no Python {version}, on the PATH or of pyenv")


def _candidates(version: str) -> Iterator[str]:
    if version == THIS:
        yield sys.executable
    on_the_path = shutil.which(f"python{version}")
    if on_the_path is not None:
        yield on_the_path
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python")))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
