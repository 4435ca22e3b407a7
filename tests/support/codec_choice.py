"""The codec with and without its kernel, for tests and measurements that look at both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from broker.records import native

_KERNEL: Final = native.kernel

BUILT: Final = _KERNEL is not None
"""Whether there is a kernel: installed with a C compiler, and not switched off."""


@contextlib.contextmanager
def using(implementation: str) -> Iterator[None]:
    """Inside, the codec is "native", which must be `BUILT`, or "plain"."""
    before = native.kernel
    native.kernel = _KERNEL if implementation == "native" else None
    try:
        assert native.implementation() == implementation
        yield
    finally:
        native.kernel = before


def in_turn() -> Iterator[str]:
    """Each implementation there is, in use while the loop's body runs."""
    for implementation in ("native", "plain") if BUILT else ("plain",):
        with using(implementation):
            yield implementation
