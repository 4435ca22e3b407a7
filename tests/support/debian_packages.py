"""Debian packages fetched and unpacked without root and without installing anything.

Called by tests/support/kcat.py and chromium.py. Uses the machine's package lists where it has some, else (a bare
container) fetches them into a private place.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.requirements import Unavailable, cache_directory

_TIMEOUT = 300  # seconds for one apt command


def unpack(packages: Sequence[str], target: Path, *, with_dependencies: bool = False) -> None:
    """Put the files of these packages under `target`, all or nothing. Raises Unavailable with the reason.

    `with_dependencies`: also those packages that they need and this machine does not have.

    Safe when several test runs start at once: the first to finish wins, the others use its copy.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
        scratch = Path(name)
        _download(packages, scratch, with_dependencies=with_dependencies)
        (scratch / "root").mkdir()
        for package in sorted(scratch.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(scratch / "root")], scratch)
        try:
            (scratch / "root").rename(target)
        except OSError:
            if not target.is_dir():
                raise


def _download(packages: Sequence[str], scratch: Path, *, with_dependencies: bool) -> None:
    # Run as root, apt would change to the user _apt, who may not write in this private directory.
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    try:
        _download_with(apt, packages, scratch, with_dependencies=with_dependencies)
    except Unavailable:
        for part in ("state/lists/partial", "cache/archives/partial"):
            (scratch / part).mkdir(parents=True)
        apt += ["-o", f"Dir::State::lists={scratch}/state/lists", "-o", f"Dir::Cache={scratch}/cache"]
        _run([*apt, "update"], scratch)
        _download_with(apt, packages, scratch, with_dependencies=with_dependencies)


def _download_with(apt: Sequence[str], packages: Sequence[str], scratch: Path, *, with_dependencies: bool) -> None:
    if with_dependencies:
        planned = _run([*apt, "--simulate", "--no-install-recommends", "install", *packages], scratch)
        needed = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
        packages = [*packages, *(package for package in needed if package not in packages)]
    _run([*apt, "download", *packages], scratch)


def _run(command: Sequence[str], directory: Path) -> str:
    """What it printed."""
    what = " ".join(command)
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{what}:\n{done.stderr[-2000:]}")
    return done.stdout


def unpacked_program(package: str, path: str) -> tuple[str, dict[str, str]]:
    """A program of a package, with what the package needs, in the user's cache: (its path, an environment for it).

    Raises Unavailable when it cannot be had, or does not run here.
    """
    root = cache_directory() / package
    if not root.is_dir():
        unpack([package], root, with_dependencies=True)
    binary = root / path
    libraries = sorted({str(file.parent) for file in root.glob("usr/lib/**/*.so*")} | {str(binary.parent)})
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise Unavailable(f"{package} was fetched but does not run here: {done.stderr.strip()[-500:]}")
    return str(binary), environment
