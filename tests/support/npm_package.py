"""Packages of npm, fetched into the user's cache for tests that need Node.js. Fetching needs `npm` on the PATH."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.requirements import Unavailable, cache_directory

_TIMEOUT_S = 300


def program(name: str) -> str:
    """Its path. Raises Unavailable."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no {name} on the PATH")
    return found


def node_modules(package: str, version: str) -> Path:
    """The directory `node_modules` with the package in it; all or nothing, and safe when several runs fetch at once."""
    target = cache_directory() / f"{package}-{version}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            _install(f"{package}@{version}", Path(scratch) / "root")
            try:
                (Path(scratch) / "root").rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target / "node_modules"


def _install(package: str, directory: Path) -> None:
    directory.mkdir()
    command = [program("npm"), "install", "--no-audit", "--no-fund", "--no-save", package]
    try:
        done = subprocess.run(
            [*command, "--prefix", str(directory)],
            cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
