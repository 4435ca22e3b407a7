"""What `make mutants` is told to change and to run is there."""

from __future__ import annotations

import tomllib

from tests.support.source_tree import ROOT


def test_the_modules_and_tests_of_the_mutants_exist() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    named = settings["only_mutate"] + settings["pytest_add_cli_args_test_selection"] + settings["also_copy"]
    assert [name for name in named if not (ROOT / name).exists()] == []
