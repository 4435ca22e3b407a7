"""docs/promises.md, the code that names its promises, and the tests that hold them say the same."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.source_tree import ROOT, modules_under

ROW = re.compile(r"^\| ([PASWL]\d+) \| .+ \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([^`]+)`")
NAMED = re.compile(r"\((?:promises? )?((?:[PASWL]\d+(?:, | and )?)+)[,)]|promises? ([PASWL]\d+)\b")

PROMISES = dict(ROW.findall((ROOT / "docs" / "promises.md").read_text(encoding="utf-8")))
PRODUCT = modules_under("broker", "spark_connector", "pykafka_ui", "pykafka_demo")


@cache
def cases_of(path: str) -> set[str]:
    """`test_x` and `TestX::test_x` of a test module."""
    found = set[str]()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = (one for one in members if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
        found |= {owner + one.name for one in functions if one.name.startswith("test_")}
    return found


def test_the_code_names_every_promise_and_no_other() -> None:
    named = {
        name
        for module in PRODUCT
        for found in NAMED.findall(module.text)
        for name in re.findall(r"[PASWL]\d+", "".join(found))
    }
    assert named == set(PROMISES)


@pytest.mark.parametrize("promise", PROMISES)
def test_a_test_holds_each_promise(promise: str) -> None:
    held_by = TEST.findall(PROMISES[promise])
    assert held_by
    for name in held_by:
        path, _, test = name.partition("::")
        assert test in cases_of(path), name
