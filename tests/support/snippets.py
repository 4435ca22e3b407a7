"""The code on a page of the documents, as a reader pastes it: in order, from the top.

Fences of `bash` and `python` are run; `sh` only shows a command. A fence of `text` right behind one is what it prints,
where `…` stands for anything. Used by tests/docs; `Newcomer` is the reader.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from tests.support.free_ports import free_ports
from tests.support.source_tree import ROOT
from tests.support.waiting import eventually

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
START = "pykafka broker start"
CONNECT_SERVER = "spark-submit --class org.apache.spark.sql.connect.service.SparkConnectServer"
_CONNECT_PORT = "15002"
_SERVER_S = 240
_SHELL_S = 600
VOLATILE = re.compile(r"(?<=-)[0-9a-f]{8}\b|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""The random end of a load's id, and times."""


class Snippet(NamedTuple):
    """A fence, the page it is on, and what it is to print: None where the page does not say."""

    page: str
    language: str
    text: str
    printed: str | None


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> list[Snippet]:
    """Every fence of the page but the printed ones, in order."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        if fence[1] == "text":
            continue
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        printed = after[2] if follows and after is not None else None
        found.append(Snippet(page.relative_to(ROOT).as_posix(), fence[1], fence[2], printed))
    return found


def matches(printed: str, actual: str) -> bool:
    """Whether `actual` is what the page shows, blanks at the ends of lines aside."""
    wanted, got = (_lines(text) for text in (printed, actual))
    return re.fullmatch(re.escape(wanted).replace("…", "(?s:.*?)"), got) is not None


def _lines(text: str) -> str:
    return VOLATILE.sub("(differs)", "\n".join(line.rstrip() for line in text.strip().splitlines()))


class Newcomer:
    """A shell and a Python in one clean directory, and a broker on a free port where the pages say 9092; a server of
    Spark Connect on another one for 15002."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._port, self._connect_port = map(str, free_ports(2))
        self._environment = {**environment, "PYKAFKA_BOOTSTRAP_SERVER": f"localhost:{self._port}"}
        self._broker: subprocess.Popen[str] | None = None
        self._server: subprocess.Popen[str] | None = None
        self._said_by_broker = ""
        self._python = self._start([sys.executable, "-m", "tests.support.snippet_python"], stdin=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._python, self._server, self._broker):
            if process is not None:
                process.terminate()
                process.communicate(timeout=60)

    def run(self, snippet: Snippet) -> str:
        """What the snippet prints. Raises AssertionError when it fails."""
        text = self.here(snippet.text)
        if snippet.language == "python":
            output = self._run_python(snippet.page, text)
        elif text.startswith(START):
            output = self._start_broker(text)
        elif text.startswith(CONNECT_SERVER):
            output = self._start_server(text)
        else:
            output = self._run_shell(text)
        return output.replace(self._port, "9092")

    def here(self, text: str) -> str:
        """`text` with this newcomer's ports."""
        return text.replace("9092", self._port).replace(_CONNECT_PORT, self._connect_port)

    def _run_shell(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_SHELL_S,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _run_python(self, page: str, text: str) -> str:
        _stream(self._python.stdin).write(json.dumps({"page": page, "code": text}) + "\n")
        _stream(self._python.stdin).flush()
        answer: dict[str, Any] = json.loads(_stream(self._python.stdout).readline())
        assert not answer["error"], f"{text}\n{answer['printed']}\n{answer['error']}"
        return str(answer["printed"])

    def _start_broker(self, command: str) -> str:
        """All pages share the broker that the first of them starts."""
        if self._broker is None:
            own = f" --override listeners=PLAINTEXT://127.0.0.1:{self._port} --override embedded.zookeeper.port=0"
            self._broker = self._start(["bash", "-c", f"exec {command.strip()}{own}"])
            self._said_by_broker = _stream(self._broker.stdout).readline()
        return self._said_by_broker

    def _start_server(self, command: str) -> str:
        setting = f" --conf spark.connect.grpc.binding.port={self._connect_port} spark-internal"
        self._server = self._start(["bash", "-c", f"exec {command.strip().replace(' spark-internal', setting)}"])
        eventually(lambda: _listens(int(self._connect_port)), _SERVER_S)
        return ""

    def _start(self, command: list[str], **pipes: Any) -> subprocess.Popen[str]:
        log = (self._directory / "stderr.log").open("a")
        with log:
            return subprocess.Popen(
                command,
                cwd=self._directory,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                **pipes,
            )


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
