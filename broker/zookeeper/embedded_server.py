"""A real ZooKeeper server as a child process, from the jars that PySpark ships.

Started by the broker when `zookeeper.connect` is empty, by `pykafka zookeeper start` and by the tests. Promises: it
listens on loopback unless told otherwise, answers when `start()` returns, and ends with its parent, however that
ends. For the last, a small shell beside it waits for the end of a pipe whose other end only the parent holds, and
then kills it (a signal on the parent's death is Linux only, and fires already at the death of a thread). A kill is
safe: ZooKeeper writes its transaction log through to the disk before it answers. Blocking; not thread-safe.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from broker.errors import ConfigError, ConnectionFailed
from broker.zookeeper.java import find_java, zookeeper_classpath

__all__ = ["DEFAULT_PROPERTIES", "EmbeddedZooKeeper"]

log = logging.getLogger(__name__)

DEFAULT_PROPERTIES: Mapping[str, str] = {
    "clientPortAddress": "127.0.0.1",
    "tickTime": "500",  # ms; sessions are expired on its beat, so session time-outs of 2–6 s are met closely
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",  # no limit: every client comes from one address
    "admin.enableServer": "false",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",  # hours
    "4lw.commands.whitelist": "conf,ruok,srvr,stat,mntr,cons,dump",
}

# QuorumPeerMain runs a single server too and, unlike ZooKeeperServerMain, purges old snapshots.
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM_FLAGS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")

# $0 is not used; "$@" is the command. The shell becomes the command, so that its pid is the server's; the part in
# the background outlives the parent just long enough to kill the server. Both are in one session of their own:
# as long as the background part lives, no other process can be given the server's pid.
_DIES_WITH_PARENT = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 $$) & exec 3<&-; exec "$@"'

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_LOCK_TIMEOUT_S = 5.0
_PORT_ATTEMPTS = 5


class EmbeddedZooKeeper:
    """One server on `data_dir`, on the given port or (0) on a free one, which it keeps across restarts."""

    def __init__(self, data_dir: Path | str, port: int = 0, properties: Mapping[str, str] | None = None) -> None:
        """`properties` (ZooKeeper's names) override `DEFAULT_PROPERTIES`; dataDir and clientPort are ours."""
        self.data_dir = Path(data_dir).absolute()
        self.port = port
        self.properties = {**DEFAULT_PROPERTIES, **(properties or {})}
        self._any_port = port == 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`, what `zookeeper.connect` takes."""
        return f"{self._host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """What the server writes to stdout and stderr."""
        return self.data_dir / "zookeeper.log"

    def start(self) -> str:
        """Start the server and return its address once it serves.

        Raises ConfigError when Java or PySpark is missing or too old, the port is taken or the data directory is
        in use or cannot be used; ConnectionFailed, with the tail of its log, when the server does not come up.
        """
        if self.running:
            return self.address
        command = [find_java(), *_JVM_FLAGS, "-cp", zookeeper_classpath()]
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the ZooKeeper data directory {self.data_dir} cannot be made: {error}") from error
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._claim_port()
                self._launch(command)
                self._wait_until_serving()
                return self.address
            except BaseException:
                self.stop()
                port_was_lost = self._any_port and _is_taken(self._host, self.port)
                if not port_was_lost or attempt == _PORT_ATTEMPTS:
                    raise
                self.port = 0
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End the server, by force after some seconds. Idempotent; the data stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the process

    @property
    def _host(self) -> str:
        return self.properties["clientPortAddress"]

    def _claim_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            try:
                probe.bind((self._host, self.port))
            except OSError as error:
                raise ConfigError(
                    f"ZooKeeper cannot listen on {self._host}:{self.port} ({error.strerror}); "
                    "choose another port, or 0 for any free one"
                ) from error
            self.port = probe.getsockname()[1]

    def _launch(self, command: list[str]) -> None:
        config = self.data_dir / "zookeeper.properties"
        settings = {**self.properties, "dataDir": str(self.data_dir), "clientPort": str(self.port)}
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        lock = self._lock()
        try:
            with self.log_file.open("wb") as output:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _DIES_WITH_PARENT, "sh", *command, _MAIN_CLASS, str(config)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # an interrupt typed in the terminal is for the broker, which stops us
                    pass_fds=(lock,),  # held by the server itself: free when it is really gone
                    cwd=self.data_dir,
                )
        finally:
            os.close(lock)

    def _lock(self) -> int:
        """Two servers on one directory would ruin it, and ZooKeeper does not look. Waits a little for one that is
        just ending with its parent."""
        path = self.data_dir / ".lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise ConfigError(
                        f"another ZooKeeper runs on {self.data_dir}; stop it, or choose another data directory"
                    ) from None
                time.sleep(0.02)

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._serves():
            if not self.running:
                raise ConnectionFailed(f"ZooKeeper did not start: {self._why_it_ended()}")
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"ZooKeeper did not answer within {_START_TIMEOUT_S:g} s; see {self.log_file}")
            time.sleep(0.01)

    def _serves(self) -> bool:
        """Whether our server, not another one on that port, takes sessions."""
        try:
            with socket.create_connection((self._host, self.port), timeout=1.0) as connection:
                connection.sendall(b"conf")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False
        return f"dataDir={self.data_dir}".encode() in answer

    def _why_it_ended(self) -> str:
        """Run it again with a logging backend, which costs a normal start memory and time, and read its error."""
        command = [find_java(), *_JVM_FLAGS, "-cp", zookeeper_classpath(with_logging=True), _MAIN_CLASS]
        output = b""
        try:
            config = str(self.data_dir / "zookeeper.properties")
            again = subprocess.run([*command, config], capture_output=True, timeout=5.0, check=False)
            output = again.stdout + again.stderr
            self.log_file.write_bytes(output)
        except subprocess.TimeoutExpired:
            pass  # it would start now
        except OSError as error:
            return str(error)
        tail = b"\n".join(output.splitlines()[-20:]).decode(errors="replace")
        return f"{tail or 'no reason given'} (log: {self.log_file})"

    def _end(self, first_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _signal_session(process, first_signal)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _signal_session(process, signal.SIGKILL)
            process.wait()
        if process.stdin:
            process.stdin.close()  # ends what may be left of the watching shell


def _signal_session(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    try:
        os.killpg(process.pid, signum)
    except ProcessLookupError:
        pass


def _is_taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
