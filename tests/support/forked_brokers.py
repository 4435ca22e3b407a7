"""Brokers that start in a tenth of the processor time: forked from a process that has imported the broker already.

Tests start brokers about a thousand times, and nine tenths of a start are imports. A forked broker is a process like
any other: it has its own session, its own files, and is killed, paused and waited for by its number. Only where the
environment says something else to Python or to the loader of libraries is a broker started the ordinary way.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.support.source_tree import ROOT

_REQUEST = 1 << 20
"""Bytes of a request at most."""


class ForkedProcess:
    """A child of the nursery, with what is used of a `subprocess.Popen`."""

    def __init__(self, status: IO[bytes], stdin: IO[bytes]) -> None:
        self._status = status
        self.stdin = stdin
        self.pid = int(status.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _ended(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._status], [], [], timeout)[0]:
            self._code = int(self._status.readline() or -signal.SIGKILL)  # nothing: the nursery was killed, too
            self._status.close()
        return self._code


class Nursery:
    """The parent of forked brokers, a process of its own; it ends with the process that made it."""

    def __init__(self) -> None:
        self._shape = _shape(os.environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._control, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True
            )

    def close(self) -> None:
        """End it. Brokers that still run stop when this process ends, with their standard input."""
        self._control.close()
        self.process.wait()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a Python that is started with `environment` would begin as the nursery has begun."""
        return self.process.poll() is None and _shape(environment) == self._shape

    def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> ForkedProcess:
        """Run `python arguments` in the working directory of this process."""
        request = {"arguments": list(arguments), "environment": dict(environment), "directory": os.getcwd()}
        child_in, our_in = os.pipe()
        our_status, child_status = os.pipe()
        try:
            handed = [child_in, stdout.fileno(), stderr.fileno(), child_status]
            socket.send_fds(self._control, [json.dumps(request).encode()], handed)
        finally:
            os.close(child_in)
            os.close(child_status)
        return ForkedProcess(os.fdopen(our_status, "rb", buffering=0), os.fdopen(our_in, "wb", buffering=0))


def start(
    arguments: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Run `python arguments`, which begin with `-m module`; standard input is a pipe."""
    if sys.platform == "linux":  # others have no packets between processes
        nursery = _nursery(os.getpid())
        if nursery.fits(environment):
            return nursery.fork(arguments, environment, stdout, stderr)
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        env=dict(environment),
    )


@functools.cache
def _nursery(_process: int) -> Nursery:
    nursery = Nursery()
    atexit.register(nursery.close)
    return nursery


def cpu_s() -> float:
    """Processor time of the brokers that were forked and have ended."""
    if not _nursery.cache_info().currsize:
        return 0.0
    stat = Path(f"/proc/{_nursery(os.getpid()).process.pid}/stat").read_text(encoding="utf-8")
    fields = stat.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _shape(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python and the loader of libraries read of an environment before the first line of a program."""
    read = {key: value for key, value in environment.items() if key.startswith(("PYTHON", "LD_", "MALLOC_"))}
    read.pop("PYTHONUNBUFFERED", None)
    return read


# --- the nursery's side


def _serve(control: socket.socket) -> None:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _report_ends(children)
        if control.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(control, _REQUEST, 4)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (control.fileno(), wake_read, wake_write, *children.values()):
                    os.close(fd)
                _become(json.loads(message), fds)
            for fd in fds[:3]:
                os.close(fd)
            children[pid] = fds[3]
            os.write(fds[3], f"{pid}\n".encode())


def _report_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(BrokenPipeError), os.fdopen(children.pop(pid), "wb") as ended:
            ended.write(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """In a child: be what `python arguments` would be."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        _, module, *words = request["arguments"]
        sys.orig_argv = [sys.executable, *request["arguments"]]
        sys.argv = [module, *words]
        del sys.modules["__main__"]
        gc.enable()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as `broker start` does
    gc.disable()
    importlib.import_module("broker.tools.run_broker")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        _serve(ours)
