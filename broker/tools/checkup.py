"""What `pykafka doctor` looks at on this machine: each check returns what it found, and the command that mends it.

A check starts nothing that stays and changes nothing. It asks the machine through arguments where a test must answer.
What it cannot look at is unknown, and never ok. Which packages there must be, and for which extra, is told by the
metadata of the installation.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import operator
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from broker.errors import ConfigError
from broker.records import native
from broker.verdict import Verdict
from broker.zookeeper.java import MINIMUM_JAVA, find_java, java_version

State = Literal["ok", "warning", "error", "unknown"]

PACKAGE: Final = "pykafka-spark"
_SPARKS: Final = ((4, 0), (4, 3))
"""The oldest and the newest PySpark with which the connector was tested."""
_INSTALL_JAVA: Final = "apt-get install default-jre-headless"
FOR_DEVELOPERS: Final = frozenset({"docs", "test", "mutants", "oldest", "bench", "dist"})
"""The extras that `make` installs."""
_NO_METADATA: Final = "pykafka is not installed here, so nothing says which packages it needs"
_ENOUGH_FILES: Final = 65_536
"""Connections and segments need them; Kafka's advice is 100,000."""
_FEW_FILES: Final = 1024
_LITTLE_DISK: Final = 1 << 30
_NO_DISK: Final = 100 << 20
_ANSWER_S: Final = 20.0
"""How long another interpreter has to import pykafka."""
_PORTS: Final = {9092: "pykafka broker start", 2181: "the ZooKeeper that it starts"}
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_BOUND: Final = re.compile(r"(>=|<=|==|!=|>|<)\s*([\d.]+)")
_OF_EXTRA: Final = re.compile(r"""\s*extra\s*==\s*['"]([\w.-]+)['"]\s*""")
_COMPARED: Final = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_ASKED_OF_SPARKS_PYTHON: Final = """
import importlib, json, sys
found = {"version": list(sys.version_info[:3]), "executable": sys.executable, "missing": None}
try:
    for name in ("pyspark", "pyspark_pykafka", "spark_connector.source"):
        importlib.import_module(name)
except ImportError as error:
    found["missing"] = str(error)
print(json.dumps(found))
"""


class Finding(NamedTuple):
    """`mend`: a command, or what to do, where something is not as it should be."""

    check: str
    state: State
    says: str
    mend: str = ""

    @property
    def verdict(self) -> Verdict:
        """A warning is no mismatch: what it warns of works."""
        return {"error": Verdict.MISMATCH, "unknown": Verdict.UNKNOWN}.get(self.state, Verdict.OK)


def look_at_machine(directory: Path) -> Iterable[Finding]:
    """Every check of this machine; `directory` is where brokers keep their data."""
    yield _seen("python", python)
    yield _seen("pyspark", pyspark)
    yield _seen("spark's python", lambda: spark_python(os.environ))
    yield _seen("java", java)
    yield _seen("kernel", kernel)
    yield _seen("packages", packages)
    yield _seen("extras", extras)
    yield _seen("host name", host_name)
    for number in _PORTS:
        yield _seen(f"port {number}", functools.partial(port, number))
    yield _seen("open files", lambda: open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    yield _seen("disk", lambda: disk(directory))


def _seen(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except OSError as error:
        return Finding(check, "unknown", f"could not be looked at: {error}")


def python() -> Finding:
    version, where = ".".join(map(str, sys.version_info[:3])), sys.executable
    try:
        says = f"pykafka {importlib.metadata.version(PACKAGE)} on Python {version}, {where}"
    except importlib.metadata.PackageNotFoundError:
        says = f"Python {version}, {where}, in which pykafka is not installed"
        return Finding("python", "error", says, "pip install . (in the clone)")
    if not sys.platform.startswith("linux"):
        return Finding("python", "warning", f"{says}; brokers were tested on Linux only", "run brokers in a container")
    return Finding("python", "ok", says)


def pyspark() -> Finding:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec("pyspark")
        if spec is None:
            return Finding("pyspark", "error", "not installed", "pip install 'pyspark>=4.0'")
        return Finding("pyspark", "ok", f"found in {spec.origin}, not installed by pip")
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    oldest, newest = (".".join(map(str, one)) for one in _SPARKS)
    if release < _SPARKS[0]:
        says = f"{version} is too old: the connector needs {oldest} or newer"
        return Finding("pyspark", "error", says, f"pip install 'pyspark>={oldest}'")
    if release > _SPARKS[1]:
        return Finding("pyspark", "warning", f"{version} was not tested; {oldest} to {newest} were")
    return Finding("pyspark", "ok", version)


def spark_python(environment: Mapping[str, str]) -> Finding:
    """The interpreter that Spark would start its Python workers with, asked in an empty directory."""
    check, mend = "spark's python", f"export PYSPARK_PYTHON={sys.executable}"
    named = environment.get("PYSPARK_PYTHON")
    how = "PYSPARK_PYTHON" if named else "python3 of the PATH, because PYSPARK_PYTHON is not set"
    program = shutil.which(named or "python3")
    if program is None:
        return Finding(check, "error", f"there is no {named or 'python3'} ({how})", mend)
    with tempfile.TemporaryDirectory() as empty:
        try:
            command = [program, "-c", _ASKED_OF_SPARKS_PYTHON]
            done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=_ANSWER_S)
            found = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            return Finding(check, "error", f"{program} ({how}) does not answer: {error}", mend)
    version = ".".join(map(str, found["version"]))
    if found["version"][:2] != list(sys.version_info[:2]):
        ours = ".".join(map(str, sys.version_info[:2]))
        return Finding(check, "error", f"{program} ({how}) is Python {version}; the driver's is {ours}", mend)
    if found["missing"]:
        return Finding(check, "error", f"{program} ({how}) has no pykafka: {found['missing']}", mend)
    return Finding(check, "ok", f"{program} ({how}), Python {version}, has pykafka")


def java() -> Finding:
    try:
        program = find_java(for_spark=True)
        return Finding("java", "ok", f"{java_version(program)}, {program}")
    except ConfigError as error:
        reason = str(error).partition(": ")[0]
    try:
        packaged = find_java()
    except ConfigError:
        says = f"{reason}: Spark and ZooKeeper need Java {MINIMUM_JAVA} or newer"
        return Finding("java", "error", says, f"{_INSTALL_JAVA}; without Java: pykafka broker start --standalone")
    return Finding("java", "warning", f"{reason}: ZooKeeper runs on {packaged}, Spark does not", _INSTALL_JAVA)


def kernel() -> Finding:
    if native.kernel is not None:
        return Finding("kernel", "ok", "the codec runs in C")
    if os.environ.get(native.NATIVE_VARIABLE) == "0":
        return Finding("kernel", "ok", f"switched off by {native.NATIVE_VARIABLE}=0; the codec runs in plain Python")
    mend = "apt-get install gcc libc6-dev python3-dev, then pip install --force-reinstall --no-deps ."
    return Finding("kernel", "warning", f"not built: {native.SLOW}", mend)


def packages() -> Finding:
    needed = _needed_by_extra(_requirements()).get(None)
    if needed is None:
        return Finding("packages", "unknown", _NO_METADATA, "pip install . (in the clone)")
    lacks = _lacks(needed)
    if lacks:
        says = f"not installed, or not of the version that is needed: {', '.join(map(str, lacks))}"
        return Finding("packages", "error", says, f"pip install {shlex.join(one.wanted for one in lacks)}")
    return Finding("packages", "ok", "all that pykafka needs is installed")


def extras() -> Finding:
    """Which extras are installed. None of them is needed by everybody, so a missing one is no fault.

    One whose packages are there in another version than it needs is a warning: it was wanted, and may fail.
    """
    needed = _needed_by_extra(_requirements())
    if not needed:
        return Finding("extras", "unknown", _NO_METADATA, "pip install . (in the clone)")
    lacks = {name: _lacks(needed[name]) for name in needed if name and name not in FOR_DEVELOPERS}
    installed = [name for name, lacking in lacks.items() if not lacking]
    left = [name for name, lacking in lacks.items() if lacking]
    others = {name: [one for one in lacks[name] if one.has] for name in left}
    unfit = [f"{name} has {', '.join(map(str, has))}" for name, has in others.items() if has]
    says = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(left) or 'none'}"
    wanted = f"[{','.join(left)}]"
    mend = f"pip install '{PACKAGE}{wanted}' (in a clone '.{wanted}')" if left else ""
    if unfit:
        return Finding("extras", "warning", f"{says}; {'; '.join(unfit)}", mend)
    return Finding("extras", "ok", says, mend)


def host_name() -> Finding:
    name = socket.gethostname()
    try:
        return Finding("host name", "ok", f"{name} is {socket.gethostbyname(name)}")
    except OSError as error:
        mend = f"export SPARK_LOCAL_IP=127.0.0.1; or add '127.0.1.1 {name}' to /etc/hosts"
        return Finding("host name", "warning", f"{name} has no address, which Spark asks for: {error}", mend)


def port(number: int, connect: Callable[[int], str | None] | None = None) -> Finding:
    """Whether the port is free for its usual owner; `connect` returns what answers there, None if nothing listens."""
    check, owner = f"port {number}", _PORTS.get(number, "")
    answer = (connect or _who_answers)(number)
    if answer is None:
        return Finding(check, "ok", f"free for {owner}")
    if answer:
        look = " (pykafka doctor --bootstrap-server localhost:9092 looks at it)" if answer == "a broker" else ""
        return Finding(check, "ok", f"{answer} answers there{look}")
    setting = "listeners=PLAINTEXT://127.0.0.1:9093" if number == 9092 else "embedded.zookeeper.port=0"
    says = f"taken by something else: {owner} needs another"
    return Finding(check, "warning", says, f"pykafka broker start --override {setting}")


def open_files(limit: int) -> Finding:
    """`limit`: the hard limit, to which a broker raises its soft one."""
    says = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    if limit == resource.RLIM_INFINITY or limit >= _ENOUGH_FILES:
        return Finding("open files", "ok", says)
    state: State = "error" if limit < _FEW_FILES else "warning"
    mend = f"LimitNOFILE={_ENOUGH_FILES} in the systemd unit; or ulimit -Hn {_ENOUGH_FILES} as root"
    return Finding("open files", state, f"a broker may open {says}, for connections and segments", mend)


def disk(directory: Path, free: Callable[[Path], int] | None = None) -> Finding:
    """The space and the rights below `directory`, which a broker's start would make."""
    place = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists())
    if not os.access(place, os.W_OK):
        mend = "start the broker elsewhere, or --override log.dirs=DIR"
        return Finding("disk", "error", f"{place} may not be written, so no broker can have {directory}", mend)
    left = (free or (lambda path: shutil.disk_usage(path).free))(place)
    says = f"{left / 2**30:,.1f} GiB free for {directory}"
    if left >= _LITTLE_DISK:
        return Finding("disk", "ok", says)
    state: State = "error" if left < _NO_DISK else "warning"
    return Finding("disk", state, says, "free space; or --override log.dirs=DIR on a larger disk")


class _Lack(NamedTuple):
    """A requirement that is not met; `has` is the version that is there instead."""

    wanted: str
    has: str | None

    def __str__(self) -> str:
        return f"{self.wanted} (there is {self.has})" if self.has else self.wanted


def _needed_by_extra(requirements: Iterable[str]) -> dict[str | None, list[str]]:
    """Extra → what it needs, in the order of the metadata; None → what all need. Empty without metadata."""
    needed: dict[str | None, list[str]] = {}
    for requirement in requirements:
        wanted, _, marker = requirement.partition(";")
        extra = _OF_EXTRA.search(marker)
        needed.setdefault(extra[1] if extra else None, []).append(wanted.strip())
    return needed


def _lacks(requirements: Iterable[str]) -> list[_Lack]:
    """Those that are not met. Extras are followed: our own, and those of other packages."""
    lacks: list[_Lack] = []
    for wanted in requirements:
        match = _REQUIREMENT.match(wanted)
        if match is None:
            continue
        name, extras, bounds = match[1], re.findall(r"[\w.-]+", match[2] or ""), match[3]
        needed = _requirements_of(name) if extras else {}
        if name == PACKAGE:
            lacks += [one for extra in extras for one in _lacks(needed.get(extra, ()))]
            continue
        has = _version_of(name)
        if has is None or not all(_COMPARED[how](*_padded(has, bound)) for how, bound in _BOUND.findall(bounds)):
            lacks.append(_Lack(wanted, has))
        elif any(_lacks(needed.get(extra, ())) for extra in extras):
            lacks.append(_Lack(wanted, None))
    return lacks


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "999" if name == "pyspark" and importlib.util.find_spec("pyspark") else None  # found, and not by pip


def _requirements() -> list[str]:
    return _requires(PACKAGE)


def _requirements_of(name: str) -> dict[str | None, list[str]]:
    return _needed_by_extra(_requirements() if name == PACKAGE else _plain(_requires(name)))


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _plain(requirements: Iterable[str]) -> list[str]:
    """Without those of another Python or system, which their markers say."""
    return [one for one in requirements if ";" not in one or _OF_EXTRA.fullmatch(one.partition(";")[2])]


def _padded(*versions: str) -> list[tuple[int, ...]]:
    """Their numbers, as many of each: 1.0 is 1."""
    found = [re.match(r"\d+(?:\.\d+)*", version) for version in versions]
    numbers = [[int(part) for part in match[0].split(".")] if match else [0] for match in found]
    longest = max(map(len, numbers))
    return [(*one, *[0] * (longest - len(one))) for one in numbers]


def _who_answers(number: int) -> str | None:
    """A broker, a ZooKeeper, "" for anything else, None for nobody. Raises OSError where nobody can be asked."""
    try:
        with socket.create_connection(("127.0.0.1", number), timeout=1) as sock:
            sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff" if number == 9092 else b"srvr")
            answer = sock.recv(16)
    except ConnectionRefusedError:
        return None
    except (TimeoutError, ConnectionError):
        return ""
    if number == 9092:
        return "a broker" if answer[4:8] == b"\0\0\0\x07" else ""
    return "a ZooKeeper" if answer.startswith((b"Zookeeper", b"This ZooKeeper", b"srvr is not")) else ""
