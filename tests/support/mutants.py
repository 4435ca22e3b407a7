"""Mutation testing of the pure modules: mutmut changes the code, and the tests must notice.

`python -m tests.support.mutants [--sample N] [--seed S] [pattern …]` (`make mutants`) prints each change that no test
noticed, then a line per module. Ends with status 1 below 92 % killed. Modules and tests are named in [tool.mutmut] of
pyproject.toml. All 3,000 changes take about an hour on two cores, a sample of 200 takes five minutes.

A mutant is killed when a test fails, or when its tests time out twice, the second time alone. Any other end, such as an
error while tests are collected, does not count as killed.
Changes to prose (a string with a space in it) are not in the count: tests hold the words that matter, not all of them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import json
import random
import re
import subprocess
import sys
import textwrap
from collections import defaultdict

from hypothesis import Phase, settings

from tests.support.source_tree import ROOT

__all__: list[str] = []

WANTED = 0.92
FAILED, NO_TESTS = 1, 33
TIMED_OUT = (-24, 24, 36, 152, 255)
"""What mutmut gives a mutant whose tests did not end: SIGXCPU and its own codes."""
END: dict[int | None, str] = {0: "", NO_TESTS: " (no test runs it)"}
MUTMUT = [sys.executable, "-m", "mutmut"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing of the pure modules.")
    parser.add_argument("patterns", nargs="*", help="only mutants whose names match, as in '*assignment*'")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    names = [name for name in generated() if matches(name, arguments.patterns)]
    if arguments.sample is not None:
        names = sorted(random.Random(arguments.seed).sample(names, min(arguments.sample, len(names))))
    results = run(names)
    endless = [name for name, code in results.items() if code in TIMED_OUT]
    if endless:
        results |= run(endless, "--max-children", "1")
    sys.exit(report(results))


def pytest_configure() -> None:
    """mutmut loads this module as a plugin of pytest. A run can be repeated, and a failed test ends at once: Hypothesis
    always takes the same examples and does not search for a shorter one."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", phases=phases, derandomize=True, database=None)
    settings.load_profile("mutants")


def run(names: list[str], *options: str) -> dict[str, int | None]:
    """Run the tests of these mutants; their exit codes."""
    subprocess.run([*MUTMUT, "run", *options, *names], cwd=ROOT, check=True)
    results = exit_codes()
    return {name: results[name] for name in names}


def matches(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def generated() -> list[str]:
    """The names of all mutants. Asked for a name that does not exist, mutmut makes them all before it gives up."""
    subprocess.run(
        [*MUTMUT, "run", "none"], cwd=ROOT, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return sorted(name for name in exit_codes() if not changes_prose(name))


def exit_codes() -> dict[str, int | None]:
    """By mutant: what pytest ended with (0: no test noticed), 33 without a test, None before its run."""
    codes: dict[str, int | None] = {}
    for path in sorted((ROOT / "mutants").rglob("*.meta")):
        codes.update(json.loads(path.read_text())["exit_code_by_key"])
    return codes


_BODIES: dict[str, dict[str, str]] = {}


def body_of(name: str, *, original: bool = False) -> str:
    """The source of a mutant's function, or of the original."""
    module, _, function = name.rpartition(".")
    if module not in _BODIES:
        _BODIES[module] = bodies((ROOT / "mutants" / (module.replace(".", "/") + ".py")).read_text())
    if original:
        function = re.sub(r"__mutmut_\d+$", "__mutmut_orig", function)
    return _BODIES[module].get(function, "").replace(function, "f")


def bodies(source: str) -> dict[str, str]:
    """Function name → its source."""
    lines = source.splitlines()
    return {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def changes_prose(name: str) -> bool:
    """Whether only the text of a message changed."""
    return without_prose(body_of(name, original=True)) == without_prose(body_of(name))


def without_prose(source: str) -> str:
    """A function's syntax tree as text, with each string that has a space in it empty."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [part for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if any(" " in str(text.value) for text in texts):
            for text in texts:
                text.value = ""
    return ast.dump(tree)


def report(results: dict[str, int | None]) -> int:
    modules: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    alive = [name for name, code in results.items() if code != FAILED and code not in TIMED_OUT]
    for name in results:
        counts = modules[re.split(r"\.x[_ǁ]", name)[0]]
        counts[0] += name not in alive
        counts[1] += 1
    for name in alive:
        lines = difflib.unified_diff(
            body_of(name, original=True).splitlines(), body_of(name).splitlines(), n=0, lineterm=""
        )
        print(f"\n{name}{END.get(results[name], f' (pytest ended with {results[name]})')}")
        print("\n".join(line for line in lines if not line.startswith(("---", "+++", "@@"))))
    print()
    for module, (killed, made) in sorted(modules.items()):
        print(f"{killed:5} of {made:5} killed  {killed / made:6.1%}  {module}")
    for name in (name for name, code in results.items() if code in TIMED_OUT):
        print(f"timed out twice: {name}")
    killed = len(results) - len(alive)
    print(f"{killed:5} of {len(results):5} killed  {killed / len(results):6.1%}")
    return 0 if killed >= WANTED * len(results) else 1


if __name__ == "__main__":
    main()
