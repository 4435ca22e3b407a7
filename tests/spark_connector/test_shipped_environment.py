"""An environment that goes to executors as an archive, as docs/how-to/executors.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_read_with_the_python_of_the_archive(broker: Kafka, topic: str, tmp_path: Path) -> None:
    """The driver has it unpacked where it runs, because Spark plans with a Python of the same name."""
    Topic(broker.bootstrap, topic).number(30, 0)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(environment)})
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    Path(own, "packages.pth").write_text("\n".join(paths), encoding="utf-8")
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(environment, ".")
    variables = {**os.environ, "PYSPARK_PYTHON": "./environment/bin/python", "PYTHONPATH": str(ROOT)}
    variables.pop("PYSPARK_DRIVER_PYTHON", None)
    command = [sys.executable, "-m", "tests.support.shipped_session", broker.bootstrap, topic, str(archive)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    ((interpreter, rows),) = json.loads(done.stdout.splitlines()[-1]).items()
    assert rows == 30
    assert interpreter.endswith("/environment/bin/python")
    assert not Path(interpreter).is_relative_to(tmp_path), "the executor has its own copy"
