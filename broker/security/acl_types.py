"""Access control lists, as Kafka's clients and tools know them (KIP-11, KIP-290): the terms, without any decision.

An ACL allows or denies a principal, from a host, an operation on the resources that a pattern names. A pattern is the
name of one resource, `*` for all of a type, or a prefix. Numbers are those of the protocol, titles those of Kafka's
JSON in ZooKeeper and of its tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Self

ALL_RESOURCES = "*"
"""As the name of a literal pattern."""
CLUSTER_NAME = "kafka-cluster"
ANY_HOST = "*"
ANY_PRINCIPAL = "User:*"


class _Term(IntEnum):
    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """UNKNOWN for a number that only a newer Kafka knows."""
        return cls(0) if isinstance(value, int) and value else None

    @property
    def title(self) -> str:
        """As Kafka writes it: `TransactionalId`, `DescribeConfigs`, `Allow`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def of(cls, title: str) -> Self:
        """The term with this title, in any case and with or without underscores. Raises ValueError."""
        wanted = title.replace("_", "").lower()
        for term in cls:
            if term and term.title.lower() == wanted:
                return term
        raise ValueError(f"{title!r} is none of {', '.join(term.title for term in cls if term)}")


class AclResourceType(_Term):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Term):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In filters: every pattern that applies to the resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Term):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_Term):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = AclOperation
SUPPORTED_OPERATIONS: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    AclResourceType.TOPIC: (
        *(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE),
        *(_O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ),
    AclResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    AclResourceType.CLUSTER: (
        *(_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION),
        *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE),
    ),
    AclResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
    AclResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    AclResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
"""What can be done with a resource (Kafka's `AclEntry.supportedOperations`)."""


class ResourcePattern(NamedTuple):
    type: AclResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.type.title}:{self.pattern.name}:{self.name}"


class AccessControlEntry(NamedTuple):
    """Who may do, or may not do, what. `principal` is `User:name` or `User:*`, `host` an address or `*`."""

    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = ANY_HOST

    def __str__(self) -> str:
        return f"{self.permission.title} {self.principal} {self.operation.title} from {self.host}"


class Acl(NamedTuple):
    """One entry of a pattern; Kafka's `AclBinding`."""

    pattern: ResourcePattern
    entry: AccessControlEntry

    def __str__(self) -> str:
        return f"{self.entry} on {self.pattern}"


class AclFilter(NamedTuple):
    """Chooses ACLs. None and ANY stand for all."""

    type: AclResourceType = AclResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    @classmethod
    def of(cls, acl: Acl) -> Self:
        """Chooses this ACL and no other."""
        entry = acl.entry
        return cls(*acl.pattern, entry.principal, entry.host, entry.operation, entry.permission)

    def matches_pattern(self, found: ResourcePattern) -> bool:
        if self.type is not AclResourceType.ANY and self.type is not found.type:
            return False
        if self.pattern in (PatternType.LITERAL, PatternType.PREFIXED) and self.pattern is not found.pattern:
            return False
        if self.name is None or self.name == found.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if found.pattern is PatternType.LITERAL:
            return found.name == ALL_RESOURCES
        return self.name.startswith(found.name)

    def matches_entry(self, found: AccessControlEntry) -> bool:
        return (
            self.principal in (None, found.principal)
            and self.host in (None, found.host)
            and self.operation in (AclOperation.ANY, found.operation)
            and self.permission in (AclPermission.ANY, found.permission)
        )

    @property
    def named_patterns(self) -> tuple[ResourcePattern, ...]:
        """The patterns that this filter names, if it names them: they can be read without a list of all."""
        if self.name is None or self.type is AclResourceType.ANY or self.pattern is PatternType.MATCH:
            return ()
        both = (PatternType.LITERAL, PatternType.PREFIXED)
        kinds = both if self.pattern is PatternType.ANY else (self.pattern,)
        return tuple(ResourcePattern(self.type, self.name, kind) for kind in kinds)


EVERY_ACL = AclFilter()
