"""What makes the many Sparks of the tests start cheaply: a SPARK_HOME of links, and an archive of the JVM's classes.

On a machine with nothing else to do a Spark starts in a third of the processor time with the archive (4 s instead of
12), and each of its Python daemons in a quarter. One home serves all tests of a checkout, and is kept beside pytest's
cache: the JVM takes an archive only for the very jars, at the very paths, that it was made with.
`python -m tests.support.spark_home` (of `make test`) makes the archive before the tests, which would wait for it.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.support.source_tree import ROOT

SMALL_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Queries of some hundred rows take longer to compile, and to plan anew, than to run. The command line, the documents,
the notebooks and Spark Connect are tested with Spark's defaults."""

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the time of a start
_TIMEOUT = 300.0  # seconds; the archive takes about ten where nothing else runs
_USE_SPARK = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "ERROR").getOrCreate()
spark.range(9).selectExpr("id", "id % 3 AS part").groupBy("part").count().write.parquet(sys.argv[1])
query = spark.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True).start()
query.awaitTermination(60)
spark.stop()
"""


@functools.cache
def shared_spark_home() -> SparkHome:
    """The one of this checkout, without its archive where no test has needed it yet."""
    return SparkHome(ROOT / ".pytest_cache" / "spark" / version("pyspark"))


class SparkHome:
    """PySpark's files by links, below `directory`: executors write their logs into SPARK_HOME.

    Without its pyspark.zip, which every Python daemon would compile anew: they find the installed package instead.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._archive = directory / "classes.jsa"
        directory.mkdir(parents=True, exist_ok=True)
        for entry in _installed().iterdir():
            link = directory / entry.name
            if entry.name not in ("python", "work") and not link.exists():
                try:
                    link.symlink_to(entry)
                except FileExistsError:
                    continue  # another process makes them too

    @property
    def java_flags(self) -> str:
        """For drivers and executors. An archive that is not there, or does not fit, is passed over by the JVM."""
        return f"{_QUICK} -XX:SharedArchiveFile={self._archive}"

    def environment(self) -> dict[str, str]:
        """What is to be set for a driver and all its children."""
        return {
            "SPARK_HOME": str(self._directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": self.java_flags,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def archive_classes(self) -> None:
        """Run a small job and keep the classes it loaded, once: pays from the third Spark on.

        Called by tests that start several Sparks. Does nothing where it fails, and waits for another process that is at
        it.
        """
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._archive.exists() and self._archive.stat().st_mtime > (_installed() / "jars").stat().st_ctime:
                return  # the JVM warns of one that was made before PySpark was installed anew
            made, rows = self._directory / "made.jsa", self._directory / f"warm-up-{os.getpid()}"
            flags = {"SPARK_SUBMIT_OPTS": f"{_QUICK} -XX:ArchiveClassesAtExit={made}"}
            environment = {**os.environ, **self.environment(), **flags}
            command = [sys.executable, "-c", _USE_SPARK, str(rows)]
            # Through a pipe: it is closed when the JVM has ended too, which writes the archive after Python is gone.
            ended = subprocess.run(command, capture_output=True, env=environment, timeout=_TIMEOUT)
            (self._directory / "warm-up.log").write_bytes(ended.stdout + ended.stderr)
            shutil.rmtree(rows, ignore_errors=True)
            if made.exists():
                made.replace(self._archive)


def _installed() -> Path:
    """Where PySpark lies; importing it would take a third of a second of every test process."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


if __name__ == "__main__":
    shared_spark_home().archive_classes()
