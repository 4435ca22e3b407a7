"""Whom a quota is for, and what can be limited (KIP-13, KIP-55, KIP-124, KIP-599, KIP-612). Pure.

`QuotaLimits` finds the quota of a client among those of one key, in Kafka's order of precedence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple

DEFAULT: Final = ""
"""In place of a name: the quota of all that have none of their own. Names are never empty."""
USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""The types of entities, as the protocol names them."""


class QuotaEntity(NamedTuple):
    """A user, a client id, both, or an IP address; each is None, a name, or DEFAULT."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str]:
        """Type → name or DEFAULT, for the types that it has."""
        named = {USER: self.user, CLIENT_ID: self.client_id, IP: self.ip}
        return {kind: name for kind, name in named.items() if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name}" if name else f"default {kind}" for kind, name in self.parts().items())


@dataclasses.dataclass(frozen=True)
class QuotaKey:
    """Something that can be limited, per second. `type` is Kafka's: double, long or int."""

    name: str
    type: str
    doc: str

    def format(self, value: float) -> str | None:
        """The value as it is stored; None unless it is of this type."""
        if self.type == "double":
            return repr(float(value))
        whole = int(value + 1e-6)
        limit = 2**63 if self.type == "long" else 2**31
        return str(whole) if abs(whole - value) <= 1e-6 and whole < limit else None


PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_DECLARED = (
    QuotaKey(PRODUCER_BYTE_RATE, "long", "Bytes of Produce requests."),
    QuotaKey(CONSUMER_BYTE_RATE, "long", "Bytes of Fetch responses."),
    QuotaKey(REQUEST_PERCENTAGE, "double", "Time that the broker works for the client, in percent of one core."),
    QuotaKey(CONTROLLER_MUTATION_RATE, "double", "Partitions created and deleted."),
    QuotaKey(CONNECTION_CREATION_RATE, "int", "Connections accepted from the address."),
)
QUOTA_KEYS: Final[Mapping[str, QuotaKey]] = {key.name: key for key in _DECLARED}
IP_KEYS: Final = frozenset({CONNECTION_CREATION_RATE})
CLIENT_KEYS: Final = frozenset(QUOTA_KEYS) - IP_KEYS
"""The keys of users and client ids."""

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""The quotas of a cluster: entity → key → limit."""


class QuotaLimits:
    """The limits of one key. Those who share a limit share one rate, whose name `find` returns."""

    def __init__(self, quotas: Quotas, key: str) -> None:
        self._limits = {
            (entity.user, entity.client_id): limits[key] for entity, limits in quotas.items() if key in limits
        }
        self._by_user = any(user is not None for user, _ in self._limits)

    def __bool__(self) -> bool:
        return bool(self._limits)

    def find(self, user: str, client_id: str) -> tuple[tuple[str, str], float] | None:
        """(whose rate it is, the limit); None if the client has no quota.

        The most specific entity counts. A default is a limit for each one that it applies to. As in Kafka, a client
        without a client id has the quotas of its user only.
        """
        limits = self._limits
        if self._by_user:
            for name in (user, DEFAULT):
                if client_id:
                    limit = limits.get((name, client_id))
                    if limit is None:
                        limit = limits.get((name, DEFAULT))
                    if limit is not None:
                        return (user, client_id), limit
                limit = limits.get((name, None))
                if limit is not None:
                    return (user, ""), limit
        if not client_id:
            return None
        limit = limits.get((None, client_id))
        if limit is None:
            limit = limits.get((None, DEFAULT))
        return None if limit is None else (("", client_id), limit)
