"""`pykafka zookeeper start`, as a user runs it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from broker.zookeeper.client import ZooKeeper

CONF = Path(__file__).parents[2] / "conf" / "zookeeper.properties"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "broker.tools.main", "zookeeper", "start", *map(str, arguments)]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_serves_and_ends_cleanly_on_a_signal(tmp_path: Path, signum: signal.Signals) -> None:
    arguments = command(CONF, "--data-dir", tmp_path / "data", "--port", 0)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        said = re.fullmatch(r"ZooKeeper listens on (127\.0\.0\.1:\d+), data in (.+)\n", line)
        assert said, line
        assert said[2] == str(tmp_path / "data")
        with ZooKeeper(said[1]) as zk:
            zk.create("/x")
        process.send_signal(signum)
        assert process.wait(60) == 0
    host, port = said[1].split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_the_server_that_dies_ends_the_command(tmp_path: Path) -> None:
    arguments = command("--data-dir", tmp_path, "--port", 0)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for child in psutil.Process(process.pid).children():
            child.kill()
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"has ended by itself; see {tmp_path}" in complaint.replace("\n", "")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [("clientPort=abc\n", "clientPort=abc: expected a number"), ("clientPort\n", "expected key=value")],
)
def test_bad_settings_are_one_clear_error(tmp_path: Path, settings: str, complaint: str) -> None:
    config = tmp_path / "zookeeper.properties"
    config.write_text(settings)
    ended = subprocess.run(command(config), capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
