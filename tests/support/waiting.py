"""Waiting for a condition instead of for time."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""How long to wait for what must come: much longer than it takes on a busy machine."""
_SELDOM_S = 0.1
"""The longest pause between two looks of who waits long: who looks all the time holds up what it waits for."""


def eventually(condition: Callable[[], bool], timeout: float = PATIENCE_S, interval: float = 0.02) -> None:
    """Return once `condition()` is true; after `timeout` seconds fail with AssertionError, which says what was expected
    and what the names in it stand for."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"did not come true within {timeout} s: {_expected(condition)}")
        time.sleep(max(interval, min(waited / 50, _SELDOM_S)))


def _expected(condition: Callable[[], bool]) -> str:
    """The condition's source, and what its comparison saw when it was looked at once more."""
    try:
        source = textwrap.dedent(inspect.getsource(condition)).strip()
    except (OSError, TypeError):  # a partial, or a builtin
        return repr(condition)
    held = inspect.getclosurevars(condition).nonlocals if inspect.isfunction(condition) else {}
    lines = [source, *(f"  where {name} = {value!r:.500}" for name, value in held.items() if not callable(value))]
    for compared in _sides(source):
        try:
            seen = eval(compared, condition.__globals__, dict(held)) if inspect.isfunction(condition) else "?"
        except Exception as error:  # what was to be waited for may end in an error, too
            seen = error
        lines.append(f"  seen {compared} = {seen!r:.500}")
    return "\n".join(lines)


def _sides(source: str) -> list[str]:
    """The parts of each comparison of a lambda that are not constants."""
    match = re.search(r"lambda\s*:", source)
    text = source[match.end() :].strip() if match else ""
    for end in range(len(text), 0, -1):  # the lambda is an argument of a call, whose rest follows it
        with contextlib.suppress(SyntaxError, ValueError):
            tree = ast.parse(f"({text[:end]})", mode="eval").body
            tree = tree.elts[0] if isinstance(tree, ast.Tuple) else tree
            comparisons = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
            sides = [side for node in comparisons for side in (node.left, *node.comparators)]
            return [ast.unparse(side) for side in sides if not isinstance(side, ast.Constant)]
    return []
