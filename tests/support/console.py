"""`pykafka …` as a user runs it: a process of its own, or its error alone."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Sequence

import pytest

from broker.tools.main import main
from tests.support.source_tree import ROOT


def command(*arguments: str) -> list[str]:
    """The command line of `pykafka arguments…` with this interpreter."""
    return [sys.executable, "-m", "broker.tools.main", *arguments]


def pykafka(*arguments: str, stdin: bytes = b"", timeout: float = 60.0) -> subprocess.CompletedProcess[bytes]:
    """Run to the end; the caller looks at `returncode`, `stdout` and `stderr`."""
    return subprocess.run(command(*arguments), cwd=ROOT, input=stdin, capture_output=True, timeout=timeout, check=False)


def output_of(*arguments: str, stdin: bytes = b"", timeout: float = 60.0) -> str:
    """Standard output of a run that must succeed."""
    done = pykafka(*arguments, stdin=stdin, timeout=timeout)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def answer_of(*arguments: str, stdin: bytes = b"") -> str:
    """The same in this process, which is quicker where cases are many."""
    status, said, errors = _run_here(arguments, stdin)
    assert not status, errors
    return said


def error_of(*arguments: str, stdin: bytes = b"", status: int = 1) -> str:
    """The error text of a run in this process that must fail; with status 2 for wrong usage."""
    ended, _, errors = _run_here(arguments, stdin)
    assert ended == status, (ended, errors)
    return errors


def verdict_of(*arguments: str, status: int = 1) -> str:
    """Standard output of a run in this process that ends with `status`, for what it has found."""
    ended, said, errors = _run_here(arguments, b"")
    assert ended == status, (ended, errors)
    return said


def _run_here(arguments: Sequence[str], stdin: bytes) -> tuple[object, str, str]:
    said, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    given, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            main(arguments)
    finally:
        sys.stdin = given
    said.seek(0)
    return ended.value.code, said.read(), errors.getvalue()
