"""The integration tests that public clients have for themselves: those that are documented fail, and no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.requirements import Unavailable, cache_directory, give_up
from tests.support.source_tree import ROOT

# --- Public clients' own tests: fetched with their source distribution, run in a pytest of their own, read back.
# Called by tests/compat/test_public_suites.py. Nothing of theirs is kept in this tree; the distribution is unpacked
# in the user's cache, and its version is pinned.

DOCUMENT = ROOT / "docs" / "compatibility.md"
FETCH_TIMEOUT_S = 300


@dataclass(frozen=True)
class Outcome:
    """The tests of one run by their names, as pytest shows them without the folder."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]
    output: str


def unpacked(package: str, version: str) -> Path:
    """The source distribution of that version. Raises Unavailable with the reason. Safe for several runs at once."""
    target = cache_directory() / f"{package}-{version}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            _download(package, version, Path(scratch))
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            try:
                (Path(scratch) / archive.name.removesuffix(".tar.gz")).rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def _download(package: str, version: str, directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
    try:
        done = subprocess.run(
            [*command, "--dest", str(directory), f"{package}=={version}"],
            capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}:\n{done.stderr[-2000:]}")


def run(source: Path, tests: str, adapter: str, scratch: Path, environment: Mapping[str, str]) -> Outcome:
    """Their pytest over `tests` within `source`, with our plugin `adapter`, none of their settings and none of ours."""
    report = scratch / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(source), "-p", adapter]
    done = subprocess.run(
        [
            *command,
            "-q",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "--timeout=120",
            f"--junitxml={report}",
            tests,
        ],
        cwd=source,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout[-8000:]
    outcomes: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        verdicts = {child.tag for child in case} & {"failure", "error", "skipped"}
        kind = "failed" if verdicts & {"failure", "error"} else "skipped" if verdicts else "passed"
        outcomes[kind].add(f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}")
    return Outcome(**{kind: frozenset(names) for kind, names in outcomes.items()}, output=done.stdout)


def documented(table: str) -> frozenset[str]:
    """The tests that docs/compatibility.md lists, in backticks in the first column of that table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"<!-- tests: {table} -->\n")
    assert found, f"docs/compatibility.md has no table {table}"
    return frozenset(re.findall(r"^\| `([^`]+)` \|", rest.partition("<!-- end of tests -->")[0], re.MULTILINE))


# --- the tests

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_kafka_pythons_own_tests(tmp_path: Path) -> None:
    try:
        source = unpacked("kafka-python", "3.0.12")
    except Unavailable as error:
        give_up(f"kafka-python's tests: {error}")
    # The version says which of their tests apply; their clients infer it from the APIs we serve.
    outcome = run(
        source, "test/integration", "tests.compat.public.kafka_python_adapter", tmp_path, {"KAFKA_VERSION": "4.3"}
    )
    raced = documented("kafka-python, a race of its own")
    assert outcome.failed - raced == documented("kafka-python, not applicable"), outcome.output[-8000:]
    assert raced <= outcome.passed | outcome.failed, "the document names a test that there is none of"
    assert len(outcome.passed | raced) == 65
    assert len(outcome.skipped) == 1
