"""Debian's `kcat` (a command-line client on librdkafka), installed or fetched, as a function call.

Called by tests/compat/test_kcat.py. Fetching needs no root: the packages are unpacked into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.debian_packages import unpack
from tests.support.requirements import Unavailable, cache_directory

_PACKAGES = [
    "kcat",
    "librdkafka1",
    "libyajl2",
    "liblz4-1",
    "libzstd1",
    "libsasl2-2",
    "libsasl2-modules-db",
    "libdb5.3",
    "libssl3",
    "zlib1g",
]


class Kcat:
    """Runs kcat against one broker. Raises Unavailable when kcat cannot be had."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._binary, self._environment = _find()

    def run(self, *arguments: str, stdin: bytes = b"", timeout: float = 60.0) -> bytes:
        """Standard output of `kcat -b BOOTSTRAP arguments…`; AssertionError with its errors when it fails."""
        command = [self._binary, "-b", self.bootstrap, *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=timeout, env=self._environment, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr.decode(errors='replace')}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """kcat in the background with its output piped; the caller ends it."""
        command = [self._binary, "-b", self.bootstrap, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment)


def _find() -> tuple[str, dict[str, str]]:
    installed = shutil.which("kcat") or shutil.which("kafkacat")
    if installed:
        return installed, dict(os.environ)
    root = cache_directory() / "kcat"
    if not root.is_dir():
        unpack(_PACKAGES, root)
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    binary = str(root / "usr/bin/kcat")
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    _check_that_it_runs(binary, environment)
    return binary, environment


def _check_that_it_runs(binary: str, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run([binary, "-V"], capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise Unavailable(f"{binary}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{Path(binary).name} was fetched but does not run here: {done.stderr.strip()}")
