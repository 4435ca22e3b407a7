"""The documentation site builds strictly, and what links cannot tell mkdocs is there, too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.snippets import pages
from tests.support.source_tree import ROOT

SITE = ROOT / "mkdocs.yml"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
REPOSITORY = re.search(r"^repo_url: (\S+)$", SITE.read_text(encoding="utf-8"), re.MULTILINE)
INTO_REPOSITORY = re.compile(r"https?://[^\s)\"]+?/(?:blob|tree|raw)/main/([^\s)#\"]+)")


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
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = strict_build(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "reference" / "options" / "index.html").is_file()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """By the rules of our mkdocs.yml."""
    faults = ["[a](missing.md)", "[a](#missing)", "![a](missing.svg)", "[a][broker.missing]"]
    config = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    rules = {name: config[name] for name in ("strict", "validation", "theme", "plugins")}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("\n\n".join(["# Page", *faults]), encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({"site_name": "faulty", **rules}), encoding="utf-8")
    done = strict_build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert [fault for fault in faults if re.findall(r"missing[.\w]*", fault)[0] not in done.stderr] == []
    assert done.stderr.count("WARNING") == len(faults), done.stderr


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
