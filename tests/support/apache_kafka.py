"""An Apache Kafka of one node (KRaft), from a directory where somebody unpacked or built one.

`PYKAFKA_TEST_KAFKA_HOME` names the directory: its `libs` has the jars. No package brings them, so `make test` runs
without; docs/compatibility.md says what was run on it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.free_ports import free_ports
from tests.support.waiting import eventually

VARIABLE = "PYKAFKA_TEST_KAFKA_HOME"

_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_JVM = ("-Xmx600m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "inter.broker.listener.name": "PLAINTEXT",
}
_STARTED = "Kafka Server started"


def kafka_home() -> Path | None:
    """What the environment names."""
    found = os.environ.get(VARIABLE)
    return Path(found) if found else None


class ApacheKafka:
    """`with ApacheKafka(home, directory, settings)`: it runs until the end of the block.

    `settings` are the broker's; `listeners` and `listener.security.protocol.map` as for one of ours, with ports 0.
    `classes`: a directory of classes that the settings name.
    """

    def __init__(
        self,
        home: Path,
        directory: Path,
        settings: Mapping[str, str],
        *,
        java_options: Sequence[str] = (),
        classes: Path | None = None,
    ) -> None:
        named = [text.removesuffix(":0").split("://") for text in settings["listeners"].split(",")]
        *ports, controller = free_ports(len(named) + 1)
        self.listeners = {name: f"{host}:{port}" for (name, host), port in zip(named, ports, strict=True)}
        self._directory = directory
        self._settings = {
            **_ONE_NODE,
            **settings,
            "listeners": ",".join(
                f"{name}://{address}"
                for name, address in {**self.listeners, "CONTROLLER": f"127.0.0.1:{controller}"}.items()
            ),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{settings['listener.security.protocol.map']}",
            "log.dirs": str(directory / "data"),
        }
        self._java = ["java", *_JVM, *java_options, "-cp", f"{home / 'libs'}/*:{classes or ''}"]

    @property
    def output(self) -> str:
        log = self._directory / "kafka.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
        subprocess.run(tool, check=True, capture_output=True)
        logging = self._directory / "log4j2.properties"
        logging.write_text(
            "status=error\nrootLogger.level=INFO\nrootLogger.appenderRef.out.ref=OUT\nappender.out.type=Console\n"
            "appender.out.name=OUT\nappender.out.layout.type=PatternLayout\nappender.out.layout.pattern=%p %m (%c)%n\n"
        )
        java, *options = self._java
        command = [java, f"-Dlog4j2.configurationFile={logging}", *options, "kafka.Kafka", str(properties)]
        with (self._directory / "kafka.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        eventually(lambda: _STARTED in self.output or self._process.poll() is not None)
        assert _STARTED in self.output, self.output[-4_000:]
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
