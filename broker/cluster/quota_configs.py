"""The quotas of users, client ids and addresses: kept in ZooKeeper in Kafka's layout, with a cache.

All are read at start, and one again when a notification names it. So nobody asks ZooKeeper for a request, and the last
known quotas apply while it is away. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import math
import socket
from collections.abc import Iterable, Mapping

from broker.cluster.cluster_watch import ClusterWatch
from broker.errors import BrokerError, ErrorCode
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.connection_rates import NO_LIMIT, ConnectionRates
from broker.quotas.quota_entity import CLIENT_ID, CONNECTION_CREATION_RATE, DEFAULT, IP, USER, QuotaEntity, Quotas
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.config_nodes import entity_of, entity_path

logger = logging.getLogger(__name__)


class QuotaConfigs:
    """The quotas of the cluster. Hands them to those who apply them on this broker."""

    def __init__(self, store: ClusterStore, *, clients: ClientQuotas, connections: ConnectionRates) -> None:
        self._registry = store.registry
        self._store = store
        self._clients = clients
        self._connections = connections
        self.known: dict[QuotaEntity, Mapping[str, float]] = {}
        """Entity → key → limit, of the entities that have some."""
        self._changing = asyncio.Lock()

    def watch(self, changes: ClusterWatch) -> None:
        """Read again what notifications name."""
        for kind in ("users", "clients", "ips"):
            changes.add_config_listener(kind, functools.partial(self._on_change, kind))

    async def _on_change(self, kind: str, name: str) -> None:
        if name:
            await self.refresh(f"{kind}/{name}")
        elif kind == "users":  # any kind may have changed: all are read at once
            await self.refresh()

    async def refresh(self, path: str = "") -> None:
        """Read the entity of `path`, such as `users/alice`, or all. Raises BrokerError when ZooKeeper is away."""
        entity = entity_of(path)
        if path and entity is None:
            return
        async with self._changing:
            if entity is None:
                found = await self._store(self._registry.quotas.read_all)
                self.known = {one: limits for one, texts in found.items() if (limits := parse_limits(one, texts))}
            else:
                self._put(entity, await self._store(self._registry.quotas.read, entity))
            await self._apply(by_address=entity is None or entity.ip is not None)

    async def alter(self, entity: QuotaEntity, changes: Mapping[str, str | None]) -> None:
        """Set quotas of an entity, or remove those that are None. Raises BrokerError when ZooKeeper is away."""
        async with self._changing:
            self._put(entity, await self._store(self._alter, entity, changes))
            await self._apply(by_address=entity.ip is not None)

    def _alter(self, entity: QuotaEntity, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """In one call of the thread, so that all brokers are notified even if the client leaves between the two."""
        quotas = self._registry.quotas.alter(entity, changes)
        self._store.changes.notify_config_change(entity_path(entity))
        return quotas

    def _put(self, entity: QuotaEntity, texts: Mapping[str, str]) -> None:
        known = dict(self.known)
        if limits := parse_limits(entity, texts):
            known[entity] = limits
        else:
            known.pop(entity, None)
        self.known = known

    async def _apply(self, *, by_address: bool) -> None:
        self._clients.update(self.known)
        if by_address:
            limits = {entity.ip: found[CONNECTION_CREATION_RATE] for entity, found in _of_ips(self.known)}
            default = limits.pop(DEFAULT, NO_LIMIT)
            self._connections.update_ips(await asyncio.to_thread(_resolved, limits), default)

    def find(
        self, wanted: Mapping[str, str | None], *, strict: bool
    ) -> Iterable[tuple[QuotaEntity, Mapping[str, float]]]:
        """The entities that have each wanted type (a name, DEFAULT, or None for any); `strict`: and no other type.

        Raises BrokerError as Kafka does for types that do not go together.
        """
        for kind in wanted:
            if not kind:
                raise BrokerError(ErrorCode.invalid_request, "Unexpected empty filter component entity type")
            if kind not in (USER, CLIENT_ID, IP):
                raise BrokerError(ErrorCode.unsupported_version, f"Custom entity type '{kind}' not supported")
        if IP in wanted and len(wanted) > 1:
            raise BrokerError(
                ErrorCode.invalid_request,
                "Invalid entity filter component combination, IP filter component should not be used with user or "
                "clientId filter component.",
            )
        for entity, limits in self.known.items():
            parts = entity.parts()
            matches = all(kind in parts and name in (None, parts[kind]) for kind, name in wanted.items())
            if matches and not (strict and parts.keys() - wanted.keys()):
                yield entity, limits


def parse_limits(entity: QuotaEntity, texts: Mapping[str, str]) -> dict[str, float]:
    """The limits in a config. One that is not a number above 0 is logged and left out."""
    found = {}
    for key, text in texts.items():
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if limit > 0 and math.isfinite(limit):
            found[key] = limit
        else:
            logger.error("%s=%s of %s in ZooKeeper is ignored: it is not a number above 0", key, text, entity)
    return found


def addresses_of(name: str) -> list[str]:
    """The addresses of a host, or the address itself, as those of connections are written. Blocks; raises OSError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(ipaddress.ip_address(str(row[4][0]).partition("%")[0])) for row in found))


def _of_ips(quotas: Quotas) -> Iterable[tuple[QuotaEntity, Mapping[str, float]]]:
    return ((entity, limits) for entity, limits in quotas.items() if entity.ip is not None)


def _resolved(limits: Mapping[str | None, float]) -> dict[str, float]:
    """Limits by address. A host that has none (any more) is logged and left out."""
    found: dict[str, float] = {}
    for name, limit in limits.items():
        try:
            found.update(dict.fromkeys(addresses_of(name or ""), limit))
        except (OSError, UnicodeError) as error:
            logger.error("the quota of ip %s is ignored: %s", name, error)
    return found
