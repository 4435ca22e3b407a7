"""A broker that gives delegation tokens, its users, and what each of them can do."""

from __future__ import annotations

import contextlib

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.delegation_tokens import settings_with_token
from broker.security.delegation_token_state import IssuedToken
from tests.support.broker_process import BrokerProcess

USERS = ("admin", "alice", "bob", "carol")
TOKEN_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
    "required " + " ".join(f'user_{user}="{user}-secret"' for user in USERS) + ";",
    "super.users": "User:admin",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "delegation.token.secret.key": "of the brokers",
    "delegation.token.max.lifetime.ms": "600000",
    "delegation.token.expiry.time.ms": "60000",
    "delegation.token.expiry.check.interval.ms": "50",
}


def properties_of(broker: BrokerProcess, user: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.listeners["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


def settings_of(broker: BrokerProcess, user: str) -> ClientSettings:
    return ClientSettings.from_properties(properties_of(broker, user))


class Users:
    """`users("alice")` is what alice can do."""

    def __init__(self, broker: BrokerProcess, opened: contextlib.ExitStack) -> None:
        self._broker, self._opened = broker, opened

    def __call__(self, user: str) -> Admin:
        return self.by(settings_of(self._broker, user))

    def by(self, settings: ClientSettings) -> Admin:
        return Admin(self._opened.enter_context(contextlib.closing(Cluster(settings))))

    def with_token(self, token: IssuedToken, mechanism: str = "SCRAM-SHA-256") -> Admin:
        return self.by(settings_with_token(settings_of(self._broker, "nobody"), token, mechanism))
