"""The codec's optional C kernel (`_kernel.c`): whether it is in use, and its functions.

`pip install` builds it if there is a C compiler. Without it, or with `PYKAFKA_NATIVE=0` in the environment, loops in
plain Python do the same, slowly, with the same results and errors.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa


Buffer = Any
"""Whatever has the buffer protocol: bytes, memoryview, numpy array, pa.Buffer."""

BinaryColumn = tuple[Buffer, Buffer | None, Buffer | None, int]
"""Edges, validity, data and first row of an Arrow binary array."""

Chunk = tuple[int, BinaryColumn | None, BinaryColumn, Buffer, tuple[Buffer, BinaryColumn, BinaryColumn] | None]
"""Rows, key, value, times, and headers: the first header of each row, names and values."""

KERNEL_VERSION: Final = 10
"""The `VERSION` that a kernel must have. Raise it here and in `_kernel.h` with every change of the C sources."""

NATIVE_VARIABLE: Final = "PYKAFKA_NATIVE"
"""Environment variable, read at import: `0` means do not use the kernel."""

SLOW: Final = "the codec runs in plain Python, many times slower"
NOT_BUILT: Final = (
    "no C compiler was found when pykafka was installed; install one (Debian: apt-get install gcc libc6-dev "
    "python3-dev) and install pykafka again"
)

logger = logging.getLogger(__name__)


class ColumnsDecoder(Protocol):
    """Of values, row by row; see `decode_columns` of `_kernel_columns.c`."""

    def __call__(
        self,
        code: Buffer,
        columns: Buffer,
        state: Buffer,
        buffers: list[list[Buffer | None]],
        values: BinaryColumn,
        rows: int,
        begin: int,
        refused: Buffer,
        /,
    ) -> int: ...


class Kernel(Protocol):
    """The functions of `_kernel.c`, documented there. They raise ValueError for malformed batches."""

    def scan(self, chunk: Buffer, rows: Buffer | None, /) -> tuple[int, int, int]: ...

    def first_bad_crc(self, chunk: Buffer, rows: Buffer, /) -> int:
        """Only where `crc_in_kernel()`."""

    def plain_rows(self, chunk: Buffer, low: int, high: int, /) -> tuple[int, int] | None:
        """Only where `crc_in_kernel()`, as the next."""

    def decode_plain(
        self,
        chunk: Buffer,
        low: int,
        high: int,
        check: bool,
        rows: int,
        in_place: bool,
        buffers: tuple[Buffer | None, ...],
        /,
    ) -> Sequence[int]: ...

    def check_records(self, piece: Buffer, state: Buffer, faults: Buffer, /) -> None: ...

    def count_headers(self, parts: list[Buffer], sections: Buffer, /) -> int: ...

    def decode(
        self, parts: list[Buffer], sections: Buffer, low: int, high: int, buffers: tuple[Buffer | None, ...], /
    ) -> Sequence[int]: ...

    def encode(
        self,
        chunks: list[Chunk],
        slots: Buffer | None,
        slot_count: int,
        deltas: int,
        room: int,
        largest: int,
        framed: tuple[int, int, int, Buffer] | None,
        /,
    ) -> list[tuple[int, int, int, int, bytes]]: ...

    decode_avro: ColumnsDecoder
    decode_json: ColumnsDecoder

    def json_objects(
        self,
        rows: int,
        prefix: bytes,
        ignore_nulls: bool,
        fields: list[tuple[int, bytes, bytes, bytes, Buffer | None, Buffer | None, Buffer | None, bytes, int, int]],
        /,
    ) -> tuple[bytes, bytes] | None: ...

    def partitions(self, rows: int, keys: BinaryColumn, partitions: int, out: Buffer, /) -> None: ...

    def protobuf_decode(
        self,
        values: BinaryColumn,
        rows: int,
        skips: Buffer | None,
        program: Buffer,
        symbols: Buffer,
        statuses: Buffer,
        /,
    ) -> list[tuple[int, bytes, bytes, bytes | None]]: ...

    def protobuf_encode(
        self,
        rows: int,
        prefix: bytes,
        nodes: Buffer,
        fields: Buffer,
        buffers: list[tuple[Buffer | None, Buffer | None, Buffer | None, Buffer | None]],
        /,
    ) -> tuple[bytes, bytes]: ...


def _load() -> Kernel | None:
    """The first kernel that fits these sources. Warns if there is none: pip does not show that a build failed."""
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    unfit = []
    for path in _built_kernels():
        try:
            module = _import_file(path)
        except ImportError as error:  # built for another machine or Python
            unfit.append(f"{path} cannot be loaded ({error})")
            continue
        version = getattr(module, "VERSION", 0)
        if version == KERNEL_VERSION:
            return cast(Kernel, module)
        unfit.append(f"{path} was built from other sources (version {version}, needed {KERNEL_VERSION})")
    if unfit:
        logger.warning(f"{SLOW}: %s; install pykafka again to build its kernel", "; ".join(unfit))
    elif not _started_by_spark():  # its workers are many
        logger.warning(f"{SLOW}: {NOT_BUILT}, or set {NATIVE_VARIABLE}=0 to go without")
    return None


def _started_by_spark() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _built_kernels() -> Iterator[Path]:
    """Kernels beside this file, then those of other installations on `sys.path`.

    Python that runs in a clone imports the clone's sources, although `pip install .` has built the kernel into
    site-packages.
    """
    places = [Path(__file__).parent, *(Path(entry, "broker", "records") for entry in sys.path)]
    for place in dict.fromkeys(place.resolve() for place in places):
        for suffix in EXTENSION_SUFFIXES:
            path = place / f"_kernel{suffix}"
            if path.is_file():
                yield path


def _import_file(path: Path) -> ModuleType:
    loader = ExtensionFileLoader("broker.records._kernel", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


kernel: Kernel | None = _load()
"""None if plain Python does the work."""


def implementation() -> Literal["native", "plain"]:
    """What encodes and decodes columns of records in this process."""
    return "plain" if kernel is None else "native"


def crc_in_kernel() -> bool:
    """Whether the kernel computes CRC-32C, which needs a processor with an instruction for it."""
    return hasattr(kernel, "first_bad_crc")


def column_buffers(column: pa.Array) -> BinaryColumn:
    """The buffers of a binary or string array, as the kernel takes them."""
    validity, edges, data = column.buffers()
    return edges, validity, data, column.offset
