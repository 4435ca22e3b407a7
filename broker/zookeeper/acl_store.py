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
from broker.zookeeper.operations import BadVersion, Create, Delete, NodeExists, NoNode, Operation, SetData
from broker.zookeeper.znodes import MalformedNode

__all__ = ["AclStore", "Entries", "acl_path"]

logger = logging.getLogger(__name__)

Entries = frozenset[AccessControlEntry]

_ROOTS = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
_CHANGES = {PatternType.LITERAL: znodes.ACL_CHANGES, PatternType.PREFIXED: znodes.EXTENDED_ACL_CHANGES}
_TYPES = [type for type in AclResourceType if type > AclResourceType.ANY]
_NOBODY = frozenset({AccessControlEntry(ANY_PRINCIPAL, AclOperation.ALL, AclPermission.DENY)})
"""What a node counts as that cannot be read: it might deny something."""
_NO_NODE_NAME = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""Finds what ZooKeeper takes in no name (org.apache.zookeeper.common.PathUtils)."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class AclStore:
    """Reads, changes and watches the ACLs of the cluster."""

    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    def ensure_paths(self) -> None:
        """Create the nodes that Kafka's tools expect."""
        for path in (*_ROOTS.values(), *_CHANGES.values()):
            self._zk.ensure_path(path)
        for kind, type in ((kind, type) for kind in _ROOTS for type in _TYPES):
            self._zk.ensure_path(f"{_ROOTS[kind]}/{type.title}")

    def load(self) -> dict[ResourcePattern, Entries]:
        """The entries of all patterns."""
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
        nodes = self._zk.get_many([acl_path(pattern) for pattern in patterns])
        return {
            pattern: frozenset() if node is None else _decode(pattern, node[0])
            for pattern, node in zip(patterns, nodes, strict=True)
        }

    def update(self, pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> Entries:
        """Replace the entries of a pattern by `change(entries)` and notify the brokers; returns the new ones.

        Concurrent updates keep each other's changes, so `change` may be called more than once.
        """
        path = acl_path(pattern)
        while True:
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
            try:
                # In one transaction: were the notification lost, other brokers would keep a right that was revoked.
                self._zk.transaction([write, _notification(pattern)])
            except NoNode:
                self.ensure_paths()  # or another broker was faster
            except (BadVersion, NodeExists):
                continue  # another broker was faster
            else:
                return after

    def watch(
        self, callback: Callable[[Sequence[ResourcePattern]], None], on_missed: Callable[[], None] = lambda: None
    ) -> list[Watch]:
        """Call back on the store's event thread with the patterns that were changed.

        `on_missed`: when it is not known which were; read all of them.
        """
        return [
            NodeChanges(self._zk, root, decode).watch(callback, on_missed)
            for root, decode in (
                (_CHANGES[PatternType.LITERAL], _decode_literal_change),
                (_CHANGES[PatternType.PREFIXED], _decode_extended_change),
            )
        ]


def acl_path(pattern: ResourcePattern) -> str:
    return f"{_ROOTS[pattern.pattern]}/{pattern.type.title}/{pattern.name}"


def _notification(pattern: ResourcePattern) -> Create:
    if pattern.pattern is PatternType.LITERAL:
        data = f"{pattern.type.name}:{pattern.name}".encode()
    else:
        change = {"resourceType": pattern.type.name, "name": pattern.name, "patternType": pattern.pattern.name}
        data = json.dumps({"version": 1, **change}).encode()
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
    return json.dumps({"version": 1, "acls": acls}).encode()


def _decode(pattern: ResourcePattern, data: bytes) -> Entries:
    """The entries in a node; an empty one has none. One that cannot be read denies everything: it would be worse to
    leave out a denial."""
    try:
        return _read(pattern, data)
    except MalformedNode as error:
        logger.error("%s is denied to all but super users: %s", pattern, error)
        return _NOBODY


def _read(pattern: ResourcePattern, data: bytes) -> Entries:
    """Raises MalformedNode, so that no change writes over what cannot be read."""
    try:
        return frozenset(map(_entry, _list(json.loads(data)["acls"]))) if data else frozenset()
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
    if type <= AclResourceType.ANY or name in ("", ".", "..") or _NO_NODE_NAME.search(name):
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
        kind = PatternType[change["patternType"]]
        if kind not in _ROOTS:
            raise ValueError(f"the pattern type {kind.name} has no ACLs")
        return [_changed(AclResourceType[change["resourceType"]], _text(change["name"]), kind)]
    except _UNREADABLE as error:
        raise MalformedNode(path, data, error) from error
