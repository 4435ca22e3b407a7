"""A store of metadata that answers some writes and then no more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.errors import ConnectionFailed
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.operations import Operation


class FailingStore(LocalStore):
    """In place of a ZooKeeper."""

    writes_left = 1_000_000

    def transaction(self, operations: Iterable[Operation]) -> list[Any]:
        self._count()
        return super().transaction(operations)

    def create(self, path: str, data: bytes = b"", **how: Any) -> str:
        self._count()
        return super().create(path, data, **how)

    def _count(self) -> None:
        if self.writes_left == 0:
            raise ConnectionFailed("of the test")
        self.writes_left -= 1
