"""`pykafka ui` as a process: its address once it serves, and requests without a browser.

It looks at its cluster as soon as it may: `python -m tests.support.ui_process ui …` is `pykafka ui …`, but for the
share of a core that its looks may take, and for their shortest intervals.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from broker.tools.main import main
from pykafka_ui import console
from pykafka_ui.seen import history, sampler
from tests.support.source_tree import ROOT

SOON = {"CPU_SHARE": 0.1, "ENDS_S": 0.5, "GROUPS_S": 0.5, "SIZES_S": 2.0, "RETRY_S": 0.5}
"""Of the sampler; by its own settings a page may show half a minute later what a test has done."""
_SELDOM_S = 1.0
"""Of the console, for what it asks for every 15 s."""
_PATIENCE_S = 60.0
"""Of the history, which knows less than an hour where the brokers took long."""


class Answer(NamedTuple):
    """An HTTP response; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class UiProcess:
    """Serves on a free port of loopback until it is stopped."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        words = [sys.executable, "-m", __name__, "ui", "--bootstrap-server", bootstrap, "--port", "0", *options]
        self._process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "the console is at " not in line:
            raise AssertionError(self.stop())
        self.entrance = line.split()[-1]
        """The address that a person opens, with the token if there is one."""
        address, _, token = self.entrance.partition("?token=")
        self.address = address.rstrip("/")
        self._own = {"authorization": f"Bearer {token}"} if token else {}
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> tuple[int, str]:
        """Exit status after SIGTERM, and what else it wrote to standard error."""
        self._process.terminate()
        _, errors = self._process.communicate(timeout=60)
        return self._process.returncode, errors

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        given = {**self._own, **(headers or {})}
        return _answer(urllib.request.Request(f"{self.address}{path}", headers=given, method=method))

    def post(self, path: str, form: str, headers: Mapping[str, str] | None = None) -> Answer:
        """A form, with its fields encoded as in an address."""
        return self.send(path, form.encode(), headers or {}, "POST")

    def send(self, path: str, body: bytes, headers: Mapping[str, str], method: str) -> Answer:
        given = {**self._own, **headers}
        return _answer(urllib.request.Request(f"{self.address}{path}", body, given, method=method))


def _answer(request: urllib.request.Request) -> Answer:
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return Answer(answer.status, {key.lower(): value for key, value in answer.headers.items()}, answer.read())


if __name__ == "__main__":
    vars(sampler).update(SOON)
    history._PATIENCE_S = _PATIENCE_S
    console.SELDOM_S = _SELDOM_S
    main()
