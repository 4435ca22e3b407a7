"""Tasks do without pandas, which pyarrow imports as soon as it converts a first value of Python's.

That happens in writes, in loads, and in reads that decode or filter. The import takes a third of a second of the
processor in each new Python worker, and makes it 40 MB larger, while no value of ours is an object of pandas. Spark
itself has pyarrow convert a value after each write: the task's message.

Nothing is hidden from others. Outside of the blocks here pandas can be imported as ever. pyarrow remembers that it has
not found pandas, though, and would then take an array of pandas for any sequence. So it is told as soon as anybody in
this process imports pandas; before that there are no objects of pandas. What is converted *to* pandas looks again by
itself. `_pandas_api` is a private name of pyarrow's: where it is missing, pandas is imported as ever.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

from spark_connector.spark_worker import in_spark_worker

_PANDAS: Final = "pandas"


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """In a Python worker of Spark's, pyarrow does not import pandas in this block. Nobody else can either, so no code
    of a user's may run in it."""
    if _PANDAS in sys.modules or not in_spark_worker() or not hasattr(pa.lib, "_pandas_api"):
        yield
        return
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    before, _watch.hides = _watch.hides, True
    try:
        _ = pa.lib._pandas_api.have_pandas  # looks now, because `_Telling` would wait for a first look for ever
        yield
    finally:
        _watch.hides = before


def each_without_pandas(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches`, each made without pandas. Who takes them may import it."""
    while True:
        with without_pandas():
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def next_array_without_pandas() -> None:
    """The next call of `pyarrow.array` in this process, which is Spark's for the message of a task that has written,
    does not import pandas."""
    array = pa.array

    def once(*args: Any, **kwargs: Any) -> Any:
        pa.array = array
        with without_pandas():
            return array(*args, **kwargs)

    if _PANDAS not in sys.modules and in_spark_worker():
        pa.array = once


class _Watch(MetaPathFinder):
    """Sees when pandas is imported, and refuses it while it `hides` it."""

    hides = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _PANDAS:
            return None
        if self.hides:
            return ModuleSpec(name, _refusing)  # who only asks whether it is installed gets a true answer
        at = sys.meta_path.index(self)
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(at, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader)
        return spec


class _Refusing(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ModuleNotFoundError(f"{spec.name} is not imported by a task of pykafka's", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not called."""


_watch, _refusing = _Watch(), _Refusing()


class _Telling(Loader):
    """Loads as `loader` does, and tells pyarrow."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None, "importlib sets it"
        module.__loader__ = spec.loader = self._loader
        self._loader.exec_module(module)
        with contextlib.suppress(ImportError):  # of a pandas that is too old for pyarrow
            assert pa.lib._pandas_api.compat
