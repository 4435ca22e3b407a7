"""ACLs in Kafka's layout (kafka.zk.ZkAclStore, ZkAclChangeStore).

`/kafka-acl/<Type>/<name>` has the entries of a literal pattern, `/kafka-acl-extended/prefixed/<Type>/<name>` those of a
prefix. Whoever changes one writes a sequence node to `/kafka-acl-changes` or `/kafka-acl-extended-changes`, which names
the pattern, and every broker reads that pattern again. Blocking: call it from worker threads.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from broker.security.acl_types import (
    ANY_PRINCIPAL,
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.zookeeper import znodes
from broker.zookeeper.change_notifications import NodeChanges
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import (
    MAX_TRANSACTION_BYTES,
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotAccepted,
    Operation,
    SetData,
    ZooKeeperError,
    request_size,
)
from broker.zookeeper.znodes import MalformedNode

logger = logging.getLogger(__name__)

Entries = frozenset[AccessControlEntry]

_ROOTS = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
_CHANGES = {PatternType.LITERAL: znodes.ACL_CHANGES, PatternType.PREFIXED: znodes.EXTENDED_ACL_CHANGES}
_TYPES = [type for type in AclResourceType if type > AclResourceType.ANY]
_NOBODY = frozenset({AccessControlEntry(ANY_PRINCIPAL, AclOperation.ALL, AclPermission.DENY)})
"""What a node counts as that cannot be read: it might deny something."""
_NO_NODE_NAME = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""Finds what ZooKeeper takes in no name (org.apache.zookeeper.common.PathUtils)."""
_VERSION = 1
_MOST_ATTEMPTS = 100
"""Of those that change a pattern at the same time, one succeeds each time."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class AclStore:
    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    def ensure_paths(self) -> None:
        """Create the nodes that Kafka's tools expect."""
        for path in (*_ROOTS.values(), *_CHANGES.values()):
            self._zk.ensure_path(path)
        for kind, type in ((kind, type) for kind in _ROOTS for type in _TYPES):
            self._zk.ensure_path(f"{_ROOTS[kind]}/{type.title}")

    def load(self) -> dict[ResourcePattern, Entries]:
        kinds = [(kind, type) for kind in _ROOTS for type in _TYPES]
        names = self._zk.children_many([f"{_ROOTS[kind]}/{type.title}" for kind, type in kinds])
        patterns = [
            ResourcePattern(type, name, kind)
            for (kind, type), found in zip(kinds, names, strict=True)
            for name in found
        ]
        return self.read(patterns)

    def read(self, patterns: Collection[ResourcePattern]) -> dict[ResourcePattern, Entries]:
        """The entries of these patterns; none for one that has no node."""
        nodes = self._zk.get_each([acl_path(pattern) for pattern in patterns])
        return {
            pattern: frozenset() if node is None else _decode(pattern, node[0] if isinstance(node, tuple) else node)
            for pattern, node in zip(patterns, nodes, strict=True)
        }

    def update(self, pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> Entries:
        """Replace the entries of a pattern by `change(entries)` and notify the brokers; returns the new ones.

        Concurrent updates keep each other's changes, so `change` may be called more than once. Raises ZooKeeperError
        if the entries are too many for a node, or others change them again and again.
        """
        path = acl_path(pattern)
        for _ in range(_MOST_ATTEMPTS):
            try:
                data, stat = self._zk.get(path)
            except NoNode:
                data, stat = b"", None
            before = _read(pattern, data) if stat is not None else frozenset()
            after = change(before)
            if after == before:
                return after
            write: Operation
            if stat is None:
                write = Create(path, _encode(after))
            elif after:
                write = SetData(path, _encode(after), stat.version)
            else:
                write = Delete(path, stat.version)
            notification = _notification(pattern)
            if (size := request_size(write) + request_size(notification)) > MAX_TRANSACTION_BYTES:
                raise NotAccepted(
                    path,
                    f"{len(after)} ACLs in {size} bytes are more than ZooKeeper takes ({MAX_TRANSACTION_BYTES}); "
                    "use a prefixed pattern, User:* or fewer hosts",
                )
            try:
                # In one transaction: were the notification lost, other brokers would keep a right that was revoked.
                self._zk.transaction([write, notification])
            except NoNode:
                self.ensure_paths()  # or another broker was faster
            except (BadVersion, NodeExists):
                continue  # another broker was faster
            else:
                return after
        raise ZooKeeperError(path, f"was changed by others {_MOST_ATTEMPTS} times meanwhile; try again")

    def watch(
        self, callback: Callable[[Sequence[ResourcePattern]], None], on_missed: Callable[[], None] = lambda: None
    ) -> list[Watch]:
        """Call back on the store's event thread with the patterns that were changed.

        `on_missed`: when it is not known which were; read all of them.
        """
        decoders = {PatternType.LITERAL: _decode_literal_change, PatternType.PREFIXED: _decode_extended_change}
        return [
            NodeChanges(self._zk, root, decoders[kind]).watch(callback, on_missed) for kind, root in _CHANGES.items()
        ]


def can_be_kept(name: str) -> bool:
    """Whether there can be ACLs for resources of this name, or prefix: ZooKeeper takes it as the name of a node."""
    return name not in ("", ".", "..") and not _NO_NODE_NAME.search(name)


def acl_path(pattern: ResourcePattern) -> str:
    return f"{_ROOTS[pattern.pattern]}/{pattern.type.title}/{pattern.name}"


def _notification(pattern: ResourcePattern) -> Create:
    if pattern.pattern is PatternType.LITERAL:
        data = f"{pattern.type.name}:{pattern.name}".encode()
    else:
        change = {"resourceType": pattern.type.name, "name": pattern.name, "patternType": pattern.pattern.name}
        data = json.dumps({"version": _VERSION, **change}).encode()
    return Create(f"{_CHANGES[pattern.pattern]}/acl_changes_", data, sequence=True)


def _encode(entries: Entries) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission.title,
            "operation": entry.operation.title,
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return json.dumps({"version": _VERSION, "acls": acls}).encode()


def _decode(pattern: ResourcePattern, data: bytes | ZooKeeperError) -> Entries:
    """The entries in a node; an empty one has none. One that cannot be read denies everything: it would be worse to
    leave out a denial."""
    try:
        if isinstance(data, ZooKeeperError):
            raise data
        return _read(pattern, data)
    except (MalformedNode, ZooKeeperError) as error:
        logger.error("%s is denied to all but super users: %s", pattern, error)
        return _NOBODY


def _read(pattern: ResourcePattern, data: bytes) -> Entries:
    """Raises MalformedNode, so that no change writes over what cannot be read."""
    if not data:
        return frozenset()
    try:
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']} of ACLs is not known")
        return frozenset(map(_entry, _list(found["acls"])))
    except _UNREADABLE as error:
        raise MalformedNode(acl_path(pattern), data, error) from error


def _entry(found: Mapping[str, Any]) -> AccessControlEntry:
    operation, permission = AclOperation.of(found["operation"]), AclPermission.of(found["permissionType"])
    if operation <= AclOperation.ANY or permission <= AclPermission.ANY:
        raise ValueError(f"an ACL does not have {operation.title} or {permission.title}")
    return AccessControlEntry(_text(found["principal"]), operation, permission, _text(found["host"]))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, not {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {type(value).__name__}")
    value.encode()  # raises ValueError for what no answer could show
    return value


def _changed(type: AclResourceType, name: str, kind: PatternType) -> ResourcePattern:
    """Raises ValueError for what can have no node: to read it would fail for ever, and keep the others waiting."""
    if type <= AclResourceType.ANY or not can_be_kept(name):
        raise ValueError(f"{type.title}:{name!r} can have no ACLs")
    return ResourcePattern(type, name, kind)


def _decode_literal_change(path: str, data: bytes) -> list[ResourcePattern]:
    try:
        type, _, name = data.decode().partition(":")
        return [_changed(AclResourceType.of(type), name, PatternType.LITERAL)]
    except ValueError as error:
        raise MalformedNode(path, data, error) from error


def _decode_extended_change(path: str, data: bytes) -> list[ResourcePattern]:
    try:
        change = json.loads(data)
        if change["version"] > _VERSION:
            raise ValueError(f"version {change['version']} of changes is not known")
        kind = PatternType[change["patternType"]]
        if kind not in _ROOTS:
            raise ValueError(f"the pattern type {kind.name} has no ACLs")
        return [_changed(AclResourceType[change["resourceType"]], _text(change["name"]), kind)]
    except _UNREADABLE as error:
        raise MalformedNode(path, data, error) from error
