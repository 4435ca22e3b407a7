"""Decides by ACLs who may do what (kafka.security.authorizer.AclAuthorizer). Pure and immutable.

Deny wins over allow. Without an ACL that applies to the resource, `allow.everyone.if.no.acl.found` decides. Reading,
writing, deleting and altering imply describing; altering settings implies describing them. Denials imply nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from broker.security.acl_types import (
    ALL_RESOURCES,
    ANY_HOST,
    ANY_PRINCIPAL,
    AccessControlEntry,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.security.addresses import plain_address

__all__ = ["AclSnapshot"]

Acls = Mapping[ResourcePattern, Collection[AccessControlEntry]]

_O = AclOperation
_IMPLIED_BY = {
    _O.DESCRIBE: (_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
}


class AclSnapshot:
    """All ACLs at one time."""

    def __init__(self, acls: Acls | None = None, *, allow_if_none: bool = False) -> None:
        """`allow_if_none`: whether everybody may use a resource that no ACL applies to."""
        self.acls: Acls = {pattern: tuple(entries) for pattern, entries in (acls or {}).items() if entries}
        self._entries = {
            pattern: [entry._replace(host=plain_address(entry.host)) for entry in entries]
            for pattern, entries in self.acls.items()
        }
        """As in `acls`, with addresses as those of connections are written."""
        self.allow_if_none = allow_if_none
        lengths: dict[AclResourceType, set[int]] = defaultdict(set)
        for pattern in self.acls:
            if pattern.pattern is PatternType.PREFIXED:
                lengths[pattern.type].add(len(pattern.name))
        self._prefix_lengths = {type: sorted(found) for type, found in lengths.items()}

    def __len__(self) -> int:
        return sum(map(len, self.acls.values()))

    def changed(self, news: Acls) -> AclSnapshot:
        """With the ACLs of some patterns replaced; a pattern without entries has none."""
        return AclSnapshot({**self.acls, **news}, allow_if_none=self.allow_if_none)

    def allows(self, principal: str, host: str, operation: AclOperation, type: AclResourceType, name: str) -> bool:
        """Whether `principal` (`User:name`) at `host`, as `plain_address` gives it, may do this to the resource."""
        entries = [entry for pattern in self._applying(type, name) for entry in self._entries[pattern]]
        if not entries:
            return self.allow_if_none
        mine = [entry for entry in entries if _is_for(entry, principal, host)]
        if _has(mine, AclPermission.DENY, (operation,)):
            return False
        return _has(mine, AclPermission.ALLOW, _IMPLIED_BY.get(operation, (operation,)))

    def allows_any(self, principal: str, host: str, operation: AclOperation, type: AclResourceType) -> bool:
        """Whether there may be a resource of this type to which `principal` may do this (KIP-679)."""
        allowed: set[ResourcePattern] = set()
        denied: set[ResourcePattern] = set()
        for pattern, entries in self._entries.items():
            if pattern.type is type:
                mine = [entry for entry in entries if _is_for(entry, principal, host)]
                if _has(mine, AclPermission.DENY, (operation,)):
                    denied.add(pattern)
                if _has(mine, AclPermission.ALLOW, (operation,)):
                    allowed.add(pattern)
        if ResourcePattern(type, ALL_RESOURCES) in denied:
            return False
        if self.allow_if_none or ResourcePattern(type, ALL_RESOURCES) in allowed:
            return True
        prefixes = tuple(pattern.name for pattern in denied if pattern.pattern is PatternType.PREFIXED)
        return any(
            not pattern.name.startswith(prefixes) and (pattern.pattern is PatternType.PREFIXED or pattern not in denied)
            for pattern in allowed
        )

    def matching(self, wanted: AclFilter) -> Iterator[tuple[ResourcePattern, list[AccessControlEntry]]]:
        """The ACLs that a filter chooses, by pattern."""
        for pattern, entries in self.acls.items():
            if wanted.matches_pattern(pattern):
                found = [entry for entry in entries if wanted.matches_entry(entry)]
                if found:
                    yield pattern, found

    def _applying(self, type: AclResourceType, name: str) -> Iterator[ResourcePattern]:
        for literal in dict.fromkeys((name, ALL_RESOURCES)):
            pattern = ResourcePattern(type, literal)
            if pattern in self.acls:
                yield pattern
        for length in self._prefix_lengths.get(type, ()):
            if length > len(name):
                break
            pattern = ResourcePattern(type, name[:length], PatternType.PREFIXED)
            if pattern in self.acls:
                yield pattern


def _is_for(entry: AccessControlEntry, principal: str, host: str) -> bool:
    return entry.principal in (principal, ANY_PRINCIPAL) and entry.host in (host, ANY_HOST)


def _has(
    entries: Collection[AccessControlEntry], permission: AclPermission, operations: Collection[AclOperation]
) -> bool:
    return any(
        entry.permission is permission and (entry.operation in operations or entry.operation is AclOperation.ALL)
        for entry in entries
    )
