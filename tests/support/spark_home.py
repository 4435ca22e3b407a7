"""What makes many Sparks of one test start cheaply: a SPARK_HOME of links, and an archive of the JVM's loaded classes.

Used by kill_host.py, whose Sparks are killed all the time. On a machine with nothing else to do a Spark starts in a
third of the processor time with the archive (4 s instead of 12), and each of its Python daemons in a quarter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.support.spark_child import SETTINGS

__all__ = ["SparkHome"]

_FLAGS = SETTINGS["spark.driver.extraJavaOptions"]
_TIMEOUT = 300.0  # seconds; the archive takes about ten where nothing else runs
_USE_SPARK = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
spark.range(9).selectExpr("id", "id % 3 AS part").groupBy("part").count().write.parquet(sys.argv[2])
spark.stop()
"""


class SparkHome:
    """PySpark's files by links, below `directory`: executors write their logs into SPARK_HOME.

    Without its pyspark.zip, which every Python daemon would compile anew: they find the installed package instead.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._archive = directory / "classes.jsa"
        directory.mkdir(parents=True)
        for entry in Path(pyspark.__file__).parent.iterdir():
            if entry.name != "python":
                (directory / entry.name).symlink_to(entry)

    @property
    def java_flags(self) -> str:
        """For drivers and executors. An archive that does not fit is passed over by the JVM."""
        return f"{_FLAGS} -XX:SharedArchiveFile={self._archive}" if self._archive.exists() else _FLAGS

    def environment(self) -> dict[str, str]:
        """Of a driver and all its children. They may keep compiled modules, whatever the caller's environment says."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        own = {"SPARK_HOME": str(self._directory), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        return {**kept, **own}

    def archive_classes(self) -> None:
        """Run a small job and keep the classes it loaded: pays from the third Spark on. Does nothing where it fails."""
        flags = f"{_FLAGS} -XX:ArchiveClassesAtExit={self._archive}"
        command = [sys.executable, "-c", _USE_SPARK, flags, str(self._directory / "warm-up")]
        with (self._directory / "warm-up.log").open("wb") as log:
            subprocess.run(command, stdout=log, stderr=log, env=self.environment(), timeout=_TIMEOUT)
