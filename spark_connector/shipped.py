"""What goes to Spark's executors, and how they open it: by a function that goes along.

Spark pickles our classes by their names. An executor without pykafka would fail in its unpickling, where no code of
ours runs, and one with another release would take a plan for what it does not mean. So what is sent is wrapped:
`opened` is pickled by its code, which needs the standard library, compares the releases, and says
which interpreter on which host lacks what.

What Spark refuses before (no interpreter, no PySpark, another Python) is in outages.py.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import socket
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark import cloudpickle

_PACKAGES = ("broker", "spark_connector")


def shipped(make: Callable[..., object], *arguments: object) -> tuple[object, ...]:
    """For `__reduce__`: what is unpickled is `make(*arguments)`, by this release of pykafka only."""
    pyarrow = getattr(sys.modules.get("pyarrow"), "__version__", "")
    sent = cloudpickle.dumps((make, arguments))  # type: ignore[no-untyped-call]
    return opened, (sent, code_digest(), pyarrow)


@functools.cache
def code_digest() -> int:
    """Of the names and sizes of our modules. A release's number takes longer to find, and a clone keeps it."""
    return zlib.crc32(repr(sorted(_modules(Path(__file__).parent.parent))).encode())


def _modules(root: Path) -> Iterator[tuple[str, int]]:
    """(path, bytes) of each module below `root`, a directory or a zip."""
    if root.is_file():
        with zipfile.ZipFile(root) as archive:
            for member in archive.infolist():
                if member.filename.startswith(tuple(f"{name}/" for name in _PACKAGES)):
                    yield from _module(member.filename, member.file_size)
        return
    start, waiting = len(str(root)) + 1, [str(root / package) for package in _PACKAGES]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                else:
                    yield from _module(entry.path[start:], entry.stat().st_size)


def _module(path: str, size: int) -> Iterator[tuple[str, int]]:
    if path.endswith(".py"):
        yield path, size


def opened(sent: bytes, digest: int, pyarrow: str) -> object:
    """What `shipped` was given. Raises ImportError where this Python cannot run it as the sender means it."""
    try:
        package = importlib.import_module("spark_connector")
        try:
            found = importlib.import_module("spark_connector.shipped").code_digest()
        except ModuleNotFoundError as error:
            if error.name != "spark_connector.shipped":
                raise
            found = None  # an older release
        if found == digest:
            make, arguments = pickle.loads(sent)
            return make(*arguments)
        fault = f"has another release of pykafka than the driver, in {os.path.dirname(package.__file__ or '')}"
    except ModuleNotFoundError as error:
        fault = f"has no module {error.name!r}, which pykafka needs"
    except ImportError as error:  # packages for another Python, or another system
        fault = f"cannot import what pykafka needs ({str(error).strip().splitlines()[0]})"
    except Exception as error:
        there = getattr(sys.modules.get("pyarrow"), "__version__", pyarrow)
        if there == pyarrow:
            raise
        fault = f"has pyarrow {there}, which cannot read what the driver sent with pyarrow {pyarrow} ({error})"
    if getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "").startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # this process of Spark's ends with the error
    raise ImportError(
        f"Spark's executor on host {socket.gethostname()} runs its Python code with {sys.executable} (Python "
        f"{sys.version.split()[0]}), which {fault}: give executors what the driver has; `pykafka pack` makes an "
        "archive of it and says what to set"
    )


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
