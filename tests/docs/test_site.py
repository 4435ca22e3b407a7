"""The documentation site builds strictly, and what links cannot tell mkdocs is there, too."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from playwright.sync_api import expect

from tests.support.chromium import browser
from tests.support.requirements import Unavailable, give_up
from tests.support.snippets import pages
from tests.support.source_tree import ROOT

# --- Where the links and pictures of a built site lead, read from its files alone: nothing is asked for over a network.

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


# --- the tests

SITE = ROOT / "mkdocs.yml"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
REPOSITORY = re.search(r"^repo_url: (\S+)$", SITE.read_text(encoding="utf-8"), re.MULTILINE)
INTO_REPOSITORY = re.compile(r"https?://[^\s)\"]+?/(?:blob|tree|raw)/main/([^\s)#\"]+)")


def of_make() -> dict[str, str]:
    """The environment in which `make docs` builds."""
    (line,) = re.findall(
        r"^\t(.*)\$\(BIN\)/mkdocs build", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    return dict(word.split("=") for word in line.split())


def strict_build(target: Path, config: Path = SITE) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(target),
    ]
    environment = {**os.environ, **of_make()}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of a server of the files below `root`: from files a page keeps no choice of colours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuiltSite:
    """The site, built once, without a warning and without a trace beside the pages."""
    target = tmp_path_factory.mktemp("built") / "site"
    shutil.rmtree(ROOT / "docs" / "__pycache__", ignore_errors=True)
    done = strict_build(target)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "docs" / "__pycache__").exists()
    return BuiltSite(target)


def test_every_link_and_picture_of_the_built_site_leads_somewhere(site: BuiltSite) -> None:
    """mkdocs checks what Markdown says, and not what HTML in a page, the theme and style sheets say."""
    assert (site.root / "reference" / "options" / "index.html").is_file()
    assert {element for _, element, _ in site.links()} >= {"a", "img", "link", "script"}
    assert site.broken() == []


def test_the_home_page_asks_no_other_host(site: BuiltSite) -> None:
    """Nor do its scripts: the theme's would ask a code host for the repository's stars."""
    asked: list[str] = []
    try:
        with browser() as chromium, served(site.root) as address:
            page = chromium.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)
            page.wait_for_load_state("networkidle")
    except Unavailable as error:
        give_up(f"chromium: {error}")
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_a_page_loads_nothing_from_another_host(site: BuiltSite) -> None:
    elsewhere = {
        (element, address)
        for page, element, address in site.links()
        if element not in ("a", "link") and site.target(page, address) is None and not address.startswith("data:")
    }
    assert elsewhere == set()


def test_the_right_column_of_every_page_lists_its_parts(site: BuiltSite) -> None:
    """mkdocs itself lists headings; the parts of the pages of decisions are items of a list."""
    bare = []
    for path in set(site.pages) - {site.root / "404.html"}:
        _, _, column = path.read_text(encoding="utf-8").partition('<div class="md-sidebar md-sidebar--secondary"')
        if '<a href="#' not in column.partition("<article")[0]:
            bare.append(path.parent.name)
    assert bare == []
    records = (site.root / "decisions" / "records" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<li id="one-table-of-all-batch-headers">', records)


def test_names_of_options_are_not_broken_and_a_phone_shows_their_meaning(site: BuiltSite) -> None:
    broken = """names => names.flatMap(name => [...name.childNodes]).filter(part => {
        const range = document.createRange();
        range.selectNodeContents(part);
        return range.getClientRects().length > 1;  // a part of a name on two lines
    }).map(part => part.textContent)"""
    cut = """tables => tables.filter(one => one.scrollWidth > one.clientWidth + 1 ||
        one.getBoundingClientRect().right > innerWidth).map(one => one.textContent.slice(0, 200))"""
    try:
        with browser() as chromium, served(site.root) as address:
            page = chromium.new_page()
            for path in ("reference/options", "reference/broker-settings"):
                page.goto(f"{address}/{path}/")
                names = page.locator("article td:first-child code")
                assert names.count() > 50
                for width in (1280, 390):
                    page.set_viewport_size({"width": width, "height": 800})
                    assert names.evaluate_all(broken) == []
                    tables = page.locator("article table[data-names]")
                    assert tables.evaluate_all(cut) == []
    except Unavailable as error:
        give_up(f"chromium: {error}")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('<a href="none/">x</a>', "none/"),
        ('<a href="/none.html">x</a>', "/none.html"),
        ('<a href="#none">x</a>', "#none (no such anchor)"),
        ('<a href="other/#none">x</a>', "other/#none (no such anchor)"),
        ('<img src="none.png">', "none.png"),
        ('<picture><source srcset="there.png, none.png 2x"><img src="there.png"></picture>', "none.png"),
        ('<script src="none.js"></script>', "none.js"),
        ('<link rel="stylesheet" href="none.css">', "none.css"),
        ("<style>p { background: url('none.svg') }</style>", "none.svg"),
        ('<p style="background: url(none.svg)">x</p>', "none.svg"),
    ],
)
def test_what_leads_nowhere_is_found(tmp_path: Path, fault: str, said: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("<p id=there>x</p>", encoding="utf-8")
    (tmp_path / "there.png").touch()
    good = '<a href="other/#there">x</a><a href="https://else.where/none">x</a><img src="there.png#only-light">'
    (tmp_path / "index.html").write_text(good, encoding="utf-8")
    assert BuiltSite(tmp_path).broken() == []
    (tmp_path / "index.html").write_text(good + fault, encoding="utf-8")
    assert BuiltSite(tmp_path).broken() == [f"index.html: {said}"]


def test_the_first_page_begins_with_an_installation_five_lines_and_the_four_tasks() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert fences[0][1].startswith("pip install ")
    (code,) = [one for language, one in fences if language == "python"]
    assert len([line for line in code.splitlines() if line]) <= 5
    cards = re.findall(r"^-   \*\*\[(\w+)\]\((\S+)\)\*\*$", text, re.MULTILINE)
    assert cards == [(task.capitalize(), f"tutorials/{task}.md") for task in ("read", "stream", "write", "load")]


def test_the_first_page_and_that_of_decisions_link_every_page() -> None:
    docs = ROOT / "docs"
    text = "".join((docs / name).read_text(encoding="utf-8") for name in ("index.md", "decisions.md"))
    linked = re.findall(r"\]\(([^)#]+\.md)", text)
    listed = re.findall(r"^\s+- (?:[\w ]+: )?(\S+\.md)$", SITE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {"index.md", *linked} == set(listed) | {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


def test_the_switch_changes_the_colours_of_pictures_too(site: BuiltSite) -> None:
    """As many colours as it has positions, and next to each other the pages of a walk."""
    try:
        with browser() as chromium, served(site.root) as address:
            page = chromium.new_context(color_scheme="light").new_page()
            page.goto(f"{address}/walks/micro-batch/")
            light, dark = (page.locator(f'article img[src$="#only-{scheme}"]') for scheme in ("light", "dark"))
            expect(light).to_be_visible()
            expect(dark).to_be_hidden()
            assert light.evaluate("picture => picture.naturalWidth") > 0
            for _ in range(2):  # as the system, light, dark
                page.locator("label[for^=__palette]:visible").click()
            expect(dark).to_be_visible()
            expect(light).to_be_hidden()
            page.get_by_role("link", name="Next: ").click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("exactly-once load")
            expect(page.locator('article img[src$="#only-dark"]')).to_be_visible()
    except Unavailable as error:
        give_up(f"chromium: {error}")


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """By the rules of our mkdocs.yml."""
    picture = (
        '<picture>\n<source media="(prefers-color-scheme: dark)" srcset="missing-dark.svg">\n'
        '<img alt="a" src="missing-light.svg">\n</picture>'
    )
    faults = ["[a](missing.md)", "[a](#missing)", "![a](missing.svg)", "[a][broker.missing]", picture]
    config = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    rules = {name: config[name] for name in ("strict", "validation", "theme", "plugins")}
    rules["theme"]["custom_dir"] = str(ROOT / rules["theme"]["custom_dir"])
    rules["hooks"] = [str(ROOT / hook) for hook in config["hooks"]]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("\n\n".join(["# Page", *faults]), encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({"site_name": "faulty", **rules}), encoding="utf-8")
    done = strict_build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert [fault for fault in faults if re.findall(r"missing[.\w]*", fault)[0] not in done.stderr] == []
    assert done.stderr.count("WARNING") == len(faults) + 1, f"a picture is two files\n{done.stderr}"


def test_links_into_the_repository_lead_somewhere() -> None:
    """Those of pages are relative where they leave docs/, those of README.md and its like absolute."""
    assert REPOSITORY
    missing = []
    for page in [*pages(), *TOP[1:]]:
        text = page.read_text(encoding="utf-8")
        for path in INTO_REPOSITORY.findall(text):
            missing += [] if (ROOT / path).exists() else [(page.name, path)]
        for path in re.findall(r"\]\(((?!https?:|#)[^)\s#]+)|(?:src|srcset)=\"((?!https?:)[^\"]+)\"", text):
            missing += [] if (page.parent / "".join(path)).exists() else [(page.name, path)]
    assert missing == []


@pytest.mark.parametrize("page", TOP, ids=[page.name for page in TOP])
def test_anchors_of_links_into_the_repository_exist(page: Path) -> None:
    for path, anchor in re.findall(r"/blob/main/([^\s)#]+\.md)#([^\s)]+)", page.read_text(encoding="utf-8")):
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_repository_has_one_address() -> None:
    assert REPOSITORY
    assert REPOSITORY[1] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for page in TOP:
        for address in re.findall(r"(https?://[^\s)\"]+?)/(?:blob|tree|raw)/main/", page.read_text(encoding="utf-8")):
            assert address == REPOSITORY[1]


def test_make_targets_that_pages_name_exist() -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [*pages(), *TOP]:
        assert set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) <= rules


def test_lists_are_lists_in_the_site_too() -> None:
    """Python-Markdown wants an empty line before a list; a code host does not."""
    glued = re.compile(r"^(?![-*|#>\s]|\d+\.)[^\n]+\n(?:- |\d+\. )", re.MULTILINE)
    for page in pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        assert [match[0] for match in glued.finditer(text)] == [], page.name
