"""The version stands in pyproject.toml alone; the changelog's sections follow it, and pages name no other one."""

from __future__ import annotations

import re
import tomllib

from packaging.version import Version

from broker.tools.run_broker import CONF
from tests.support.source_tree import ROOT, modules_under

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
SECTION = re.compile(r"^## (?:Unreleased \()?(\d+\.\d+\.\d+)\)?(?: \((\d{4}-\d\d-\d\d)\))?$", re.MULTILINE)


def test_the_changelog_begins_with_the_version_and_goes_down() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = [Version(found[1]) for found in SECTION.finditer(text)]
    assert len(sections) == len(re.findall(r"^## ", text, re.MULTILINE)), (
        "`## 1.2.3 (date)`, or `## Unreleased (1.2.3)`"
    )
    assert sections[0] == Version(VERSION)
    assert sections == sorted(sections, reverse=True)


def test_code_settings_and_security_name_no_version_of_their_own() -> None:
    """`pykafka --version` and the doctor read what is installed."""
    sources = [(module.name, module.text) for module in modules_under("broker", "spark_connector", "pykafka_ui")]
    assert [name for name, text in sources if re.search(r"^__version__|^VERSION = ['\"]\d", text, re.MULTILINE)] == []
    for path in (ROOT / "SECURITY.md", CONF / "server.properties"):
        assert not re.search(r"pykafka[\w-]* v?\d+\.\d+", path.read_text(encoding="utf-8")), path
