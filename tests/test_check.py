"""`make check` runs every tool, says which failed, and fails if one did."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT


@pytest.mark.parametrize(
    ("failing", "said"),
    [([], ""), (["ruff"], "failed: ruff check, ruff format"), (["python", "mypy"], "failed: tests, mypy")],
)
def test_all_tools_run_whichever_fails(tmp_path: Path, failing: list[str], said: str) -> None:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    for tool in ("ruff", "python", "mypy"):
        script = environment / "bin" / tool
        script.write_text(f'#!/bin/sh\necho "ran {tool} $1"\nexit {int(tool in failing)}\n')
        script.chmod(0o755)
    (environment / ".test-installed").touch()
    command = ["make", "--silent", "check", f"VENV={environment}"]
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["ran ruff check", "ran ruff format", "ran python -m", "ran mypy "], done.stdout + done.stderr
    assert (done.returncode != 0) == bool(failing)
    assert (done.stdout.splitlines()[-1] == said) if said else "failed" not in done.stdout
