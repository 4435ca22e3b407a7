"""The metadata store of a broker that runs without ZooKeeper (`standalone=true`): a tree in memory, kept in one file.

Every transaction is appended to the file and synced before it is answered. After a crash a start reads the last
answered state. Ephemeral nodes of the process before are deleted then, as ZooKeeper deletes them with a session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from broker.clock import Clock, SystemClock
from broker.errors import ConfigError, ConnectionFailed
from broker.zookeeper.metadata_journal import MetadataJournal
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import (
    ANY_VERSION,
    Create,
    Delete,
    NodeStat,
    Operation,
    SetData,
    ZooKeeperError,
    check_path,
    check_size,
)
from broker.zookeeper.znode_tree import Znode, ZnodeTree, parent_of

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


class LocalStore(MetadataStore):
    """The store in the file at `path`. Whoever opens it must own the directory: two stores on one file destroy it."""

    session_timeout_ms = 0

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__()
        self._journal = MetadataJournal(path)
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._tree = ZnodeTree()
        self._zxid = 0
        self._session = 0
        self._armed_for_data: dict[str, set[Watch]] = {}
        self._armed_for_children: dict[str, set[Watch]] = {}

    def start(self) -> Self:
        """Read the file, or create it. Raises ConfigError when it is damaged or cannot be written."""
        try:
            values = self._journal.open()
            self._load(values)
            self._session = self._zxid + 1
            if not values or self._journal.outgrown:
                self._journal.rewrite([self._snapshot()])
            self._delete_ephemeral_nodes()
        except (OSError, ZooKeeperError) as error:
            self._journal.close()
            raise ConfigError(f"{self} cannot be opened: {error}") from error
        self._events.start()
        return self

    def close(self) -> None:
        """Delete the ephemeral nodes and stop all callbacks. Calls in other threads raise ConnectionFailed then."""
        with self._lock:
            if not self._session:
                return
            try:
                self._delete_ephemeral_nodes()
            except (OSError, ConnectionFailed) as error:
                log.warning("%s: %s", self, error)
            self._session = 0
            self._journal.close()
        self._events.stop(_CLOSE_TIMEOUT_S)

    def __str__(self) -> str:
        return str(self._journal.path)

    @property
    def connected(self) -> bool:
        """Whether the file is open, and every write to it has succeeded."""
        return bool(self._session) and not self._journal.failure

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
        with self._lock:
            return [(node.data, node.stat()) if (node := self._node(path)) else None for path in paths]

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        stat: NodeStat = self._commit([SetData(path, data, version)])[0]
        return stat

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._commit([Delete(path, version)])

    def exists(self, path: str) -> NodeStat | None:
        with self._lock:
            node = self._node(path)
            return node.stat() if node else None

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        with self._lock:
            return [sorted(node.children) if (node := self._node(path)) else [] for path in paths]

    def transaction(self, operations: Iterable[Operation]) -> list[Any]:
        return self._commit(list(operations))

    def nodes(self) -> Iterator[tuple[str, Znode]]:
        """All nodes, parents before their children. Change nothing while you iterate."""
        return iter(self._tree)

    def _commit(self, operations: Sequence[Operation]) -> list[Any]:
        """The same is refused as by ZooKeeper, so that a test or a notebook learns it."""
        for operation in operations:
            check_path(operation.path)
        check_size(operations)
        with self._lock:
            self._check_open()
            if self._journal.failure:
                raise ConnectionFailed(f"{self._journal.failure}; restart the broker when the disk is well")
            now = self._clock.now_ms()
            change = self._tree.apply(operations, zxid=self._zxid + 1, now_ms=now, session=self._session)
            if not change.operations:
                return change.results
            try:
                self._journal.append([self._zxid + 1, now, self._session, *map(_encode, change.operations)])
            except OSError as error:
                self._tree.undo(change)
                raise ZooKeeperError(operations[0].path, f"{self} cannot be written: {error.strerror}") from error
            self._zxid += 1
            for operation in change.operations:
                self._fire_watches(operation)
            self._rewrite_if_outgrown()
            return change.results

    def _node(self, path: str) -> Znode | None:
        self._check_open()
        return self._tree.get(path)

    def _check_open(self) -> None:
        if not self._session:
            raise ConnectionFailed(f"{self} is closed")

    def _missing(self, path: str) -> list[Operation]:
        """Creates a path and its parents, as far as they are missing."""
        names = [name for name in path.split("/") if name]
        paths = ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]
        return [Create(one) for one in paths if self._node(one) is None]

    def _delete_ephemeral_nodes(self) -> None:
        operations = [Delete(path) for path, node in self._tree if node.ephemeral_owner]
        if operations:
            self._commit(operations)

    # -- watches

    def _watched_children(self, watch: Watch) -> Sequence[str] | None:
        with self._lock:
            node = self._node(watch.path)
            self._armed_for_children.setdefault(watch.path, set()).add(watch)
            return list(node.children) if node else None

    def _watched_data(self, watch: Watch) -> tuple[bytes, NodeStat] | None:
        with self._lock:
            node = self._node(watch.path)
            self._armed_for_data.setdefault(watch.path, set()).add(watch)
            return (node.data, node.stat()) if node else None

    def _fire_watches(self, operation: Create | SetData | Delete) -> None:
        fired = self._armed_for_data.pop(operation.path, set())
        if not isinstance(operation, SetData):
            for path in (operation.path, parent_of(operation.path)):
                fired |= self._armed_for_children.pop(path, set())
        for watch in fired:
            watch.fired()

    # -- the file

    def _load(self, values: Sequence[Any]) -> None:
        if not values:
            return
        snapshot, *transactions = values
        self._zxid = snapshot["zxid"]
        for path, text, *numbers in snapshot["nodes"]:
            self._tree.put(path, Znode(_bytes(text), *numbers))
        for line, (zxid, now_ms, session, *operations) in enumerate(transactions, start=3):
            if zxid != self._zxid + 1:
                raise self._journal.damaged(line, f"it should be transaction {self._zxid + 1} and is {zxid}")
            self._tree.apply(map(_decode, operations), zxid=zxid, now_ms=now_ms, session=session)
            self._zxid = zxid

    def _snapshot(self) -> dict[str, Any]:
        nodes = [
            [path, _text(n.data), n.created_zxid, n.created_ms, n.ephemeral_owner, n.version, n.children_created]
            for path, n in self._tree
        ]
        return {"zxid": self._zxid, "nodes": nodes}

    def _rewrite_if_outgrown(self) -> None:
        if self._journal.outgrown:
            try:
                self._journal.rewrite([self._snapshot()])
            except OSError as error:
                log.warning("%s cannot be rewritten and goes on growing: %s", self, error)


def _encode(operation: Create | SetData | Delete) -> list[Any]:
    match operation:
        case Create(path, data, ephemeral):
            return ["create", path, _text(data), ephemeral]
        case SetData(path, data):
            return ["set", path, _text(data)]
        case Delete(path):
            return ["delete", path]


def _decode(fields: Sequence[Any]) -> Operation:
    match fields:
        case "create", path, text, ephemeral:
            return Create(path, _bytes(text), ephemeral)
        case "set", path, text:
            return SetData(path, _bytes(text))
        case "delete", path:
            return Delete(path)
    raise ValueError(f"not an operation: {fields}")


def _text(data: bytes) -> str:
    """Nodes hold JSON in UTF-8. Other bytes come back as they were, too."""
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
