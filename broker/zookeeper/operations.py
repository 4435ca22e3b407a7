"""ZooKeeper's operations, node stat and errors, without kazoo.

ZooKeeperError        ZooKeeper refused an operation; `.path` says where
├── NodeExists        create: the node exists
├── NoNode            get, set, delete, or create below it: there is no such node
├── BadVersion        set, delete, check: another client changed the node
├── NotEmpty          delete: the node has children
└── NotAccepted       too large, or a name that no node can have; was not sent
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.errors import PykafkaError

ANY_VERSION = -1
"""As the expected version of a set, delete or check: any version will do."""


MAX_REQUEST_BYTES = 1_048_000
"""ZooKeeper closes the connection at a request above jute.maxbuffer, 1 MiB less a byte."""
MAX_TRANSACTION_BYTES = 900_000
"""What is cut into transactions, or counted by `request_size`, leaves room for one or two operations more."""
_OPERATION_OVERHEAD = 64  # header, ACL, lengths
_LONGEST_SURE_PATH = MAX_REQUEST_BYTES // 4
_LONGEST_SHOWN = 300


class ZooKeeperError(PykafkaError):
    """ZooKeeper refused an operation and did nothing."""

    reason = "ZooKeeper refused the operation"

    def __init__(self, path: str, reason: str = "") -> None:
        self.path = path
        super().__init__(f"{shown(path)}: {reason or self.reason}")


class NodeExists(ZooKeeperError):
    reason = "the ZooKeeper node exists already"


class NoNode(ZooKeeperError):
    reason = "no such ZooKeeper node"


class BadVersion(ZooKeeperError):
    reason = "the ZooKeeper node was changed by another client"


class NotEmpty(ZooKeeperError):
    reason = "the ZooKeeper node has children"


class NotAccepted(ZooKeeperError):
    """Nothing was sent: ZooKeeper would close the connection, again and again, and the session could be lost."""

    reason = "ZooKeeper takes no such name"


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

_ENCODING: Final[Mapping[type, int]] = {Create: 48, SetData: 21, Delete: 17, Check: 17}
"""The bytes of an operation in a transaction without its path and data: headers, lengths, versions, ACL."""


def request_size(operation: Operation) -> int:
    """About how many bytes an operation takes in a transaction."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path.encode()) + len(data) + _OPERATION_OVERHEAD


def check_path(path: str) -> None:
    """Raises NotAccepted for a path that is too long or relative."""
    if len(path) > _LONGEST_SURE_PATH and len(path.encode()) > MAX_REQUEST_BYTES:
        raise NotAccepted(path, f"the name of a ZooKeeper node has at most {MAX_REQUEST_BYTES:,} bytes")
    if "/." in path and not {".", ".."}.isdisjoint(path.split("/")):
        raise NotAccepted(path)


def check_size(operations: Sequence[Operation], chroot: str = "") -> None:
    """Raises NotAccepted if the operations are too large together, with `chroot` before each path."""
    size = sum([_encoded_size(operation) for operation in operations]) + len(operations) * len(chroot.encode())
    if size > MAX_REQUEST_BYTES:
        reason = f"{size:,} bytes are more than ZooKeeper takes in one request ({MAX_REQUEST_BYTES:,})"
        raise NotAccepted(operations[0].path, reason)


def _encoded_size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path.encode()) + len(data) + _ENCODING[type(operation)]


def shown(path: str) -> str:
    """A path in a message: clients make up names of megabytes."""
    return path if len(path) <= _LONGEST_SHOWN else f"{path[:_LONGEST_SHOWN]}…"


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
