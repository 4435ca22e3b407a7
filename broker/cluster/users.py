"""Users who log in by SCRAM: their credentials in ZooKeeper, in Kafka's layout, and what of them is known here.

`/config/users/<name>` holds `SCRAM-SHA-256` and `SCRAM-SHA-512` beside whatever else is kept of a user. All of them are
read at the start and again when a notification names one, so that a login costs no question to ZooKeeper and goes on
while that is away. Called by the listeners (`credential`), by the handlers of the user APIs, and by the server; lives
on the event loop. No credential is in any log or error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.security.scram import ScramCredential, ScramMechanism
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeperCalls
from broker.zookeeper.registry import Registry

__all__ = ["Credentials", "Users", "decode_credentials", "encode_changes"]

logger = logging.getLogger(__name__)

Credentials = Mapping[ScramMechanism, ScramCredential]


class Users:
    """The users of a cluster, as far as SCRAM knows them."""

    def __init__(self, registry: Registry, calls: ZooKeeperCalls, *, tell_changed: Callable[[str], None]) -> None:
        """`tell_changed("users/NAME")`, which blocks, tells the other brokers."""
        self._registry = registry
        self._call = calls
        self._tell_changed = tell_changed
        self._known: dict[str, Credentials] = {}

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._known.get(user, {}).get(mechanism)

    def credentials(self) -> Mapping[str, Credentials]:
        """Those of every user who has one."""
        return self._known

    async def refresh(self, _: str = "") -> None:
        """Read all users again: there are few, and none changes often. Raises BrokerError when ZooKeeper is away."""
        configs = await self._call(self._registry.user_configs)
        found = {user: decode_credentials(user, config) for user, config in configs.items()}
        self._known = {user: credentials for user, credentials in found.items() if credentials}

    async def alter(self, user: str, changes: Mapping[ScramMechanism, ScramCredential | None]) -> None:
        """Set credentials of a user, or with None take them away. Raises BrokerError when ZooKeeper is away."""
        config = await self._call(self._registry.alter_user_config, user, encode_changes(changes))
        if credentials := decode_credentials(user, config):
            self._known[user] = credentials
        else:
            self._known.pop(user, None)
        await self._call(self._tell_changed, f"users/{znodes.sanitized(user)}")


def encode_changes(changes: Mapping[ScramMechanism, ScramCredential | None]) -> dict[str, str | None]:
    """As changes of a user's config."""
    return {mechanism.value: made.encode() if made is not None else None for mechanism, made in changes.items()}


def decode_credentials(user: str, config: Mapping[str, str]) -> Credentials:
    """Those in a user's config; one that cannot be read is left out, and logged."""
    found = {}
    for mechanism in ScramMechanism:
        if mechanism.value in config:
            try:
                found[mechanism] = ScramCredential.decode(config[mechanism.value])
            except ValueError as error:
                logger.error("user %r cannot log in by %s: %s in ZooKeeper", user, mechanism.value, error)
    return found
