"""ZooKeeper's operations, node stat, session states and errors, without kazoo.

ZooKeeperError        ZooKeeper refused an operation; `.path` says where
├── NodeExists        create: the node exists
├── NoNode            get, set, delete, or create below it: there is no such node
├── BadVersion        set, delete, check: another client changed the node
└── NotEmpty          delete: the node has children
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from broker.errors import PykafkaError

__all__ = [
    "ANY_VERSION",
    "BadVersion",
    "Check",
    "Create",
    "Delete",
    "NoNode",
    "NodeExists",
    "NodeStat",
    "NotEmpty",
    "Operation",
    "SessionState",
    "SetData",
    "ZooKeeperError",
]

ANY_VERSION = -1
"""As the expected version of a set, delete or check: any version will do."""


class ZooKeeperError(PykafkaError):
    """ZooKeeper refused an operation and did nothing."""

    def __init__(self, path: str, reason: str = "ZooKeeper refused the operation") -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class NodeExists(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "the ZooKeeper node exists already")


class NoNode(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "no such ZooKeeper node")


class BadVersion(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "the ZooKeeper node was changed by another client")


class NotEmpty(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "the ZooKeeper node has children")


class SessionState(StrEnum):
    """What a client knows of its session.

    SUSPENDED: no server answers, and the ephemeral nodes may be gone. LOST: the session has expired and they are gone.
    Both end in CONNECTED when a server answers again. Only a server can say that a session is lost, so a long outage
    is SUSPENDED until its end, then LOST and CONNECTED at once.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


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
