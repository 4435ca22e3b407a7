"""CONTRIBUTING.md names files, classes, functions and tests that exist, and each recipe ends with a line of pytest."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.support.source_tree import ROOT, modules_under

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TEXT = re.sub(r"\s+", " ", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
RECIPES = re.split(r"\n\n(?=\*\*a)", PAGE.partition("## How to add")[2].partition("\n## ")[0])[1:]
RUNS = re.findall(r"`pytest ([^`]+)`", TEXT)
QUOTED = [name for name in re.findall(r"`([^`]+)`", TEXT) if not re.search(r"[<…* ]", name.removesuffix("(…)"))]
PATHS = sorted({name for name in QUOTED if re.fullmatch(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(py|md|yml|toml|h)", name)})
NAMES = sorted({name for name in QUOTED if re.fullmatch(r"@?[A-Za-z_][\w.]*(\(.*\))?", name)} - set(PATHS))
OTHERS = {"bash", "minPartitions", "nav", "varies"}
"""Words of fences, mkdocs, notebooks and Spark."""
PLACED = re.findall(r"((?:`\w+`(?:, | and | or )?)+) ?(?:\(|in |of )`([\w./-]+\.py)`", TEXT)
"""(`NAME` and `OTHER`, file): where the page says that these names are in that file."""


@cache
def files() -> list[str]:
    """All files of the repository, with a slash in front."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [f"/{path}" for path in listed.stdout.splitlines()]


def names_of(tree: ast.Module) -> set[str]:
    """Its classes, functions, arguments, fields and variables."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@cache
def names_by_file() -> dict[str, set[str]]:
    modules = modules_under("broker", "spark_connector", "pykafka_ui", "pykafka_demo", "tests")
    return {f"/{module.path.relative_to(ROOT).as_posix()}": names_of(module.tree) for module in modules}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_named_exists(path: str) -> None:
    named = path.rstrip("/")
    assert any(file.endswith(f"/{named}") or f"/{named}/" in file for file in files()), f"no file or folder {path}"


def test_a_name_is_one_of_the_code() -> None:
    known = set[str]().union(*names_by_file().values(), OTHERS)
    bare = {name: name.lstrip("@").partition("(")[0].rpartition(".")[2] for name in NAMES}
    assert len(bare) > 30
    assert [name for name, last in bare.items() if last not in known] == [], "gone, or renamed: correct the page"


def test_a_name_is_in_the_file_that_the_page_says() -> None:
    assert len(PLACED) > 15
    wrong = [
        f"{name} is not in {path}"
        for names, path in PLACED
        for name in re.findall(r"`(\w+)`", names)
        if not any(name in found for file, found in names_by_file().items() if file.endswith(f"/{path}"))
    ]
    assert wrong == []


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.partition("**:")[0].strip("* ") for recipe in RECIPES])
def test_a_recipe_ends_with_its_line_of_pytest(recipe: str) -> None:
    assert re.search(r"`pytest [^`]+`$", recipe.strip()), f"what is to be run at the end?\n{recipe[-200:]}"


def test_each_line_of_pytest_collects_something() -> None:
    """All at once: an argument that is no file, folder or test ends pytest with an error."""
    arguments = sorted({argument for run in RUNS for argument in run.split()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it hides Hypothesis
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    collected = re.findall(r"^(tests/\S+\.py): [1-9]", done.stdout, re.MULTILINE)
    assert [one for one in arguments if not any(file == one or file.startswith(f"{one}/") for file in collected)] == []
