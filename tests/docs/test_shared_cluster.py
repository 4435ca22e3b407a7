"""docs/how-to/shared-cluster.md does what it says: every command runs, in order, and prints what the page shows.

Three brokers and a ZooKeeper run, on free ports where the page has its own. Skipped without the program openssl.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.free_ports import free_block, free_ports
from tests.support.snippets import Snippet, matches, snippets
from tests.support.source_tree import ROOT

PAGE = ROOT / "docs" / "how-to" / "shared-cluster.md"
SERVER = re.compile(r"pykafka (zookeeper|broker) start")
BLANKS = re.compile(" {2,}")
"""Between columns, whose widths depend on the ports."""


class Administrator:
    """Works through the page in one directory. Servers go on in the background."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._servers: list[subprocess.Popen[str]] = []
        self._ports = {"909": str(free_block() // 10), "919": str(free_block() // 10)}
        (self._zookeeper,) = map(str, free_ports(1))

    def close(self) -> None:
        for server in reversed(self._servers):
            server.terminate()
        for server in self._servers:
            server.communicate(timeout=60)

    def run(self, snippet: Snippet) -> str:
        """What it prints: the error, where the page shows one. Raises AssertionError if it does not end so."""
        text = self._with_free_ports(snippet.text)
        if SERVER.match(text):
            return self._with_pages_ports("".join(map(self._start, text.splitlines())))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.directory,
            env={**os.environ, "PATH": self._path},
            capture_output=True,
            text=True,
            timeout=100,
        )
        refused = (snippet.printed or "").startswith("pykafka: ")
        assert (done.returncode != 0) == refused, f"{text}\n{done.stdout}\n{done.stderr}"
        return self._with_pages_ports(done.stderr if refused else done.stdout)

    def logs(self) -> str:
        """What the servers have written to their logs."""
        return "".join(log.read_text(encoding="utf-8") for log in self.directory.glob("server-*.log"))

    def _start(self, command: str) -> str:
        """The first line that the server prints."""
        if "zookeeper" in command:
            command += f" --port {self._zookeeper}"
        with (self.directory / f"server-{len(self._servers)}.log").open("w") as log:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env={**os.environ, "PATH": self._path},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._servers.append(server)
        assert server.stdout is not None
        return server.stdout.readline()

    def _with_free_ports(self, text: str) -> str:
        for own, free in self._ports.items():
            text = re.sub(rf"\b{own}(?=[123$])", free, text)
        return text.replace("2181", self._zookeeper)

    def _with_pages_ports(self, text: str) -> str:
        for own, free in self._ports.items():
            text = re.sub(rf"\b{free}(?=[123]\b)", own, text)
        return text.replace(self._zookeeper, "2181")


@pytest.fixture
def administrator(tmp_path: Path) -> Iterator[Administrator]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    administrator = Administrator(tmp_path)
    yield administrator
    administrator.close()


@pytest.mark.timeout(300)
def test_every_command_prints_what_the_page_shows(administrator: Administrator) -> None:
    run = snippets(PAGE)
    assert {one.language for one in run} == {"bash"}
    for snippet in run:
        printed = administrator.run(snippet)
        if snippet.printed is not None:
            wanted, found = BLANKS.sub("  ", snippet.printed), BLANKS.sub("  ", printed)
            assert matches(wanted, found), f"{snippet.text}\nprinted\n{printed}"
    logs = administrator.logs()
    assert "Principal = User:shop is Denied Operation = Read" in logs
    assert "Traceback" not in logs
    passwords = [file.read_text().strip() for file in administrator.directory.glob("*.password")]
    assert len(passwords) == 5
    assert [one for one in passwords if one in logs] == []
    readable = [path.name for path in administrator.directory.glob("*.*") if path.stat().st_mode & 0o077]
    assert [name for name in readable if not name.endswith(".log")] == []
