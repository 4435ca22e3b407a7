"""`AutoCloseable`: what is closed at the end of a `with` block; named after Java's interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class AutoCloseable(ABC):
    @abstractmethod
    def close(self) -> None:
        """Free what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
