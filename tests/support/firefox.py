"""Debian's Firefox, driven by Puppeteer (WebDriver BiDi): Playwright needs a Firefox of its own, which is not packaged.

One `node` runs tests/ui/firefox_driver.mjs. Fetching needs `node` and `npm` on the PATH.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from types import TracebackType
from typing import Any, Self

from tests.support.debian_packages import unpacked_program
from tests.support.npm_package import node_modules, program
from tests.support.source_tree import ROOT

VERSION = "24.43.1"
DRIVER = ROOT / "tests" / "ui" / "firefox_driver.mjs"


class Firefox:
    """A tab of a headless Firefox. Every step waits up to 20 s for what it needs. Raises Unavailable."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        installed = shutil.which("firefox-esr")
        binary, environment = (
            (installed, None) if installed else unpacked_program("firefox-esr", "usr/lib/firefox-esr/firefox-esr")
        )
        puppeteer = node_modules("puppeteer-core", VERSION) / "puppeteer-core"
        self._node = subprocess.Popen(
            [program("node"), str(DRIVER), str(puppeteer), str(binary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.close()
        self._node.wait(60)
        self._node.stdout.close()

    def open(self, path: str) -> None:
        self._do("open", f"{self._address}{path}")

    def click(self, selector: str, text: str = "") -> None:
        """The first element of a CSS selector that has the text."""
        self._do("click", selector, text)

    def type(self, selector: str, text: str) -> None:
        """Key by key."""
        self._do("type", selector, text)

    def see(self, selector: str, text: str) -> None:
        """Wait until an element has the text."""
        self._do("see", selector, text)

    def count(self, selector: str, count: int) -> None:
        """Wait until so many elements are there."""
        self._do("count", selector, count)

    def complaints(self) -> list[str]:
        """Console errors, exceptions, and requests to another host."""
        found: list[str] = self._do("complaints", self._address)
        return found

    def _do(self, step: str, *arguments: Any) -> Any:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps([step, *arguments]) + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        assert line, f"node ended with {self._node.wait(10)} on {step}"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"{step} {arguments}: {answer['error']}")
        return answer.get("result")
