"""A standalone Spark cluster on this machine whose workers are on hosts of different names, as Spark sees it.

Spark starts no second attempt of a task on a host where the first one runs, so speculation needs two: the addresses
127.0.0.2 and 127.0.0.3. Workers and executors are processes of their own. Files are shared.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.support.free_ports import free_ports
from tests.support.source_tree import ROOT
from tests.support.spark_child import SETTINGS
from tests.support.spark_home import shared_spark_home
from tests.support.waiting import eventually

_MASTER = "127.0.0.1"
_WORKERS = ("127.0.0.2", "127.0.0.3")
_START_S = 120.0


class StandaloneSpark:
    """A master and two workers of one core each, within `with`; `directory` takes their logs and files."""

    def __init__(self, directory: Path) -> None:
        self._home = shared_spark_home()
        self._directory = directory
        self._port, self._ui = free_ports(2)
        self._servers: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{_MASTER}:{self._port}"

    @property
    def settings(self) -> dict[str, str]:
        """What a session of this cluster sets."""
        return {
            **SETTINGS,
            "spark.master": self.url,
            "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": self._home.java_flags,
            "spark.local.dir": str(self._directory / "local"),
        }

    def run(self, module: str, **arguments: Any) -> Any:
        """What the program `module` prints in its last line, as JSON. It is given the settings and `arguments`."""
        given = json.dumps({"settings": self.settings, **arguments})
        command = [sys.executable, "-m", module, given]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment(), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    def __enter__(self) -> Self:
        where = ["--host", _MASTER, "--port", str(self._port), "--webui-port", str(self._ui)]
        self._start("master.Master", _MASTER, where)
        for host in _WORKERS:
            given = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            self._start("worker.Worker", host, [*given, "--work-dir", str(self._directory / host), self.url])
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._servers):
            server.terminate()
        for server in self._servers:
            server.wait(60)

    def _start(self, name: str, host: str, words: list[str]) -> None:
        command = [str(Path(self._environment()["SPARK_HOME"]) / "bin" / "spark-class")]
        with (self._directory / f"{host}.log").open("ab") as log:
            self._servers.append(
                subprocess.Popen(
                    [*command, f"org.apache.spark.deploy.{name}", *words],
                    cwd=ROOT,
                    env={**self._environment(), "SPARK_LOCAL_IP": host},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _environment(self) -> dict[str, str]:
        """Workers give it to executors, and these to their Python."""
        daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": self._home.java_flags}
        return {**os.environ, **self._home.environment(), **daemons, "PYTHONPATH": str(ROOT)}

    def _wait(self) -> None:
        eventually(lambda: self._alive() == len(_WORKERS), _START_S, 0.1)

    def _alive(self) -> int:
        url = f"http://{_MASTER}:{self._ui}/json/"
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
        return 0
