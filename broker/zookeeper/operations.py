"""ZooKeeper's operations, node stat and errors, without kazoo.

ZooKeeperError        ZooKeeper refused an operation; `.path` says where
├── NodeExists        create: the node exists
├── NoNode            get, set, delete, or create below it: there is no such node
├── BadVersion        set, delete, check: another client changed the node
└── NotEmpty          delete: the node has children
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from broker.errors import PykafkaError

__all__ = [
    "ANY_VERSION",
    "MAX_TRANSACTION_BYTES",
    "BadVersion",
    "Check",
    "Create",
    "Delete",
    "NoNode",
    "NodeExists",
    "NodeStat",
    "NotEmpty",
    "Operation",
    "SetData",
    "ZooKeeperError",
    "in_transactions",
    "request_size",
]

ANY_VERSION = -1
"""As the expected version of a set, delete or check: any version will do."""


MAX_TRANSACTION_BYTES = 900_000
"""ZooKeeper refuses requests above jute.maxbuffer, 1 MiB less a byte."""
_OPERATION_OVERHEAD = 64  # header, ACL, lengths


class ZooKeeperError(PykafkaError):
    """ZooKeeper refused an operation and did nothing."""

    reason = "ZooKeeper refused the operation"

    def __init__(self, path: str, reason: str = "") -> None:
        self.path = path
        super().__init__(f"{path}: {reason or self.reason}")


class NodeExists(ZooKeeperError):
    reason = "the ZooKeeper node exists already"


class NoNode(ZooKeeperError):
    reason = "no such ZooKeeper node"


class BadVersion(ZooKeeperError):
    reason = "the ZooKeeper node was changed by another client"


class NotEmpty(ZooKeeperError):
    reason = "the ZooKeeper node has children"


@dataclass(frozen=True, slots=True)
class NodeStat:
    """`ephemeral_owner` is the id of the session that holds the node, 0 for a persistent node."""

    version: int
    created_zxid: int
    created_ms: int
    ephemeral_owner: int
    children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node whose parent exists. ZooKeeper appends a ten-digit number to the path of a sequence node."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data if it has the expected version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children if it has the expected version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless the node has the expected version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


def request_size(operation: Operation) -> int:
    """About how many bytes an operation takes in a transaction."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + _OPERATION_OVERHEAD


def in_transactions(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Cut a list of operations into transactions of the size that ZooKeeper accepts."""
    chunk: list[Operation] = []
    size = 0
    for operation in operations:
        size += request_size(operation)
        if chunk and size > MAX_TRANSACTION_BYTES:
            yield chunk
            chunk, size = [], request_size(operation)
        chunk.append(operation)
    if chunk:
        yield chunk
