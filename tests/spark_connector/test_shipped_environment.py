"""Executors whose Python is not the driver's, as docs/how-to/executors.md says: by an archive, and without one.

The executors are processes of their own, which find no other Python on their PATH than a bare one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic
from tests.support.users_environment import users_environment

INTERPRETER = f"python{sys.version_info.major}.{sys.version_info.minor}"
ACTS = ("read", "stream", "write", "load")


@pytest.fixture
def numbers(broker: Kafka, topic: str) -> Topic:
    made = Topic(broker.bootstrap, topic)
    made.number(30, 0)
    Topic(broker.bootstrap, f"{topic}-written")
    return made


def driver(
    topic: Topic, home: Path, acts: Sequence[str], settings: dict[str, str], variables: dict[str, str]
) -> dict[str, Any]:
    """What came of the acts. The driver runs in `home`, as a user's shell would start it; executors below `spark`."""
    (spark := home / "spark").mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (spark / entry.name).symlink_to(entry)
    not_ours = ("PYSPARK_", "SPARK_", "PYTHONPATH")  # executors get the driver's PYTHONPATH, too
    ours = {name: value for name, value in users_environment().items() if not name.startswith(not_ours)}
    given = {"bootstrap": topic.bootstrap, "topic": topic.name, "home": str(home), "acts": acts, "settings": settings}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.shipped_session", json.dumps(given)],
        cwd=home,
        env={**ours, "SPARK_HOME": str(spark), **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )
    shutil.rmtree(spark)  # each executor has unpacked its archive there
    assert done.returncode == 0, done.stderr[-4000:]
    came: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return came


def environment(home: Path, *paths: str) -> Path:
    """A Python of its own that finds packages at these paths."""
    made = home / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(made)})
    Path(own, "packages.pth").write_text("\n".join(paths), encoding="utf-8")
    return made


def archive_of(made: Path) -> str:
    archive = made.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as file:
        file.add(made, ".")
    return f"{archive}#environment"


def with_packages(home: Path) -> Path:
    return environment(home, str(ROOT), *(path for path in sys.path if path.endswith("site-packages")))


def on_bare_executors(home: Path, *packages: str) -> dict[str, str]:
    """Settings for executors that have a Python with these packages only."""
    (only := home / "only").mkdir()
    for package in packages:
        (only / package).symlink_to(next(Path(path, package) for path in sys.path if Path(path, package).is_dir()))
    return {"spark.executorEnv.PATH": f"{environment(home, str(only))}/bin:/usr/bin:/bin"}


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_executors_read_with_the_python_of_the_archive(numbers: Topic, tmp_path: Path) -> None:
    """The driver has it unpacked where it runs, because Spark plans with a Python of the same name."""
    settings = {"spark.archives": archive_of(with_packages(tmp_path))}
    came = driver(numbers, tmp_path, ["read"], settings, {"PYSPARK_PYTHON": "./environment/bin/python"})
    ((interpreter, rows),) = came["read"].items()
    assert rows == 30
    assert interpreter.endswith("/environment/bin/python")
    assert not Path(interpreter).is_relative_to(tmp_path / "environment"), "the executor has its own copy"


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_loads_run_where_the_driver_has_no_such_interpreter(numbers: Topic, tmp_path: Path) -> None:
    """As Spark's documentation packs an environment: the driver's Python is another one, and nothing is unpacked."""
    settings = {"spark.archives": archive_of(with_packages(tmp_path))}
    (home := tmp_path / "elsewhere").mkdir()
    variables = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert driver(numbers, home, ["load"], settings, variables) == {"load": [30, 30]}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_executors_with_a_bare_python_work_with_a_pack(numbers: Topic, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "broker.tools.main", "pack", "--json", "--extra", "protobuf"]
    packed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    given = json.loads(packed.stdout)
    settings = on_bare_executors(tmp_path) | given["settings"]
    came = driver(numbers, tmp_path, ACTS, settings, {"PYSPARK_PYTHON": given["PYSPARK_PYTHON"]})
    ((interpreter, rows),) = came.pop("read").items()
    assert (Path(interpreter).parent, rows) == (tmp_path / "environment" / "bin", 30)
    assert came == {"stream": 30, "write": 5, "load": [30, 30]}


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_executors_without_pykafka_say_so_in_one_sentence(numbers: Topic, tmp_path: Path) -> None:
    """pyarrow is needed by Spark itself, before it reads what is ours."""
    settings = on_bare_executors(tmp_path, "pyarrow", "numpy", "numpy.libs")
    came = driver(numbers, tmp_path, ACTS, settings, {"PYSPARK_PYTHON": INTERPRETER})
    said = f"runs its Python code with {tmp_path}/environment/bin/{INTERPRETER} (Python "
    for act in ACTS:
        assert said in came[act]
        assert "has no module 'spark_connector'" in came[act]
        assert "pykafka pack" in came[act]
        assert "Traceback" not in came[act]
    assert not [path for path in (tmp_path / "loaded").rglob("*") if path.is_file()]
