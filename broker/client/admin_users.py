"""Users who log in by SCRAM: a part of what an admin client does (KIP-554).

Called by `pykafka users` and tests. The password is salted here and never sent. Raises BrokerError with what the broker
said.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from broker.client.cluster import Cluster
from broker.errors import raise_for
from broker.protocol.api_keys import ApiKey
from broker.security.scram import MIN_ITERATIONS, ScramMechanism

__all__ = ["UserAdmin"]

_MECHANISMS = {one.number: one for one in ScramMechanism}
_SALT_BYTES = 16


class UserAdmin:
    """The SCRAM credentials of users. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def describe_users(self) -> dict[str, dict[ScramMechanism, int]]:
        """Every user with a credential: mechanism → iterations; SCRAM-SHA-256 first, whatever order a broker has."""
        answer = self._ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        raise_for(answer.error_code, answer.error_message or "")
        found = {row.user: {info.mechanism: info.iterations for info in row.credential_infos} for row in answer.results}
        return {user: {_MECHANISMS[number]: has[number] for number in sorted(has)} for user, has in found.items()}

    def set_password(
        self, user: str, password: str, mechanisms: Iterable[ScramMechanism], iterations: int = MIN_ITERATIONS
    ) -> None:
        """Give a user, new or not, a password for each of the mechanisms, one after the other."""
        for mechanism in mechanisms:
            salt = secrets.token_bytes(_SALT_BYTES)
            row = {
                "name": user,
                "mechanism": mechanism.number,
                "iterations": iterations,
                "salt": salt,
                "salted_password": mechanism.salted_password(password, salt, iterations),
            }
            self._alter({"deletions": (), "upsertions": [row]})

    def delete_user(self, user: str, mechanisms: Iterable[ScramMechanism]) -> None:
        """Take away the credentials of these mechanisms, which he must have, one after the other."""
        for mechanism in mechanisms:
            self._alter({"deletions": [{"name": user, "mechanism": mechanism.number}], "upsertions": ()})

    def _alter(self, body: Mapping[str, Any]) -> None:
        """One change: Kafka with KRaft takes no two for a user in a request, as its controller goes by names alone."""
        for row in self._ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results:
            raise_for(row.error_code, f"user {row.user!r}: {row.error_message}")

    def _ask(self, api: ApiKey, body: Mapping[str, Any]) -> Any:
        """The controller, where Kafka keeps them in ZooKeeper."""
        cluster = self.cluster
        return cluster.retrying(lambda: cluster.connection(cluster.controller()).request(api, body))
