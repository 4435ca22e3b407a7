"""The project's own source as data: which modules there are and what each one imports.

Called by test_layers.py and test_declared_packages.py. Works on text by `ast`: no module of the project is imported.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, at one line."""

    module: str
    line: int
    in_function: bool
    type_checking: bool


@dataclass(frozen=True)
class Module:
    """One Python file of the tree."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        gc.disable()
        try:
            return ast.parse(self.text, filename=str(self.path))
        finally:
            gc.freeze()  # trees stay: to look through all of them again and again takes as long as to parse them
            gc.enable()

    @property
    def relative(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def line_count(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def imports(self) -> list[Import]:
        return list(_walk_imports(self.tree, in_function=False, type_checking=False))


def modules_under(*tops: str) -> list[Module]:
    """Every module of these packages (or single top-level modules), by path relative to the repository."""
    found: list[Module] = []
    for top in tops:
        path = ROOT / top
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        found.extend(map(_module, files))
    return found


@cache  # each is parsed once for all tests of a process
def _module(file: Path) -> Module:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return Module(".".join(parts), file)


def _walk_imports(node: ast.AST, *, in_function: bool, type_checking: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, in_function, type_checking)
        elif isinstance(child, ast.ImportFrom):
            # `from a.b import c` may mean the module a.b.c or the name c of a.b: both are reported, the
            # caller knows which modules exist.
            for alias in child.names:
                yield Import(f"{child.module}.{alias.name}", child.lineno, in_function, type_checking)
        elif not isinstance(child, ast.expr):  # which holds no statement, and is most of a tree
            yield from _walk_imports(
                child,
                in_function=in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef),
                type_checking=type_checking or _is_type_checking(child),
            )


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan), and nodes that point at themselves."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1 or node in graph.get(node, ()):
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
