"""A tree of nodes in memory with ZooKeeper's rules (org.apache.zookeeper.server: PrepRequestProcessor, DataTree). Pure.

Not thread-safe: its owner has a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from broker.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    ZooKeeperError,
)

ROOT = "/"


@dataclass(slots=True)
class Znode:
    """`ephemeral_owner` is the session that holds the node, 0 for a persistent node."""

    data: bytes = b""
    created_zxid: int = 0
    created_ms: int = 0
    ephemeral_owner: int = 0
    version: int = 0
    children_created: int = 0
    """How many children were ever created: the number of the next sequence node."""
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.created_zxid, self.created_ms, self.ephemeral_owner, len(self.children))


@dataclass(slots=True)
class Change:
    """What a transaction has done to the tree."""

    results: list[Any] = field(default_factory=list)
    """As `MetadataStore.transaction` returns them."""
    operations: list[Create | SetData | Delete] = field(default_factory=list)
    """What a replay must apply: the writes, with the final paths of sequence nodes, for any version."""
    undo: list[Callable[[], None]] = field(default_factory=list)


class ZnodeTree:
    """Nodes by path. There is always a root."""

    def __init__(self) -> None:
        self._nodes = {ROOT: Znode()}

    def __iter__(self) -> Iterator[tuple[str, Znode]]:
        """All nodes, parents before their children."""
        waiting = [ROOT]
        while waiting:
            path = waiting.pop()
            node = self._nodes[path]
            yield path, node
            waiting += [_join(path, name) for name in node.children]

    def get(self, path: str) -> Znode | None:
        return self._nodes.get(path)

    def put(self, path: str, node: Znode) -> None:
        """Add a node of a snapshot, whose parent is there; or replace the root."""
        self._nodes[path] = node
        if path != ROOT:
            self._nodes[parent_of(path)].children[path.rpartition("/")[2]] = None

    def apply(self, operations: Iterable[Operation], *, zxid: int, now_ms: int, session: int) -> Change:
        """Do all operations or none. `session` owns the ephemeral nodes. Raises ZooKeeperError."""
        change = Change()
        try:
            for operation in operations:
                match operation:
                    case Create():
                        self._create(
                            operation, change, Znode(operation.data, zxid, now_ms, session * operation.ephemeral)
                        )
                    case SetData(path, data, version):
                        self._set(path, data, version, change)
                    case Delete(path, version):
                        self._delete(path, version, change)
                    case Check(path, version):
                        self._at_version(path, version)
                        change.results.append(True)
        except ZooKeeperError:
            self.undo(change)
            raise
        return change

    def undo(self, change: Change) -> None:
        """Take back the latest change."""
        for step in reversed(change.undo):
            step()

    def _create(self, operation: Create, change: Change, node: Znode) -> None:
        asked, parent = operation.path, self._node(parent_of(operation.path), operation.path)
        path = f"{asked}{parent.children_created:010d}" if operation.sequence else asked
        if path in self._nodes:
            raise NodeExists(asked)
        if parent.ephemeral_owner:
            raise ZooKeeperError(asked, "an ephemeral node cannot have children")
        self.put(path, node)
        parent.children_created += 1

        def undo() -> None:
            del self._nodes[path]
            del parent.children[path.rpartition("/")[2]]
            parent.children_created -= 1

        change.undo.append(undo)
        change.operations.append(Create(path, operation.data, operation.ephemeral))
        change.results.append(path)

    def _set(self, path: str, data: bytes, version: int, change: Change) -> None:
        node = self._at_version(path, version)
        before = node.data, node.version

        def undo() -> None:
            node.data, node.version = before

        change.undo.append(undo)
        node.data, node.version = data, node.version + 1
        change.operations.append(SetData(path, data))
        change.results.append(node.stat())

    def _delete(self, path: str, version: int, change: Change) -> None:
        if path == ROOT:
            raise ZooKeeperError(path, "the root cannot be deleted")
        node = self._at_version(path, version)
        if node.children:
            raise NotEmpty(path)
        parent = self._nodes[parent_of(path)]
        del self._nodes[path]
        del parent.children[path.rpartition("/")[2]]
        change.undo.append(lambda: self.put(path, node))
        change.operations.append(Delete(path))
        change.results.append(True)

    def _at_version(self, path: str, version: int) -> Znode:
        node = self._node(path, path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    def _node(self, path: str, asked: str) -> Znode:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(asked)
        return node


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
