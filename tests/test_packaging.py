"""What `pip install` brings: the packages, the module Spark looks for, the commands, the kernel; and no tests."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.source_tree import ROOT, modules_under

CODE = ("broker", "spark_connector", "pykafka_demo", "pykafka_ui", "pyspark_pykafka.py")
KERNEL = "broker/records/_kernel.abi3.so"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree, nothing built: a build leaves files where it works."""
    source = tmp_path_factory.mktemp("source") / "pykafka"
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "pyspark_pykafka.py",
        "broker",
        "spark_connector",
        "pykafka_demo",
        "pykafka_ui",
        "tests",
    ):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The distribution as it is built here."""
    return built(source, tmp_path_factory.mktemp("wheel"))


def built(source: Path, target: Path, **environment: str) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(target.glob("pykafka_spark-*.whl")))


def implementation(path: Path, **environment: str) -> str:
    """What encodes and decodes columns in a new process that imports from `path`; this tree's kernel is hidden."""
    program = (
        f"import sys; sys.path.remove({str(ROOT)!r})\n"
        "from broker.records import native; print(native.implementation(), native.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(path), **environment}
    output = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment, cwd=path)
    name, file = output.split()
    assert Path(file).is_relative_to(path)
    return name


def test_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    modules = {module.relative for module in modules_under(*CODE)}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name} - {KERNEL}
    conf = {path.relative_to(ROOT).as_posix() for path in (ROOT / "broker" / "conf").rglob("*.*") if path.is_file()}
    pages = {
        path.relative_to(ROOT).as_posix()
        for folder in ("static", "templates")
        for path in (ROOT / "pykafka_ui" / folder).rglob("*.*")
    }
    assert held == modules | conf | pages | {"broker/py.typed", "spark_connector/py.typed"}


def test_wheel_brings_the_licence_and_the_commands(wheel: zipfile.ZipFile) -> None:
    info = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "LICENSE" in info
    points = configparser.ConfigParser()
    points.read_string(wheel.read(info["entry_points.txt"]).decode())
    assert dict(points["console_scripts"]) == {"pykafka": "broker.tools.main:main"}
    modules = {module.name for module in modules_under("spark_connector", "pykafka_demo", "pykafka_ui")}
    for target in (*points["pykafka.commands"].values(), *points["pykafka.checkups"].values()):
        assert target.partition(":")[0] in modules


def requirements(wheel: zipfile.ZipFile) -> list[Requirement]:
    """What comes with the package itself, without extras."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = re.findall(r"^Requires-Dist: (.*)$", wheel.read(metadata).decode(), re.MULTILINE)
    return [one for one in map(Requirement, lines) if one.marker is None]


def test_the_page_on_installing_names_all_that_is_needed_beside_pyspark(wheel: zipfile.ZipFile) -> None:
    installs = re.findall(r"^pip install ([\w -]+)$", (ROOT / "docs/how-to/install.md").read_text(), re.MULTILINE)
    needed = {one.name for one in requirements(wheel)} - {"pyspark"}
    assert needed in [set(line.split()) for line in installs]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", ["", "[connect]"])
def test_a_pyspark_that_is_there_stays(wheel: zipfile.ZipFile, tmp_path: Path, extra: str) -> None:
    """In an environment with nothing but PySpark 4.0.5; pip says what it would install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "env" / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "pyspark==4.0.5"], check=True)
    report = tmp_path / "report.json"
    subprocess.run([*pip, "--dry-run", "--report", str(report), f"{wheel.filename}{extra}"], check=True)
    installed = {one["metadata"]["name"].lower() for one in json.loads(report.read_text())["install"]}
    assert {"pykafka-spark", "pyarrow", "kio"} <= installed
    assert not installed & {"pyspark", "pyspark-client", "pyspark-connect", "py4j"}


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")
def test_wheel_brings_the_kernel_where_there_is_a_compiler(
    wheel: zipfile.ZipFile, source: Path, tmp_path: Path
) -> None:
    assert KERNEL in wheel.namelist()
    assert "-cp311-abi3-" in Path(str(wheel.filename)).name
    wheel.extractall(tmp_path)
    assert implementation(tmp_path, PYKAFKA_NATIVE="1") == "native"
    assert implementation(tmp_path, PYKAFKA_NATIVE="0") == "plain"


def test_source_distribution_holds_the_kernel_in_c(wheel: zipfile.ZipFile, source: Path) -> None:
    listed = (source / "pykafka_spark.egg-info" / "SOURCES.txt").read_text().split()
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "broker" / "records").glob("_kernel*.[ch]")}
    assert here
    assert here <= set(listed)


def test_sources_without_a_kernel_use_that_of_the_installed_distribution(
    wheel: zipfile.ZipFile, source: Path, tmp_path: Path
) -> None:
    """`pip install .`, then Python in the clone's directory: its sources are imported, the kernel is elsewhere."""
    clone = shutil.copytree(source, tmp_path / "clone", ignore=shutil.ignore_patterns("build", "*.egg-info", "tests"))
    wheel.extractall(tmp_path / "installed")
    assert implementation(clone) == "plain"
    both = {"PYTHONPATH": f"{clone}{os.pathsep}{tmp_path / 'installed'}"}
    assert implementation(clone, **both) == "native"
    (clone / KERNEL).write_text("of another machine")
    assert implementation(clone, **both) == "native"
    assert implementation(clone) == "plain"


@pytest.mark.slow
def test_without_a_compiler_the_installation_goes_on(source: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    wheel = built(copy, tmp_path, CC="/bin/false")
    assert KERNEL not in wheel.namelist()
    wheel.extractall(tmp_path / "installed")
    assert implementation(tmp_path / "installed") == "plain"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_uploaded_is_built_and_works(tmp_path: Path) -> None:
    """`make dist`: a wheel that says which Linux it runs on, and an sdist with all that its README names."""
    for name in ("build", "twine", "auditwheel"):
        pytest.importorskip(name, reason="make dist installs it")
    done = subprocess.run([ROOT / ".ci" / "dist", sys.executable, tmp_path / "dist"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert b"the wheel works, its codec is native" in done.stdout
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "-cp311-abi3-manylinux" in wheel.name
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = (
        "README.md LICENSE CHANGELOG.md Makefile .ci/preflight broker/conf/server.properties broker/records/_kernel.c"
    )
    assert set(wanted.split()) <= held
    assert any(name.startswith("docs/") for name in held)
    assert any(name.startswith("notebooks/") for name in held)
    assert "bench/__main__.py" in held
