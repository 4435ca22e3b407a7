"""Where the links and pictures of a built site lead, read from its files alone: nothing is asked for over a network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ADDRESSES = {
    "a": "href",
    "link": "href",
    "img": "src",
    "script": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""Element → the attribute that names another file."""
_LISTS = ("srcset", "imagesrcset")
"""Attributes that name several."""
_OF_CSS = re.compile(r"""url\(\s*["']?([^"')]+)["']?\s*\)|@import\s+["']([^"']+)["']""")


@dataclasses.dataclass
class _Page(HTMLParser):
    """What a page names: its anchors, and (element, address) of each link and picture."""

    anchors: set[str] = dataclasses.field(default_factory=set)
    addresses: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self._in_style = tag == "style"
        if tag in _ADDRESSES and _ADDRESSES[tag] in given:
            self.addresses.append((tag, given[_ADDRESSES[tag]]))
        for name in _LISTS:
            self.addresses += [(tag, one.split()[0]) for one in given.get(name, "").split(",") if one.strip()]
        self.addresses += [("style", one) for one in _addresses_of_css(given.get("style", ""))]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += [("style", one) for one in _addresses_of_css(data)]


class BuiltSite:
    """The files below `root`, as a web server would serve them from `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def pages(self) -> dict[Path, _Page]:
        found = {}
        for path in sorted(self.root.rglob("*.html")):
            found[path] = page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
        return found

    def links(self) -> Iterator[tuple[Path, str, str]]:
        """(File, element, address) of all pages and style sheets; an element is `style` in CSS."""
        for path, page in self.pages.items():
            for element, address in page.addresses:
                yield path, element, address
        for path in sorted(self.root.rglob("*.css")):
            for address in _addresses_of_css(path.read_text(encoding="utf-8")):
                yield path, "style", address

    def target(self, source: Path, address: str) -> Path | None:
        """The file that an address of `source` leads to, also where there is none; None for one of another host."""
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            return None
        path = unquote(parts.path)
        found = self.root / path.lstrip("/") if path.startswith("/") else source.parent / path if path else source
        return (found / "index.html" if found.is_dir() else found).resolve()

    def broken(self) -> list[str]:
        """Each link that leads to no file or no anchor, as `page: address`."""
        pages, wrong = {path.resolve(): page for path, page in self.pages.items()}, set()
        for source, element, address in self.links():
            target = self.target(source, address)
            anchor = unquote(urlsplit(address).fragment)
            if target is None:
                continue
            if not target.is_file():
                wrong.add(f"{source.relative_to(self.root)}: {address}")
            elif element == "a" and anchor and anchor not in pages[target].anchors:
                wrong.add(f"{source.relative_to(self.root)}: {address} (no such anchor)")
        return sorted(wrong)


def _addresses_of_css(text: str) -> Iterator[str]:
    for match in _OF_CSS.finditer(text):
        address = match[1] or match[2]
        if not address.startswith(("data:", "#")):
            yield address
