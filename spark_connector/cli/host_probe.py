"""What `pykafka doctor --master` runs on each executor: `look` tells what is there, as JSON.

An executor may lack the package, or have another version of it. So this module goes there by value (the driver pickles
its functions, not their names), and knows the standard library only; what needs the package is imported where it is
used, and is told as missing where it is. It changes nothing but the probe files that the order names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

_CONNECT_S = 3.0  # for a broker's answer; a person waits
_AT_ONCE = 16  # brokers
_TASKS_NEED = ("spark_connector.read.fetch", "spark_connector.read.arrow_batches")
"""What a task imports to read."""
_API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
"""A request of version 0 with the number 7, for hosts without a client."""


class Order(NamedTuple):
    """What the driver asks. It is pickled as a plain tuple, because an executor may not know this class.

    `package`: ours, as pip names it. `known`: hosts that need not look again, but tell the time. `brokers`: name →
    advertised address. `client`: the properties that these are spoken to with. `place`: the directory of the probe
    files, its options, and what the driver's file there holds; a local directory is a path. `hold_s`: how long to keep
    the core, so that other tasks go to other executors.
    """

    package: str
    known: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    brokers: tuple[tuple[str, str], ...] = ()
    client: tuple[tuple[str, str], ...] = ()
    place: tuple[str, tuple[tuple[str, str], ...], str] | None = None
    hold_s: float = 0.0


DRIVERS_FILE = "driver"


def look(order: tuple[Any, ...]) -> str:
    """What a task sees: `host`, `task` (Spark's number of the attempt), `began` and `ended` in seconds since 1970 by
    this clock, and of a host that is not known yet, `python`, `executable`, `package`, `libraries`, `brokers`,
    `place`."""
    package, known, libraries, brokers, client, place, hold_s = order
    began, start = time.time(), time.monotonic()
    found: dict[str, Any] = {"host": socket.gethostname(), "task": _task_attempt(), "began": began}
    if found["host"] not in known:
        found["python"] = ".".join(map(str, sys.version_info[:3]))
        found["executable"] = sys.executable
        found["package"] = _package(package)
        found["libraries"] = {name: _version_of(name) for name in libraries}
        has_client = found["package"]["lacks"] is None
        ask = functools.partial(_broker, dict(client), has_client)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found["brokers"] = dict(zip((name for name, _ in brokers), pool.map(ask, brokers), strict=True))
        found["place"] = None if place is None else _place(f"{found['host']}-{os.getpid()}", *place)
    time.sleep(max(0.0, hold_s - (time.monotonic() - start)))
    return json.dumps({**found, "ended": time.time()})


def _task_attempt() -> int | None:
    context = sys.modules.get("pyspark")
    task = context.TaskContext.get() if context is not None else None
    return None if task is None else int(task.taskAttemptId())


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str) -> dict[str, Any]:
    """`version`: None where nothing tells it; `lacks`: why a task cannot import it; `kernel`: whether it is in C."""
    found: dict[str, Any] = {"version": _version_of(name), "lacks": None, "where": None, "kernel": None}
    try:
        for module in _TASKS_NEED:
            importlib.import_module(module)
        native = importlib.import_module("broker.records.native")
    except Exception as error:  # ImportError, and what a broken library raises
        found["lacks"] = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else str(error)
        return found
    found["where"] = os.path.dirname(os.path.dirname(os.path.dirname(native.__file__ or "")))
    found["kernel"] = native.kernel is not None or os.environ.get(native.NATIVE_VARIABLE) == "0"
    return found


def _broker(client: Mapping[str, str], has_client: bool, broker: tuple[str, str]) -> dict[str, Any]:
    """`ms` of its answer; or `error`; or `unknown`, if only a connection could be made."""
    address = broker[1]
    start = time.monotonic()
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as sock:
            is_plain = client.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
            if not has_client and is_plain:
                sock.settimeout(_CONNECT_S)
                sock.sendall(_API_VERSIONS)
                if sock.recv(8)[4:] != _API_VERSIONS[8:12]:
                    return {"error": f"what answers at {address} is no broker"}
    except socket.gaierror as error:
        return {"error": f"the name {host} has no address there: {error.strerror}"}
    except OSError as error:
        return {"error": f"no connection to {address}: {error}"}
    if not has_client and not is_plain:
        return {"unknown": f"{address} lets it connect; whether it may log in cannot be tried without the package"}
    if has_client:
        try:
            _log_in(client, address)
        except Exception as error:  # of the client, or of a library that its login needs
            return {"error": str(error).removeprefix("no broker of bootstrap.servers could be reached: ")}
    return {"ms": (time.monotonic() - start) * 1000}


def _log_in(client: Mapping[str, str], address: str) -> None:
    """Connect, log in and ask for the metadata, as a task does."""
    limit = str(int(_CONNECT_S * 1000))
    limits = {"request.timeout.ms": limit, "socket.connection.setup.timeout.ms": limit}
    settings = importlib.import_module("broker.client.client_settings").ClientSettings
    given = settings.from_properties({**client, **limits, "bootstrap.servers": address})
    with importlib.import_module("broker.client.cluster").Cluster(given, create_topics=False) as cluster:
        cluster.renew()


class _Files(NamedTuple):
    read: Callable[[str], bytes]
    write: Callable[[str, bytes], object]
    remove: Callable[[str], object]


def _place(name: str, directory: str, options: tuple[tuple[str, str], ...], token: str) -> dict[str, Any]:
    """`error`: what it may not do there, or `unknown`; `is_shared`: whether it has the driver's file; `left`: the name
    of the file that it has left for the driver to see and to remove."""
    try:
        files = _open_files(directory, dict(options))
    except ImportError as error:
        return {"unknown": f"without the package it cannot be opened there ({error})"}
    except Exception as error:  # of whatever library is behind it
        return {"error": f"cannot open it: {error}"}
    doing = "read"
    try:
        try:
            is_shared = files.read(DRIVERS_FILE) == token.encode()
        except FileNotFoundError:
            is_shared = False
        if not is_shared:
            return {"is_shared": False}  # and writes nothing, because nobody would remove it
        doing = "write"
        files.write(f"{name}.gone", token.encode())
        doing = "read back what it wrote"
        if files.read(f"{name}.gone") != token.encode():
            return {"error": "reads another file than it wrote", "is_shared": True}
        doing = "delete"
        files.remove(f"{name}.gone")
        doing = "write"
        files.write(name, token.encode())
    except Exception as error:  # of whatever library is behind it
        return {"error": f"may not {doing} there: {error}"}
    return {"is_shared": True, "left": name}


def _open_files(directory: str, options: Mapping[str, str]) -> _Files:
    if directory.startswith("/"):
        return _Files(
            functools.partial(_read, directory),
            functools.partial(_write, directory),
            lambda name: os.remove(os.path.join(directory, name)),
        )
    storage = importlib.import_module("broker.storage.storage").open_storage(directory, options)

    def write(name: str, data: bytes) -> None:
        with storage.open_output(name) as file:  # as a task writes its rows
            file.write(data)

    return _Files(storage.read, write, storage.remove)


def _read(directory: str, name: str) -> bytes:
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


def _write(directory: str, name: str, data: bytes) -> None:
    with open(os.path.join(directory, name), "wb") as file:
        file.write(data)
