"""Finding Java and the ZooKeeper jars, and what is said when they are not there."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.zookeeper.java import find_java, java_version, zookeeper_classpath


def fake_java(home: Path, script: str = "exit 0", release: str | None = None) -> str:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return str(java)


def test_this_machine_has_what_the_embedded_zookeeper_needs() -> None:
    assert java_version(find_java()) >= 17
    names = [Path(path).name for path in zookeeper_classpath().split(os.pathsep)]
    assert [name.rsplit("-", 1)[0] for name in names] == [
        "zookeeper",
        "zookeeper-jute",
        "slf4j-api",
        "metrics-core",
        "snappy-java",
    ]


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, release='JAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


@pytest.mark.parametrize(
    ("release", "version"),
    [('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', 17), ('JAVA_VERSION="1.8.0_392"', 8), ('JAVA_VERSION="25"', 25)],
)
def test_the_version_is_read_from_the_release_file(tmp_path: Path, release: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, "exit 1", release)) == version


def test_without_a_release_file_java_is_asked(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path, """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")) == 11


def test_a_java_that_tells_no_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot find out the version of .*; set JAVA_HOME"):
        java_version(fake_java(tmp_path))


def test_no_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java on the PATH: .* needs Java 17 or newer; install one"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no Java in JAVA_HOME={tmp_path}"):
        find_java()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, release='JAVA_VERSION="11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"is Java 11: .* needs Java 17 or newer; set JAVA_HOME"):
        find_java()


def test_no_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install pyspark, or set zookeeper\.connect"):
        zookeeper_classpath()


def test_an_incomplete_pyspark_names_the_missing_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    spec = importlib.machinery.ModuleSpec("pyspark", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(ConfigError, match=r"has no zookeeper-\*\.jar: install the full `pyspark`"):
        zookeeper_classpath()


def test_pyspark_is_not_imported() -> None:
    program = "import sys, broker.zookeeper.java as j; j.zookeeper_classpath(); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
