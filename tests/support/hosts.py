"""Hosts on this machine that share nothing but the code: `with Network(tmp_path) as network: network.host("one")`.

A host is a network namespace with an address, a name that all hosts resolve, and a mount namespace in which `/srv` is a
directory of its own: a local path is another place on every host. Programs are started on a host and are real; so are
the cuts of its links, in which packets vanish and nobody is told. The hosts are on a bridge of their own and reach
nothing else.

Needs root and `ip`; raises Unavailable with the reason where it has not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.requirements import Unavailable
from tests.support.waiting import eventually

HOME = Path("/srv")
"""On every host a directory of its own; from outside, `Host.outside` of it."""

ZOOKEEPER_PORT, BROKER_PORT, MASTER_PORT = 2181, 9092, 7077
PYKAFKA = (sys.executable, "-m", "broker.tools.main")
_SUBNET = "10.77.0"
_NOWHERE = "02:00:00:00:00:ff"
"""A link-layer address that nobody has."""
_TIMEOUT_S = 120
_REPOSITORY = Path(__file__).parents[2]


class Server:
    """A program that was started on a host; all that it prints is in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Until it has printed this; AssertionError with its output if it ends, or never does."""
        eventually(lambda: text in self.output or self.process.poll() is not None)
        assert text in self.output, self.output[-4000:]

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait()


class Host:
    """One host of a `Network`."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.home = network.directory / name
        (self.home / "tmp").mkdir(parents=True)
        self._holder = _hold(
            f"mount --bind {self.home} {HOME} && mount --bind {network.names} /etc/hosts && hostname {name} && "
            "ip link set lo up"
        )

    def outside(self, path: str | Path) -> Path:
        """Where a file below `HOME` of this host is for the tests, which are on no host."""
        return self.home / Path(path).relative_to(HOME)

    def popen(self, *command: str, env: Mapping[str, str] | None = None, **given: Any) -> subprocess.Popen[bytes]:
        """Start a program there. Its process is the command's own, so a signal goes to it."""
        return subprocess.Popen(
            [*self._inside(), "env", f"--chdir={HOME}", *command],
            env={**self.environment, **(env or {})},
            **given,
        )

    def run(self, *command: str, env: Mapping[str, str] | None = None, timeout: float = _TIMEOUT_S) -> str:
        """What the command prints. AssertionError with all of it when it fails."""
        process = self.popen(*command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{self.name}: {command} took over {timeout} s:\n{_tail(out, err)}") from None
        assert process.returncode == 0, f"{self.name}: {command}: {process.returncode}\n{_tail(out, err)}"
        return out.decode(errors="replace")

    def pykafka(self, *arguments: str, timeout: float = _TIMEOUT_S) -> str:
        """What `pykafka …` prints there."""
        return self.run(*PYKAFKA, *arguments, timeout=timeout)

    def call(self, function: str, *arguments: Any, timeout: float = _TIMEOUT_S) -> Any:
        """The result of `module:function(*arguments)`, run there in a new Python; both ways by JSON."""
        module, _, name = function.partition(":")
        code = (
            "import json, sys; from importlib import import_module\n"
            f"print('\\n' + json.dumps(import_module({module!r}).{name}(*json.loads(sys.argv[1]))))"
        )
        printed = self.run(sys.executable, "-c", code, json.dumps(arguments), timeout=timeout)
        return json.loads(printed.splitlines()[-1])

    def serve(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> Server:
        """Start a program that goes on until the host ends; its output is in `<name>.log` of the host's directory."""
        log = self.home / f"{name}.log"
        with log.open("ab") as output:
            process = self.popen(*command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        server = Server(process, log)
        self.network.servers.append(server)
        return server

    def kill(self) -> None:
        """kill -9 of all that runs there, as when its power goes; nobody is told when the host was `cut` before."""
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        eventually(self._is_empty)
        self._holder.kill()
        self._holder.wait()

    @property
    def environment(self) -> dict[str, str]:
        temporary = str(HOME / "tmp")
        return {
            **os.environ,
            "PYTHONPATH": str(_REPOSITORY),
            "PYTHONUNBUFFERED": "1",
            "PYSPARK_PYTHON": sys.executable,
            "HOME": str(HOME),
            "TMPDIR": temporary,
            "SPARK_LOCAL_IP": self.address,
            "SPARK_LOCAL_DIRS": temporary,
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",
        }

    @property
    def port(self) -> str:
        """Its link on the bridge."""
        return f"to-{self.name}"

    def _inside(self) -> list[str]:
        return ["nsenter", "--target", str(self._holder.pid), "--mount", "--uts", "--net", "--"]

    def ip(self, *arguments: str) -> None:
        _run(*self._inside(), "ip", *arguments)

    def connect(self) -> None:
        switch = self.network.switch
        peer = ["peer", "name", "eth0", "netns", str(self._holder.pid)]
        _run(*switch, "ip", "link", "add", self.port, "type", "veth", *peer)
        _run(*switch, "ip", "link", "set", self.port, "master", "bridge", "up")
        self.ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def _is_empty(self) -> bool:
        self.kill()
        return not self._processes()

    def _processes(self) -> list[int]:
        """All in its network but the one that holds it."""
        ours = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        found = []
        for process in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                if os.readlink(f"/proc/{process}/ns/net") == ours and int(process) != self._holder.pid:
                    found.append(int(process))
        return found


class Network:
    """Hosts, their names, and the links between them."""

    def __init__(self, directory: Path) -> None:
        """`directory`: where the hosts' own directories are, by their names."""
        self.directory = directory / "hosts"
        self.names = directory / "names"
        self.servers: list[Server] = []
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        why_not = unavailable()
        if why_not is not None:
            raise Unavailable(why_not)
        self.directory.mkdir(parents=True)
        self.names.write_text("127.0.0.1 localhost\n")
        self._holder = _hold("ip link add bridge type bridge && ip link set bridge up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts.values():
            host.stop()
        for server in self.servers:
            server.process.wait()
        self._holder.kill()
        self._holder.wait()

    @property
    def switch(self) -> list[str]:
        """Before a command that is to run beside the bridge."""
        return ["nsenter", "--target", str(self._holder.pid), "--net", "--"]

    def host(self, name: str) -> Host:
        """The host of this name (at most 12 letters), which is started when it is first asked for."""
        if name not in self.hosts:
            address = f"{_SUBNET}.{len(self.hosts) + 1}"
            with self.names.open("a") as names:  # in place: the hosts have it mounted
                names.write(f"{address} {name}\n")
            self.hosts[name] = Host(self, name, address)
            self.hosts[name].connect()
        return self.hosts[name]

    @contextlib.contextmanager
    def cut(self, *hosts: Host) -> Iterator[None]:
        """For the block, packets from and to these hosts vanish; their own links stay up, and nobody is told."""
        for host in hosts:
            _run(*self.switch, "ip", "link", "set", host.port, "nomaster")
        try:
            yield
        finally:
            for host in hosts:
                _run(*self.switch, "ip", "link", "set", host.port, "master", "bridge")

    @contextlib.contextmanager
    def cut_between(self, one: Host, other: Host) -> Iterator[None]:
        """For the block, packets between these two vanish; both reach all others."""
        pair = ((one, other), (other, one))
        for here, there in pair:
            here.ip("neigh", "replace", there.address, "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")
        try:
            yield
        finally:
            for here, there in pair:
                here.ip("neigh", "del", there.address, "dev", "eth0")


def unavailable() -> str | None:
    """Why there can be no hosts on this machine; None where there can."""
    if os.geteuid() != 0:
        return "hosts in network namespaces need root"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"hosts in network namespaces need {', '.join(missing)} (iproute2, util-linux)"
    if not HOME.is_dir():
        return f"hosts mount their directories at {HOME}, which is not there"
    tried = subprocess.run(["unshare", "--mount", "--uts", "--net", "--", "ip", "link", "add", "br0", "type", "bridge"])
    return None if tried.returncode == 0 else "this machine lets nobody make network namespaces with a bridge"


# -- what hosts of a cluster run


def start_zookeeper(host: Host) -> str:
    """A ZooKeeper of one server; gives its address, for `zookeeper.connect`."""
    settings = f"clientPort={ZOOKEEPER_PORT}\nclientPortAddress={host.address}\ndataDir={HOME}/zookeeper\n"
    host.outside(HOME / "zookeeper.properties").write_text(settings)
    server = host.serve("zookeeper", *PYKAFKA, "zookeeper", "start", f"{HOME}/zookeeper.properties")
    server.wait_for(str(ZOOKEEPER_PORT))
    return f"{host.name}:{ZOOKEEPER_PORT}"


def start_broker(host: Host, number: int, zookeeper: str, settings: Mapping[str, str] | None = None) -> Server:
    """A broker with this id, which is reached as `<host>:9092`."""
    given = {
        "broker.id": str(number),
        "zookeeper.connect": zookeeper,
        "listeners": f"PLAINTEXT://{host.address}:{BROKER_PORT}",
        "advertised.listeners": f"PLAINTEXT://{host.name}:{BROKER_PORT}",
        "log.dirs": str(HOME / "data"),
        **(settings or {}),
    }
    words = [word for name, value in given.items() for word in ("--override", f"{name}={value}")]
    server = host.serve(f"broker-{number}", *PYKAFKA, "broker", "start", *words)
    server.wait_for(" listening on ")
    return server


def start_master(host: Host) -> str:
    """A master of Spark's standalone cluster; gives its URL."""
    server = host.serve(
        "master",
        *_spark_class("org.apache.spark.deploy.master.Master"),
        *("--host", host.name, "--port", str(MASTER_PORT), "--webui-port", "8080"),
    )
    server.wait_for("I have been elected leader")
    return f"spark://{host.name}:{MASTER_PORT}"


def start_worker(
    host: Host, master: str, *, cores: int = 1, memory: str = "1g", env: Mapping[str, str] | None = None
) -> Server:
    """A worker of it. `env`: of the executors that it starts, too, such as PYSPARK_PYTHON."""
    server = host.serve(
        "worker",
        *_spark_class("org.apache.spark.deploy.worker.Worker"),
        *("--host", host.name, "--cores", str(cores), "--memory", memory, "--work-dir", str(HOME / "work"), master),
        env=env,
    )
    server.wait_for("Successfully registered with master")
    return server


def _spark_class(name: str) -> list[str]:
    """Of the installed Spark, whose own PySpark serves executors on hosts that have none."""
    import pyspark

    home = Path(pyspark.__file__).parent
    return ["env", f"SPARK_HOME={home}", "SPARK_DAEMON_MEMORY=256m", str(home / "bin" / "spark-class"), name]


def _hold(prepare: str) -> subprocess.Popen[bytes]:
    """A process in namespaces of its own, for others to enter; it has run `prepare` when this returns."""
    process = subprocess.Popen(
        ["unshare", "--mount", "--uts", "--net", "--", "sh", "-c", f"{prepare} && echo ready && exec sleep infinity"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    process.stdout.close()
    if said != b"ready\n":
        process.kill()
        process.wait()
        raise Unavailable(f"a host could not be made: {prepare}")
    return process


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode(errors='replace')}"


def _tail(out: bytes, err: bytes) -> str:
    return f"{out.decode(errors='replace')[-4000:]}\n{err.decode(errors='replace')[-4000:]}"
