"""`pykafka pack`. That executors work with what it makes: tests/spark_connector/test_shipped_environment.py."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.tools.console import build
from spark_connector.cli import pack_command
from tests.support.source_tree import ROOT

INTERPRETER = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of one file; a whole one takes many seconds."""

    def files(extras: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
        yield "pyspark_pykafka.py", ROOT / "pyspark_pykafka.py"

    monkeypatch.setattr(pack_command, "_files", files)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(build(["pack"]), ["pack", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("little")
def test_it_prints_what_to_set(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    said = run("--output", str(archive))
    assert f"export PYSPARK_PYTHON={INTERPRETER}; unset PYSPARK_DRIVER_PYTHON\n" in said
    assert f"--conf spark.archives={archive}#pykafka\n--conf spark.executorEnv.PYTHONPATH=pykafka\n" in said
    with tarfile.open(archive) as made:
        assert made.getnames() == ["pyspark_pykafka.py"]
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.usefixtures("little")
def test_a_name_says_for_which_machine_and_json_has_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = json.loads(run("--json"))
    assert said["archive"].startswith(f"pykafka-{INTERPRETER}-linux-")
    assert said["settings"]["spark.archives"] == f"{tmp_path / said['archive']}#pykafka"


@pytest.mark.usefixtures("little")
def test_a_driver_whose_path_finds_another_python_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activate = f'export PATH={Path(sys.executable).parent}:"$PATH"'
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}")
    assert activate not in run("--output", str(tmp_path / "a.tgz"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"# Here {INTERPRETER} is nothing" in (said := run("--output", str(tmp_path / "a.tgz")))
    assert activate in said


def test_spark_unpacks_no_other_name(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"Spark unpacks what is named \.tar\.gz or \.tgz"):
        run("--output", str(tmp_path / "env.tar"))


def test_what_pykafka_needs_is_in_it_and_what_the_cluster_brings_is_not() -> None:
    names = {one.metadata["Name"].lower() for one in pack_command._distributions(("protobuf",))}
    assert names >= {"pyarrow", "numpy", "kio", "kazoo", "cramjam", "fastavro", "google-re2", "protobuf"}
    assert not names & {"pyspark", "py4j", "pykafka-spark", "pytest", "fastapi", "deltalake", "pandas"}
    everything = {one.metadata["Name"].lower() for one in pack_command._distributions(None)}
    assert everything >= names | {"deltalake", "s3fs", "aiobotocore"}
    assert not everything & {"pyspark", "pytest", "fastapi", "ruff"}


def test_our_own_files_are_those_that_run_here() -> None:
    names = {name for name, _ in pack_command._files(())}
    assert {"broker/errors.py", "spark_connector/source.py", "pyspark_pykafka.py"} <= names
    assert not any("__pycache__" in name or name.startswith(("..", "/", "tests/")) for name in names)
    assert "numpy/__init__.py" in names
