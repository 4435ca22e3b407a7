"""`pykafka …` as a user runs it: a process of its own."""

from __future__ import annotations

import subprocess
import sys

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


def error_of(*arguments: str, stdin: bytes = b"", timeout: float = 60.0) -> str:
    """The error line of a run that must fail with status 1."""
    done = pykafka(*arguments, stdin=stdin, timeout=timeout)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.stderr.decode()
