"""Debian's Chromium, installed or fetched, driven by Playwright: a page that keeps what went wrong in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.debian_packages import unpack
from tests.support.requirements import Unavailable, cache_directory

__all__ = ["Tab", "browser"]

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium. Raises Unavailable when it cannot be had."""
    binary, environment = _find()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=binary, args=_ARGUMENTS, env=environment)
        try:
            yield running
        finally:
            running.close()


class Tab:
    """A page, and what it complained about: console errors, exceptions, requests to another host."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address.rstrip("/")
        self.complaints: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._note_host(request.url))

    def _note_host(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws") and not url.startswith(self.address):
            self.complaints.append(f"a request to {url}")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.address}{path}")
        return self.page


def _find() -> tuple[str, dict[str, str | float | bool]]:
    installed = shutil.which("chromium")
    if installed:
        return installed, dict(os.environ)
    root = cache_directory() / "chromium"
    if not root.is_dir():
        unpack(["chromium"], root, with_dependencies=True)
    libraries = sorted({str(file.parent) for file in root.glob("usr/lib/**/*.so*")} | {str(root / "usr/lib/chromium")})
    binary = root / "usr/lib/chromium/chromium"
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise Unavailable(f"chromium was fetched but does not run here: {done.stderr.strip()[-500:]}")
    return str(Path(binary)), dict(environment)
