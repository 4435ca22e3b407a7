"""SCRAM credentials of users, kept in ZooKeeper in Kafka's layout, with a cache.

`/config/users/<name>` has the entries `SCRAM-SHA-256` and `SCRAM-SHA-512` among others. All users are read at start,
and again when a notification names one, so that a login needs no call to ZooKeeper and works while that is away. Lives
on the event loop. No credential appears in a log or error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.security.scram import ScramCredential, ScramMechanism
from broker.zookeeper import znodes
from broker.zookeeper.cluster_store import ClusterStore

logger = logging.getLogger(__name__)

Credentials = Mapping[ScramMechanism, ScramCredential]


class Users:
    def __init__(self, store: ClusterStore) -> None:
        self._registry = store.registry
        self._store = store
        self.credentials: dict[str, Credentials] = {}
        """Of each user who has any."""

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self.credentials.get(user, {}).get(mechanism)

    async def refresh(self, name: str = "") -> None:
        """Read all users: they are few and change rarely. Raises BrokerError when ZooKeeper is away.

        `name` is what a notification named: `NAME`, or `NAME/clients/CLIENT`, which has quotas only.
        """
        if "/" in name:
            return
        configs = await self._store(self._registry.user_configs)
        found = {user: decode_credentials(user, config) for user, config in configs.items()}
        self.credentials = {user: credentials for user, credentials in found.items() if credentials}

    async def alter(self, user: str, changes: Mapping[ScramMechanism, ScramCredential | None]) -> None:
        """Set credentials of a user, or remove those that are None. Raises BrokerError when ZooKeeper is away."""
        config = await self._store(self._alter, user, encode_changes(changes))
        if credentials := decode_credentials(user, config):
            self.credentials[user] = credentials
        else:
            self.credentials.pop(user, None)

    def _alter(self, user: str, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """In one call of the thread, so that all brokers are notified even if the client leaves between the two."""
        config = self._registry.alter_user_config(user, changes)
        self._store.changes.notify_config_change(f"users/{znodes.sanitized(user)}")
        return config


def encode_changes(changes: Mapping[ScramMechanism, ScramCredential | None]) -> dict[str, str | None]:
    return {mechanism.value: made.encode() if made is not None else None for mechanism, made in changes.items()}


def decode_credentials(user: str, config: Mapping[str, str]) -> Credentials:
    """The credentials in a user's config; one that cannot be decoded is logged and left out."""
    found = {}
    for mechanism in ScramMechanism:
        if mechanism.value in config:
            try:
                found[mechanism] = ScramCredential.decode(config[mechanism.value])
            except ValueError as error:
                logger.error("user %r cannot log in by %s: %s in ZooKeeper", user, mechanism.value, error)
    return found
