"""How `pykafka cluster restart-broker` asks the running `pykafka cluster start`: by files in its directory.

`cluster start` holds a lock on `cluster.lock`, so that a second one cannot take the same directory, and a request finds
out that nobody is there. A request is a file `restart-ID`, its answer the file `restarted-ID`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from broker.durable_files import write_atomically
from broker.errors import ConfigError, PykafkaError

_LOCK = "cluster.lock"
_LOOK_EVERY_S = 0.1
_REQUEST = re.compile(r"restart-(\d+)")


@contextlib.contextmanager
def exclusively(directory: Path) -> Iterator[None]:
    """Hold the directory for one `cluster start`, and forget what was asked of an earlier one. Raises PykafkaError."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        if not _taken(lock.fileno()):
            raise PykafkaError(f"a cluster runs on {directory} already; give another --dir")
        for name in os.listdir(directory):
            if _REQUEST.fullmatch(name):
                (directory / name).unlink()
        yield


def serve_restarts(directory: Path, restart: Callable[[int], str]) -> None:
    """Call `restart(broker id)` for each request, and leave what it returns, or its PykafkaError, as the answer."""
    for name in os.listdir(directory):
        request = _REQUEST.fullmatch(name)
        if request is None:
            continue
        id = int(request[1])
        try:
            answer = f"ok {restart(id)}"
        except PykafkaError as error:
            answer = f"failed {error}"
        write_atomically(directory / f"restarted-{id}", answer.encode())
        (directory / name).unlink(missing_ok=True)


def ask_to_restart(directory: Path, id: int, timeout_s: float) -> str:
    """Have the cluster on `directory` start broker `id` again; what it says of it. Raises PykafkaError, ConfigError."""
    if not _runs(directory):
        raise ConfigError(f"no cluster runs on {directory}: start one with pykafka cluster start --dir {directory}")
    request, answer = directory / f"restart-{id}", directory / f"restarted-{id}"
    answer.unlink(missing_ok=True)
    request.touch()
    deadline = time.monotonic() + timeout_s
    while not answer.exists():
        if not _runs(directory) or time.monotonic() > deadline:
            request.unlink(missing_ok=True)
            raise PykafkaError(f"the cluster on {directory} has not started broker {id} within {timeout_s:g} s")
        time.sleep(_LOOK_EVERY_S)
    outcome, _, said = answer.read_text().partition(" ")
    answer.unlink(missing_ok=True)
    if outcome != "ok":
        raise PykafkaError(said)
    return said


def _runs(directory: Path) -> bool:
    try:
        with (directory / _LOCK).open() as lock:
            return not _taken(lock.fileno())
    except FileNotFoundError:
        return False


def _taken(lock: int) -> bool:
    """Whether the lock was free, and is ours now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
