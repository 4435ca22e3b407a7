"""A ZooKeeper server in a child process, from the jars that PySpark ships.

Started by the broker when `zookeeper.connect` is empty, by `pykafka zookeeper start` and by the tests. It listens on
loopback unless its properties say otherwise, answers when `start()` returns, and ends with its parent however that
ends: a small shell beside it waits for the end of a pipe whose other end only the parent holds, and then kills it. (A
signal on the parent's death is Linux only, and is sent already when a thread ends.) Killing it is safe, because
ZooKeeper syncs its transaction log before it answers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from broker.errors import ConfigError, ConnectionFailed, PykafkaError
from broker.held_port import HeldPort
from broker.zookeeper.java import find_java, zookeeper_classpath

log = logging.getLogger(__name__)

DEFAULT_PROPERTIES: Mapping[str, str] = {
    "clientPortAddress": "127.0.0.1",
    "tickTime": "500",  # ms; sessions expire on a tick, so this keeps session timeouts of 2–6 s precise
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",  # no limit: all clients have one address
    "admin.enableServer": "false",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",  # hours
    "4lw.commands.whitelist": "conf,ruok,srvr,stat,mntr,cons,dump",
}

# QuorumPeerMain runs a single server too and, unlike ZooKeeperServerMain, purges old snapshots.
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM_FLAGS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")

# $0 is unused and "$@" is the command. The shell becomes the command, so its pid is the server's. The background part
# outlives the parent until it has killed the server. Both are in one session of their own: while the background part
# lives, no other process can get the server's pid.
_DIES_WITH_PARENT = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 $$) & exec 3<&-; exec "$@"'

_START_TIMEOUT_S = 60.0  # as a broker's; half a second on a quiet machine, more than 20 were seen on a busy one
_STOP_TIMEOUT_S = 5.0
_LOCK_TIMEOUT_S = 5.0
_SUPERVISE_EVERY_S = 0.5


class EmbeddedZooKeeper:
    """One server on `data_dir` and `port`; 0 takes a free port and keeps it across restarts, from
    other processes, too.

    Blocking and not thread-safe.
    """

    def __init__(self, data_dir: Path | str, port: int = 0, properties: Mapping[str, str] | None = None) -> None:
        """`properties`, in ZooKeeper's names, override `DEFAULT_PROPERTIES`, but not dataDir and clientPort."""
        self.data_dir = Path(data_dir).absolute()
        self.port = port
        self.properties = {**DEFAULT_PROPERTIES, **(properties or {})}
        self._held: HeldPort | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`, for `zookeeper.connect`."""
        return f"{self._host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """What the server writes to stdout and stderr."""
        return self.data_dir / "zookeeper.log"

    def start(self) -> str:
        """Start the server and return its address once it answers.

        Raises ConfigError when Java or PySpark is missing or too old, the port is taken, or the data directory is in
        use or cannot be used. Raises ConnectionFailed with the end of its log when the server does not start.
        """
        if self.running:
            return self.address
        command = [find_java(), *_JVM_FLAGS, "-cp", zookeeper_classpath()]
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the ZooKeeper data directory {self.data_dir} cannot be created: {error}") from error
        try:
            self._claim_port()
            self._launch(command)
            self._wait_until_serving()
        except BaseException:
            self.stop()
            raise
        return self.address

    def stop(self) -> None:
        """Stop the server, by force after some seconds. Keeps the data. Idempotent."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop the server with SIGKILL, as a crash would."""
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
        if self._held is not None:
            return
        try:
            held = HeldPort(self._host, self.port)
        except OSError as error:
            raise ConfigError(
                f"ZooKeeper cannot listen on {self._host}:{self.port} ({error.strerror}); "
                "choose another port, or 0 for any free one"
            ) from error
        if self.port == 0:
            self.port, self._held = held.port, held

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
                    start_new_session=True,  # Ctrl-C in the terminal reaches only the broker, which stops the server
                    pass_fds=(lock,),  # the server holds the lock, so it is free when the server has ended
                    cwd=self.data_dir,
                )
        finally:
            os.close(lock)

    def _lock(self) -> int:
        """Lock the data directory: two servers would destroy it, and ZooKeeper does not check.

        Waits a little for a server that is ending with its parent.
        """
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
        """Whether our server, and not another one on that port, accepts sessions."""
        try:
            with socket.create_connection((self._host, self.port), timeout=1.0) as connection:
                connection.sendall(b"conf")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False
        return f"dataDir={self.data_dir}".encode() in answer

    def _why_it_ended(self) -> str:
        """Run the server again with a logging backend, which a normal start goes without, and return its error."""
        command = [find_java(), *_JVM_FLAGS, "-cp", zookeeper_classpath(with_logging=True), _MAIN_CLASS]
        output = b""
        try:
            config = str(self.data_dir / "zookeeper.properties")
            again = subprocess.run([*command, config], capture_output=True, timeout=5.0, check=False)
            output = again.stdout + again.stderr
            self.log_file.write_bytes(output)
        except subprocess.TimeoutExpired:
            pass  # this time it started
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
            process.stdin.close()  # ends the shell that watches the parent


class ZooKeeperSupervisor:
    """Restarts an embedded server that ends by itself, on the same data and port.

    The broker goes on meanwhile, as it does while an external ZooKeeper is away. `start` and `stop` block.
    """

    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self._server = server
        self._lock = threading.Lock()  # so that `stop` and a restart do not overlap
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="zookeeper-supervisor", daemon=True)

    def start(self) -> str:
        """Start the server and return its address. Raises what `EmbeddedZooKeeper.start` raises."""
        address = self._server.start()
        log.info("started the embedded ZooKeeper at %s, process %s", address, self._server.pid)
        self._thread.start()
        return address

    def stop(self) -> None:
        """Stop the server for good. Idempotent."""
        self._stopped.set()
        with self._lock:
            self._server.stop()

    def _supervise(self) -> None:
        while not self._stopped.wait(_SUPERVISE_EVERY_S):
            with self._lock:
                if not self._stopped.is_set() and not self._server.running:
                    self._restart()

    def _restart(self) -> None:
        ended = self._server
        log.error("the embedded ZooKeeper at %s has ended; starting it again", ended.address)
        ended.stop()  # the shell beside it may still run
        # With the port given: the broker knows only this one.
        self._server = EmbeddedZooKeeper(ended.data_dir, ended.port, ended.properties)
        try:
            self._server.start()
            log.warning("the embedded ZooKeeper runs again at %s, process %s", self._server.address, self._server.pid)
        except (PykafkaError, OSError) as error:
            log.error("the embedded ZooKeeper cannot be started, trying again: %s", error)


def _signal_session(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    try:
        os.killpg(process.pid, signum)
    except ProcessLookupError:
        pass
