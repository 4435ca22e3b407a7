"""The walks through the code lead to files and functions that exist, and their pictures are what draws them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from spark_connector.loads.request import FORMATS
from tests.support.source_tree import ROOT

WALKS = [*sorted((ROOT / "docs" / "walks").glob("*.md")), ROOT / "docs" / "architecture.md"]
STOP = re.compile(r"\[`([\w.]+)`\]\(([^)]+\.py)\)")


@cache
def defined(file: Path) -> set[str]:
    """Names that a module defines: functions, classes, `Class.method`, and what is assigned."""
    names = set[str]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (one for one in ast.walk(node) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{one.name}" for one in inner}
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("walk", WALKS, ids=[walk.stem for walk in WALKS])
def test_every_stop_exists(walk: Path) -> None:
    stops = STOP.findall(walk.read_text(encoding="utf-8"))
    assert len(stops) >= (8 if walk.stem == "architecture" else 12)
    missing = []
    for name, link in stops:
        file = (walk.parent / link).resolve()
        if not file.is_file() or name not in defined(file):
            missing.append(f"{name} in {link}")
    assert missing == []


@pytest.fixture
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "images" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    return draw


def test_pictures_are_as_they_are_drawn(draw: ModuleType) -> None:
    for name, svg in draw.pictures().items():
        drawn = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert drawn == svg, "run `python docs/images/draw.py`"


def test_the_pictures_of_the_console_show_each_of_its_tabs(
    draw: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert draw.missing_tabs() == [], "run `make pictures`"
    template = draw._NAVIGATION.read_text(encoding="utf-8").replace('("/groups"', '("/queues", "Queues"), ("/groups"')
    monkeypatch.setattr(draw, "_NAVIGATION", tmp_path / "base.html")
    draw._NAVIGATION.write_text(template, encoding="utf-8")
    assert draw.missing_tabs() == ["Queues"]


def test_the_console_s_page_shows_each_picture_that_was_taken_in_both_looks(draw: ModuleType) -> None:
    page = draw._PAGE.read_text(encoding="utf-8")
    assert draw.with_gallery(page) == page, "run `make pictures`"
    taken = json.loads(draw.TAKEN.read_text(encoding="utf-8"))["pictures"]
    wanted = {f"ui-{name}-{scheme}.png" for name in taken for scheme in draw.LOOKS}
    assert {file.name for file in draw.HERE.glob("ui-*.png")} == wanted
    assert {name for name in wanted if f"../images/{name}" not in page} == set()


def test_the_overview_shows_every_format_of_loads(draw: ModuleType) -> None:
    drawn = [format for _, _, formats in draw.DESTINATIONS for format in formats]
    assert sorted(drawn) == sorted(FORMATS)
    assert all(f">{name}</text>" in draw.pictures()["overview-light.svg"] for name, _, _ in draw.DESTINATIONS)
