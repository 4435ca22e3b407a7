"""/healthz: well while ZooKeeper answers and the logs can be written, else 503 with what is wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.errors import ConfigError
from broker.log.manager import LogManager
from broker.web.health import Health
from broker.web.http_listener import HttpListener
from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from tests.conftest import BrokerFactory
from tests.support.scrape import health
from tests.support.source_tree import ROOT
from tests.support.waiting import eventually

SETTINGS = {"metrics.listener": "HTTP://127.0.0.1:0"}
SHORT_SESSION = {"zookeeper.session.timeout.ms": "2000"}


def test_a_lost_zookeeper_is_told_until_it_is_back(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper")
    broker = broker_factory(SETTINGS | SHORT_SESSION, zookeeper=zookeeper.start())
    try:
        well = {"status": "ok", "broker.id": 0, "checks": {"zookeeper": "ok", "log.dirs": "ok"}}
        eventually(lambda: health(broker) == (200, well))  # a busy machine may cost it a session
        zookeeper.stop()
        eventually(lambda: health(broker)[0] == 503)
        report = health(broker)[1]
        assert report["status"] == "failing"
        assert "zookeeper.connect" in report["checks"]["zookeeper"]
        zookeeper.start()
        eventually(lambda: health(broker) == (200, well))
    finally:
        broker.kill()
        zookeeper.stop()


def test_a_log_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    logs = LogManager([tmp_path / "a", tmp_path / "b"], SystemClock())
    (tmp_path / "a").mkdir()
    well, report = Health(7, logs, lambda: True).report()
    assert not well
    assert report["checks"] == {"zookeeper": "ok", "log.dirs": f"{tmp_path / 'b'} cannot be written"}


def test_a_broker_without_the_listener_loads_nothing_of_it() -> None:
    libraries = "{'uvicorn', 'starlette', 'prometheus_client', 'anyio', 'h11'}"
    program = f"import sys, broker.tools.broker; print(*{libraries}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_broker_with_the_listener_ends_at_once_though_a_scraper_holds_its_connection(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory(SETTINGS)
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")

    with socket.create_connection((host, int(port))) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        process = broker._process
        assert process is not None
        os.kill(broker.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert "Traceback" not in broker.output


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1", "HTTPS://127.0.0.1:1", "HTTP://127.0.0.1", "HTTP://h:99999", "HTTP://127.0.0.1:1/metrics"]
)
def test_a_listener_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="metrics.listener="):
        HttpListener(text)


def test_a_port_that_is_taken_is_named() -> None:
    first = HttpListener("HTTP://127.0.0.1:0")
    port = first.url.rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"metrics.listener=HTTP://127.0.0.1:{port}: .*in use"):
        HttpListener(f"HTTP://127.0.0.1:{port}")
    first.close()


def test_a_check_that_cannot_look_is_unknown_and_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = LogManager([tmp_path], SystemClock())
    health_of_one = Health(7, logs, lambda: True)

    def away() -> dict[Path, str]:
        raise OSError("no answer")

    monkeypatch.setattr(logs, "disk_failures", away)
    well, report = health_of_one.report()
    assert (well, report["status"]) == (False, "unknown")
    assert report["checks"]["log.dirs"] == "unknown: it could not be looked at: no answer"
    assert Health(7, logs, lambda: False).report()[1]["status"] == "failing", "what is wrong counts for more"
