"""What `pip install` brings: the packages, the module Spark looks for, the commands; and no tests."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, modules_under


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The distribution as it is built from a copy of this tree: a build leaves files where it works."""
    source, target = tmp_path_factory.mktemp("source") / "pykafka", tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_pykafka.py", "broker", "spark_connector", "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(target.glob("pykafka_spark-*.whl")))


def test_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    modules = {module.relative for module in modules_under("broker", "spark_connector", "pyspark_pykafka.py")}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == modules | {"broker/py.typed", "spark_connector/py.typed"}


def test_wheel_brings_the_licence_and_the_commands(wheel: zipfile.ZipFile) -> None:
    info = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "LICENSE" in info
    points = configparser.ConfigParser()
    points.read_string(wheel.read(info["entry_points.txt"]).decode())
    assert dict(points["console_scripts"]) == {"pykafka": "broker.tools.main:main"}
    modules = {module.name for module in modules_under("spark_connector")}
    for target in points["pykafka.commands"].values():
        assert target.partition(":")[0] in modules
