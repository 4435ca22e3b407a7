"""The metadata store of a broker that runs without ZooKeeper (`standalone=true`): a tree of nodes in one file.

Every transaction is on disk before it is answered. After a crash a start reads the last answered state. Ephemeral nodes
of the process before are deleted then, as ZooKeeper deletes them with a session.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from broker.clock import Clock, SystemClock
from broker.errors import ConfigError, ConnectionFailed, PykafkaError
from broker.zookeeper.metadata_database import MetadataDatabase, Znode, may_be_tried_again, parent_of, reason_of
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeStat,
    Operation,
    SetData,
    ZooKeeperError,
    check_path,
    check_size,
)

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


class LocalStore(MetadataStore):
    """The store in the file at `path`, for one process at a time."""

    session_timeout_ms = 0

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__()
        self._database = MetadataDatabase(path)
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._session = 0
        self._failure = ""
        """Why nothing more can be written; empty while all is well."""
        self._armed_for_data: dict[str, set[Watch]] = {}
        self._armed_for_children: dict[str, set[Watch]] = {}

    def start(self) -> Self:
        """Read the file, or create it. Raises ConfigError when it is damaged, in use, or cannot be written."""
        try:
            self._database.open()
            self._session = self._database.zxid + 1
            self._delete_ephemeral_nodes()
        except (OSError, PykafkaError, sqlite3.Error) as error:
            self._session = 0
            self._database.close()
            if isinstance(error, ConfigError):
                raise
            reason = reason_of(error) if isinstance(error, sqlite3.Error) else error
            raise ConfigError(f"{self} cannot be opened: {reason}") from error
        self._events.start()
        return self

    def close(self) -> None:
        """Delete the ephemeral nodes and stop all callbacks. Calls in other threads raise ConnectionFailed then."""
        with self._lock:
            if not self._session:
                return
            try:
                self._delete_ephemeral_nodes()
            except (ConnectionFailed, ZooKeeperError) as error:
                log.warning("%s: %s", self, error)
            self._session = 0
            self._database.close()
        self._events.stop(_CLOSE_TIMEOUT_S)

    def __str__(self) -> str:
        return str(self._database.path)

    @property
    def connected(self) -> bool:
        """Whether the file is open, and no read or write has shown that it cannot be trusted."""
        return bool(self._session) and not self._failure

    @property
    def session_id(self) -> int:
        return self._session

    # -- nodes

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        with self._lock:
            above = self._missing(parent_of(path)) if parents else []
            created: str = self._commit([*above, Create(path, data, ephemeral, sequence)])[-1]
            return created

    def ensure_path(self, path: str) -> None:
        with self._lock:
            self._commit(self._missing(path))

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        with self._opened() as database:
            return [(node.data, node.stat()) if (node := database.node(path)) else None for path in paths]

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        stat: NodeStat = self._commit([SetData(path, data, version)])[0]
        return stat

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._commit([Delete(path, version)])

    def exists(self, path: str) -> NodeStat | None:
        with self._opened() as database:
            node = database.node(path)
            return node.stat() if node else None

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        with self._opened() as database:
            return [database.children(path) for path in paths]

    def transaction(self, operations: Iterable[Operation]) -> list[Any]:
        return self._commit(list(operations))

    def nodes(self) -> list[Znode]:
        """All nodes, parents before their children."""
        with self._opened() as database:
            return database.nodes()

    def _commit(self, operations: Sequence[Operation]) -> list[Any]:
        """The same is refused as by ZooKeeper, so that a test or a notebook learns it."""
        for operation in operations:
            check_path(operation.path)
        check_size(operations)
        with self._opened() as database:
            if self._failure:
                raise ConnectionFailed(f"{self._failure}; restart the broker when the disk is well")
            try:
                results = database.apply(operations, now_ms=self._clock.now_ms(), session=self._session)
            except sqlite3.Error as error:
                reason = self._cannot_be_written(error)
                raise ZooKeeperError(operations[0].path, reason) from error
            for operation, result in zip(operations, results, strict=True):
                self._fire_watches(operation, result)
            self._checkpoint_if_outgrown()
            return results

    @contextlib.contextmanager
    def _opened(self) -> Iterator[MetadataDatabase]:
        """The file, for this thread alone."""
        with self._lock:
            if not self._session:
                raise ConnectionFailed(f"{self} is closed")
            try:
                yield self._database
            except sqlite3.Error as error:
                self._failure = f"{self} cannot be read: {reason_of(error)}"
                raise ConnectionFailed(self._failure) from error

    def _cannot_be_written(self, error: sqlite3.Error) -> str:
        reason = f"{self} cannot be written: {reason_of(error)}"
        if not may_be_tried_again(error):
            self._failure = reason
        return reason

    def _checkpoint_if_outgrown(self) -> None:
        if self._database.is_outgrown:
            try:
                self._database.checkpoint()
            except sqlite3.Error as error:
                log.warning("%s; what is beside it goes on growing", self._cannot_be_written(error))

    def _missing(self, path: str) -> list[Operation]:
        """Creates a path and its parents, as far as they are missing."""
        names = [name for name in path.split("/") if name]
        paths = ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]
        return [Create(missing) for missing in paths if not self.exists(missing)]

    def _delete_ephemeral_nodes(self) -> None:
        self._commit([Delete(node.path) for node in self.nodes() if node.ephemeral_owner])

    # -- watches

    def _watched_children(self, watch: Watch) -> Sequence[str] | None:
        with self._opened() as database:
            self._armed_for_children.setdefault(watch.path, set()).add(watch)
            return database.children(watch.path)

    def _watched_data(self, watch: Watch) -> tuple[bytes, NodeStat] | None:
        with self._opened() as database:
            self._armed_for_data.setdefault(watch.path, set()).add(watch)
            node = database.node(watch.path)
            return (node.data, node.stat()) if node else None

    def _fire_watches(self, operation: Operation, result: Any) -> None:
        if isinstance(operation, Check):
            return
        path = result if isinstance(operation, Create) else operation.path  # a sequence node has a number
        fired = self._armed_for_data.pop(path, set())
        if not isinstance(operation, SetData):
            for watched in (path, parent_of(path)):
                fired |= self._armed_for_children.pop(watched, set())
        for watch in fired:
            watch.fired()
