"""Debian's Chromium, installed or fetched, driven by Playwright: a page that keeps what went wrong in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.debian_packages import unpacked_program

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
    binary, variables = _find()
    environment: dict[str, str | float | bool] = {**variables}
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=binary, args=_ARGUMENTS, env=environment, timeout=90_000)
        try:
            yield running
        finally:
            running.close()


HURRY = """for (const name of ["setTimeout", "setInterval"]) {
  const wait = window[name];
  window[name] = (run, ms, ...more) => wait(run, ms < 2000 ? ms : ms / 5, ...more);
}"""
"""A page that asks again every 5 s does so every second. htmx counts by setInterval."""


class Tab:
    """A page, and what it complained about: console errors, exceptions, requests to another host."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address.rstrip("/")
        self.complaints: list[str] = []
        self._given = page
        self._listeners: dict[str, Callable[[Any], None]] = {
            "console": lambda said: self.complaints.append(said.text) if said.type == "error" else None,
            "pageerror": lambda error: self.complaints.append(str(error)),
            "request": lambda request: self._note_host(request.url),
        }
        self._listen()

    def _listen(self) -> None:
        for event, listener in self._listeners.items():
            self.page.on(cast(Any, event), listener)

    def leave(self) -> None:
        """Give the page back for another tab, empty."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        if self.page is not self._given:
            self.page.close()
        self._given.goto("about:blank")

    def _note_host(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws") and not url.startswith(self.address):
            self.complaints.append(f"a request to {url}")

    def hurry(self) -> None:
        """Go on in a page of the same browser whose scripts ask again soon."""
        self.page = self.page.context.new_page()
        self.page.add_init_script(HURRY)
        self._listen()

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.address}{path}")
        return self.page


def _find() -> tuple[str, Mapping[str, str]]:
    installed = shutil.which("chromium")
    if installed:
        return installed, dict(os.environ)
    return unpacked_program("chromium", "usr/lib/chromium/chromium")
