"""The words of ZooKeeper that the rest of the cluster layer uses: node facts, operations, errors, session states.

Read by everything that holds a `ZooKeeper` (client.py); free of kazoo, so that pure modules may import it too.

    ZooKeeperError        ZooKeeper refused an operation; `.path` says where
    ├── NodeExists        create: the node is there already
    ├── NoNode            get, set, delete, create below it: there is no such node
    ├── BadVersion        set, delete, check: somebody else changed the node meanwhile
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
"""Given as the expected version of a set, delete or check: whatever the node's version is."""


class ZooKeeperError(PykafkaError):
    """ZooKeeper answered with an error; nothing of the operation was done."""

    def __init__(self, path: str, reason: str = "ZooKeeper refused the operation") -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class NodeExists(ZooKeeperError):
    """A node to be created is there already."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the ZooKeeper node exists already")


class NoNode(ZooKeeperError):
    """A node (or the parent of one to be created) is not there."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "no such ZooKeeper node")


class BadVersion(ZooKeeperError):
    """The node's version is not the expected one: somebody else has written since it was read."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the ZooKeeper node has been changed by somebody else")


class NotEmpty(ZooKeeperError):
    """A node to be deleted has children."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the ZooKeeper node has children")


class SessionState(StrEnum):
    """What a client knows of its session.

    SUSPENDED: no server answers; ephemeral nodes may or may not be gone. LOST: the session is known to have
    expired, its ephemeral nodes are gone. Either is followed by CONNECTED once a server answers again; LOST is
    only learnt from a server, so a long outage is SUSPENDED → LOST → CONNECTED in one go at its end.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeStat:
    """Facts about a node. `ephemeral_owner` is the session id that holds it, 0 for a persistent node."""

    version: int
    created_zxid: int
    created_ms: int
    ephemeral_owner: int
    children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; its parent must exist. A sequence node gets a ten-digit number appended to its path."""

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
    """Let the transaction pass only if the node has the expected version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check
