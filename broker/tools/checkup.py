"""What `pykafka doctor` looks at on this machine: each check returns what it found, and the command that mends it.

A check starts nothing that stays and changes nothing. It asks the machine through arguments where a test must answer.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
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
from broker.zookeeper.java import MINIMUM_JAVA, find_java, java_version

State = Literal["ok", "warning", "error"]

PACKAGE: Final = "pykafka-spark"
_SPARKS: Final = ((4, 0), (4, 3))
"""The oldest and the newest PySpark with which the connector was tested."""
_INSTALL_JAVA: Final = "apt-get install default-jre-headless"
_EXTRAS_OF_USERS: Final = ("ui", "connect", "delta", "sql", "java", "oauth", "pkcs12", "demo", "notebook")
_ENOUGH_FILES: Final = 65_536
"""Connections and segments need them; Kafka's advice is 100,000."""
_FEW_FILES: Final = 1024
_LITTLE_DISK: Final = 1 << 30
_NO_DISK: Final = 100 << 20
_ANSWER_S: Final = 20.0
"""How long another interpreter has to import pykafka."""
_PORTS: Final = {9092: "pykafka broker start", 2181: "the ZooKeeper that it starts"}
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
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


def look_at_machine(directory: Path) -> Iterable[Finding]:
    """Every check of this machine; `directory` is where brokers keep their data."""
    yield python()
    yield pyspark()
    yield spark_python(os.environ)
    yield java()
    yield kernel()
    yield packages()
    yield extras()
    yield host_name()
    yield from (port(number) for number in _PORTS)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield disk(directory)


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
    missing = _missing_of(None)
    if missing:
        says = f"not installed, or too old: {', '.join(missing)}"
        return Finding("packages", "error", says, f"pip install {shlex.join(missing)}")
    return Finding("packages", "ok", "all that pykafka needs is installed")


def extras() -> Finding:
    """Which extras are installed. None of them is needed by everybody, so a missing one is no fault."""
    there = {name: not _missing_of(name) for name in _EXTRAS_OF_USERS}
    installed = [name for name, all_there in there.items() if all_there]
    left = [name for name, all_there in there.items() if not all_there]
    says = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(left) or 'none'}"
    wanted = f"[{','.join(left)}]"
    return Finding("extras", "ok", says, f"pip install '{PACKAGE}{wanted}' (in a clone '.{wanted}')" if left else "")


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


def _missing_of(extra: str | None) -> list[str]:
    """The requirements of pykafka, or of one of its extras, that are not met. Extras of extras are followed."""
    missing = []
    for requirement in _requirements():
        wanted, _, marker = requirement.partition(";")
        named = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        if (named[1] if named else None) != extra:
            continue
        match = _NAME.match(wanted)
        name = match[0] if match else wanted
        if name == PACKAGE:
            inner = re.search(r"\[([\w,-]+)\]", wanted)
            missing += [one for part in (inner[1].split(",") if inner else []) for one in _missing_of(part)]
            continue
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if not (name == "pyspark" and importlib.util.find_spec("pyspark")):
                missing.append(wanted.strip())
        else:
            oldest = re.search(r">=\s*([\d.]+)", wanted)
            if oldest and _numbers(installed) < _numbers(oldest[1]):
                missing.append(wanted.strip())
    return missing


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        del numbers[-1]  # 1.0 is 1
    return tuple(numbers)


def _who_answers(number: int) -> str | None:
    """A broker, a ZooKeeper, "" for anything else, None for nobody."""
    try:
        with socket.create_connection(("127.0.0.1", number), timeout=1) as sock:
            sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff" if number == 9092 else b"srvr")
            answer = sock.recv(16)
    except ConnectionRefusedError:
        return None
    except OSError:
        return ""
    if number == 9092:
        return "a broker" if answer[4:8] == b"\0\0\0\x07" else ""
    return "a ZooKeeper" if answer.startswith((b"Zookeeper", b"This ZooKeeper", b"srvr is not")) else ""
