"""Decides by ACLs who may do what (kafka.security.authorizer.AclAuthorizer). Pure and immutable.

Deny wins over allow. Without an ACL that applies to the resource, `allow.everyone.if.no.acl.found` decides. Reading,
writing, deleting and altering imply describing; altering settings implies describing them. Denials imply nothing.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

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

Acls = Mapping[ResourcePattern, Collection[AccessControlEntry]]

_O = AclOperation
_IMPLIED_BY = {
    _O.DESCRIBE: (_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
}


class AclSnapshot:
    def __init__(self, acls: Acls | None = None, *, allow_if_none: bool = False) -> None:
        """`allow_if_none`: whether everybody may use a resource that no ACL applies to."""
        self.allow_if_none = allow_if_none
        self.acls: dict[ResourcePattern, Collection[AccessControlEntry]] = {}
        self._of: dict[tuple[AclResourceType, str], Mapping[ResourcePattern, Sequence[AccessControlEntry]]] = {}
        """By type and principal. Addresses are written as those of connections are."""
        self._prefix_lengths: dict[AclResourceType, list[int]] = {}
        self._take(acls or {})

    def __len__(self) -> int:
        return sum(map(len, self.acls.values()))

    def changed(self, news: Acls) -> AclSnapshot:
        """With the ACLs of some patterns replaced; a pattern without entries has none."""
        made = copy.copy(self)
        made._take(news)
        return made

    def allows(self, principal: str, host: str, operation: AclOperation, type: AclResourceType, name: str) -> bool:
        """Whether `principal` (`User:name`) at `host`, as `plain_address` gives it, may do this to the resource."""
        patterns = list(self._applying(type, name))
        if not patterns:
            return self.allow_if_none
        entries = [
            entry
            for found in self._for(principal, type)
            for pattern in patterns
            for entry in found.get(pattern, ())
            if entry.host in (host, ANY_HOST)
        ]
        if _has(entries, AclPermission.DENY, (operation,)):
            return False
        return _has(entries, AclPermission.ALLOW, _IMPLIED_BY.get(operation, (operation,)))

    def allows_any(self, principal: str, host: str, operation: AclOperation, type: AclResourceType) -> bool:
        """Whether there may be a resource of this type to which `principal` may do this (KIP-679)."""
        allowed: set[ResourcePattern] = set()
        denied: set[ResourcePattern] = set()
        for found in self._for(principal, type):
            for pattern, entries in found.items():
                fitting = [entry for entry in entries if entry.host in (host, ANY_HOST)]
                if _has(fitting, AclPermission.DENY, (operation,)):
                    denied.add(pattern)
                if _has(fitting, AclPermission.ALLOW, (operation,)):
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

    def _for(
        self, principal: str, type: AclResourceType
    ) -> Iterator[Mapping[ResourcePattern, Sequence[AccessControlEntry]]]:
        for whom in dict.fromkeys((principal, ANY_PRINCIPAL)):
            yield self._of.get((type, whom), {})

    def _take(self, news: Acls) -> None:
        """Replace the ACLs of these patterns. Other snapshots share the rest: only what changes is copied."""
        before = self.acls
        self.acls = {**before, **{pattern: tuple(entries) for pattern, entries in news.items()}}
        of: dict[tuple[AclResourceType, str], dict[ResourcePattern, Sequence[AccessControlEntry]]] = {}
        for pattern in news:
            by_principal: dict[str, list[AccessControlEntry]] = {
                entry.principal: [] for entry in before.get(pattern, ())
            }
            for entry in self.acls[pattern]:
                plain = entry._replace(host=plain_address(entry.host))
                by_principal.setdefault(entry.principal, []).append(plain)
            for principal, entries in by_principal.items():
                key = (pattern.type, principal)
                by_pattern = of.get(key)
                if by_pattern is None:
                    by_pattern = of[key] = dict(self._of.get(key, {}))
                by_pattern[pattern] = entries
                if not entries:
                    del by_pattern[pattern]
            if not self.acls[pattern]:
                del self.acls[pattern]
        self._of = {key: by_pattern for key, by_pattern in {**self._of, **of}.items() if by_pattern}
        lengths: dict[AclResourceType, set[int]] = defaultdict(set)
        for pattern in self.acls:
            if pattern.pattern is PatternType.PREFIXED:
                lengths[pattern.type].add(len(pattern.name))
        self._prefix_lengths = {type: sorted(found) for type, found in lengths.items()}


def _has(
    entries: Collection[AccessControlEntry], permission: AclPermission, operations: Collection[AclOperation]
) -> bool:
    return any(
        entry.permission is permission and (entry.operation in operations or entry.operation is AclOperation.ALL)
        for entry in entries
    )
