"""A real PostgreSQL server for tests: Debian's, installed or fetched, on a socket of its own and no port.

Used by the fixture `postgres`. Fetching needs no root: the packages are unpacked into the user's cache. PostgreSQL
refuses to run as root, so that root starts it as `nobody`, who may not look into root's cache and gets a copy.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.debian_packages import unpack
from tests.support.requirements import Unavailable, cache_directory
from tests.support.waiting import eventually

_VERSION = "15"
_MACHINE = Path("/")
_PACKAGES = [
    f"postgresql-{_VERSION}",
    f"postgresql-client-{_VERSION}",  # pg_isready
    "libcom-err2",
    "libgssapi-krb5-2",
    "libicu72",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libldap-2.5-0",
    "liblz4-1",
    "libpam0g",
    "libpq5",
    "libsasl2-2",
    "libssl3",
    "libsystemd0",
    "libxml2",
    "libxslt1.1",
    "libzstd1",
    "zlib1g",
]
# Durability across a power cut is not what is tested.
_SETTINGS = ["fsync=off", "log_timezone=GMT", "timezone=GMT", "max_connections=40"]


class Postgres:
    """The server, from start to `stop`. Raises Unavailable when PostgreSQL cannot be had."""

    def __init__(self, address: str = "") -> None:
        """`address`: where it listens as well, on port 5432, and trusts everybody; for hosts of a test's own."""
        root = _find()
        self._address = address
        # A short path: a Unix socket's has at most 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._log = self._directory / "log"
        self._server: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            if root != _MACHINE:
                unread = shutil.ignore_patterns("doc", "locale", "man")
                root = Path(shutil.copytree(root, self._directory / "fetched", symlinks=True, ignore=unread))
            nobody = pwd.getpwnam("nobody")
            os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
        self._bin, self._environment = _programs(root)

    def start(self) -> str:
        """Begin to serve; gives the SQLAlchemy URL of an empty database."""
        data = self._directory / "data"
        if not data.is_dir():
            self._run("initdb", "-D", str(data), "-U", "tests", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
            if self._address:
                with (data / "pg_hba.conf").open("a") as trusted:
                    trusted.write("host all all all trust\n")
        listens = f"listen_addresses={self._address}"
        settings = [part for setting in (*_SETTINGS, listens) for part in ("-c", setting)]
        command = [str(self._bin / "postgres"), "-D", str(data), "-k", str(self._directory), *settings]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, **self._identity())
        try:
            eventually(self._answers, timeout=60)
        except BaseException:
            self.kill()
            raise
        if self._address:
            return f"postgresql+psycopg://tests@{self._address}/postgres"
        return f"postgresql+psycopg://tests@/postgres?host={self._directory}"

    def kill(self) -> None:
        """As a power cut would: no process of the server lives on. `start` recovers."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(30)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, self._log.read_text(errors="replace")[-2000:]
        done = subprocess.run(
            [str(self._bin / "pg_isready"), "-q", "-h", str(self._directory)], env=self._environment, check=False
        )
        return done.returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, text=True, check=False, **self._identity()
        )
        assert done.returncode == 0, done.stderr

    def _identity(self) -> dict[str, Any]:
        """As whom, where and with what environment its programs run."""
        common: dict[str, Any] = {"cwd": self._directory, "env": self._environment}
        if os.geteuid() != 0:
            return common
        nobody = pwd.getpwnam("nobody")
        return {**common, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _find() -> Path:
    """The directory below which PostgreSQL's files are: the machine's, or the fetched ones'."""
    if any(_MACHINE.glob("usr/lib/postgresql/*/bin/postgres")):
        return _MACHINE
    root = cache_directory() / f"postgresql-{_VERSION}"
    if not root.is_dir():
        unpack(_PACKAGES, root)
    directory, environment = _programs(root)
    for program in ("initdb", "postgres", "pg_isready"):
        command = [str(directory / program), "--version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        except OSError as error:
            raise Unavailable(f"PostgreSQL was fetched into {root}, but not {program}: {error}") from error
        if done.returncode != 0:
            raise Unavailable(f"PostgreSQL was fetched into {root}, but does not run here: {done.stderr.strip()}")
    return root


def _programs(root: Path) -> tuple[Path, dict[str, str]]:
    """The directory of the server's programs, and the environment to run them in."""
    directory = max(root.glob("usr/lib/postgresql/*/bin"))
    if root == _MACHINE:
        return directory, dict(os.environ)
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    return directory, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def main(address: str) -> None:
    """Serve until standard input ends; prints the URL."""
    server = Postgres(address)
    try:
        print(server.start(), flush=True)
        sys.stdin.read()
    finally:
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
