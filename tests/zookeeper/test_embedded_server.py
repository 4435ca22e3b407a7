"""The ZooKeeper child process: start, stop, and its end whatever happens to its parent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from broker.errors import ConfigError, ConnectionFailed
from broker.settings import read_properties_file
from broker.zookeeper import embedded_server
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from tests.support.waiting import eventually

PARENT = """
import sys, threading
from broker.zookeeper.embedded_server import EmbeddedZooKeeper
server = EmbeddedZooKeeper(sys.argv[1])
starter = threading.Thread(target=server.start)  # its end must not be taken for the parent's
starter.start()
starter.join()
print(server.pid, server.address, flush=True)
sys.stdin.read()
"""


def has_ended(process: psutil.Process) -> bool:
    """Also true of one that only waits for somebody to ask how it ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path / "data")
    yield server
    server.stop()


def test_it_serves_sessions_when_start_returns_and_keeps_port_and_data_over_a_restart(
    embedded: EmbeddedZooKeeper,
) -> None:
    address = embedded.start()
    assert address == embedded.address == f"127.0.0.1:{embedded.port}"
    with ZooKeeper(address, session_timeout_ms=2000, connection_timeout_ms=60_000) as zk:
        zk.create("/kept", b"1")
    embedded.stop()
    assert not embedded.running
    assert embedded.pid is None

    assert embedded.start() == address
    with ZooKeeper(address) as zk:
        assert zk.get("/kept")[0] == b"1"


def test_data_survive_a_kill(embedded: EmbeddedZooKeeper) -> None:
    with ZooKeeper(embedded.start()) as zk:
        zk.create("/kept", b"1")
        embedded.kill()
        embedded.start()
        assert zk.get("/kept")[0] == b"1"


def test_it_starts_soon(embedded: EmbeddedZooKeeper) -> None:
    embedded.start()
    assert sum(psutil.Process(embedded.pid).cpu_times()[:2]) < 4  # seconds; 0.5 on a quiet machine


def test_start_and_stop_may_be_repeated(embedded: EmbeddedZooKeeper) -> None:
    embedded.stop()
    address, pid = embedded.start(), embedded.pid
    assert (embedded.start(), embedded.pid) == (address, pid)
    embedded.stop()
    embedded.stop()


def test_it_ends_when_its_parent_is_killed_and_its_data_can_be_used_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        with ZooKeeper(address, session_timeout_ms=2000, connection_timeout_ms=60_000) as zk:
            zk.create("/kept", b"1")
        family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children()]
        parent.kill()
        with EmbeddedZooKeeper(tmp_path) as successor, ZooKeeper(successor.address) as zk:
            assert zk.get("/kept")[0] == b"1"
        eventually(lambda: all(map(has_ended, family)))


def test_it_ends_when_its_parent_forgets_to_stop_it(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PARENT, str(tmp_path)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    pid = int(ended.stdout.split()[0])
    eventually(lambda: not psutil.pid_exists(pid) or has_ended(psutil.Process(pid)))


def test_nothing_is_left_running_after_a_stop(embedded: EmbeddedZooKeeper) -> None:
    embedded.start()
    family = psutil.Process(embedded.pid).children(recursive=True)
    assert len(family) == 1  # the shell that watches for our end
    embedded.stop()
    eventually(lambda: has_ended(family[0]))


def test_a_second_server_on_the_same_data_is_refused(
    embedded: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.start()
    monkeypatch.setattr(embedded_server, "_LOCK_TIMEOUT_S", 0.1)
    with pytest.raises(ConfigError, match=r"another ZooKeeper runs on .*data"):
        EmbeddedZooKeeper(embedded.data_dir).start()
    assert embedded.running


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port} .*choose another port"):
            EmbeddedZooKeeper(tmp_path, port).start()


def test_nobody_else_gets_its_port_while_it_is_down(embedded: EmbeddedZooKeeper) -> None:
    embedded.start()
    embedded.kill()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", embedded.port))
    embedded.start()


def test_a_server_that_does_not_come_up_tells_why(embedded: EmbeddedZooKeeper) -> None:
    embedded.start()
    embedded.stop()
    # What a lost snapshot looks like: a transaction log alone, without the data it builds on.
    for snapshot in (embedded.data_dir / "version-2").glob("snapshot.*"):
        snapshot.unlink()
    (embedded.data_dir / "version-2" / "log.5").write_bytes(b"garbage")
    with pytest.raises(ConnectionFailed, match=r"(?s)ZooKeeper did not start: .*No snapshot found.*log: ") as failure:
        embedded.start()
    assert str(embedded.log_file) in str(failure.value)
    assert "No snapshot found" in embedded.log_file.read_text()


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the ZooKeeper data directory .* cannot be created"):
        EmbeddedZooKeeper(tmp_path / "file" / "data").start()


def test_the_sample_configuration_has_the_same_settings_as_a_server_started_without_one() -> None:
    sample = read_properties_file(Path(__file__).parents[2] / "conf" / "zookeeper.properties")
    where = {"dataDir": "data/zookeeper", "clientPort": "2181"}
    assert sample == {**where, **embedded_server.DEFAULT_PROPERTIES}


def test_properties_are_passed_on(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path, properties={"tickTime": "250"}) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.sendall(b"conf")
        answer = connection.makefile().read()
    assert "tickTime=250\n" in answer
    assert "maxClientCnxns=0\n" in answer
    assert f"dataDir={tmp_path}/version-2" in answer
