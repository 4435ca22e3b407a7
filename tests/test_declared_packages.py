"""A package that the code or a test imports is one that pyproject.toml names, or that one of those brings.

One that only happens to be on a developer's machine is missing on the next.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.source_tree import ROOT, Module, modules_under

OURS = {"broker", "spark_connector", "pykafka_demo", "pykafka_ui", "pyspark_pykafka", "tests", "bench"}
ELSEWHERE = {
    "auditwheel",  # `make dist` installs these three
    "build",
    "twine",
    "gssapi",  # the extra [kerberos], which has no wheel for Linux: tests/support/kerberos.py builds it
    *("bytewax", "celery", "faststream", "faust", "quixstreams"),  # in environments of their own
    "test",  # kafka-python's own tests, which `compat/public` runs
}


def declared(extra: str = "test") -> set[str]:
    """The distributions that an installation with that extra brings, and what they need in turn; `make test` installs
    those of `test`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {"pykafka-spark": project["dependencies"]}
    extras = project["optional-dependencies"]
    waiting = [Requirement(f"pykafka-spark[{extra}]")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            if name in own:
                texts = extras[extra] if extra else own[name]
            else:
                texts = _requires(name)
            needed = map(Requirement, texts)
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # for another system or Python


def third_party(module: Module) -> set[str]:
    """The top-level modules that this one imports, also by `pytest.importorskip`."""
    skips = {
        call.args[0].value
        for call in (ast.walk(module.tree) if "importorskip" in module.text else ())
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "importorskip"
        and isinstance(call.args[0], ast.Constant)
    }
    names = {str(name).partition(".")[0] for name in {one.module for one in module.imports} | skips}
    return names - OURS - ELSEWHERE - set(sys.stdlib_module_names)


def test_every_package_that_is_imported_is_declared() -> None:
    have, where = declared(), packages_distributions()
    assert "pytest" in have
    unknown = {
        f"{module.relative}: {name}"
        for module in modules_under(*sorted(OURS - {"pyspark_pykafka"}), "pyspark_pykafka.py")
        for name in third_party(module)
        if not have & {canonicalize_name(one) for one in where.get(name, [])}
    }
    assert not unknown


@pytest.mark.parametrize(("extra", "module"), [("ui", "pykafka_ui.serve"), ("demo", "pykafka_demo.command")])
def test_what_an_extra_is_for_starts_with_what_it_brings(extra: str, module: str) -> None:
    brought = declared(extra) | {"pykafka-spark"}
    missing = [
        name for name, its in packages_distributions().items() if brought.isdisjoint(map(canonicalize_name, its))
    ]
    hide = "import sys; names, module = sys.argv[1].split(','), sys.argv[2]; sys.modules.update(dict.fromkeys(names))"
    command = [sys.executable, "-c", f"{hide}; __import__(module)", ",".join(missing), module]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
