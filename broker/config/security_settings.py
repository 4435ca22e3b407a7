"""Who may connect and how: what listeners speak, TLS, SASL; and what one listener has of its own.

A part of `BrokerConfig`. `listener.name.<name>.<key>` overrides a key for one listener; the users of PLAIN are there
only, in `listener.name.<name>.plain.sasl.jaas.config`. Those of SCRAM are in ZooKeeper (cluster/users.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from broker.config.listener import Listener
from broker.errors import ConfigError
from broker.security.jaas import parse_jaas
from broker.security.store_settings import SECURITY, StoreSettings
from broker.settings import at_least, did_you_mean, one_of, parse_properties, setting, settings_of

__all__ = ["LISTENER_PREFIX", "MECHANISMS", "ListenerSecurity", "SecuritySettings", "listener_security"]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENER_PREFIX = "listener.name."
_JAAS = "sasl.jaas.config"
_NOT_PER_LISTENER = frozenset(["listener.security.protocol.map", "inter.broker.listener.name"])


def _served(value: tuple[str, ...]) -> str | None:
    wrong = [name for name in value if name not in MECHANISMS]
    return f"{wrong[0]} is not served; there are {', '.join(MECHANISMS)}" if wrong else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecuritySettings(StoreSettings):
    """A part of `BrokerConfig`; the stores of keys and certificates are in the base."""

    listener_security_protocol_map: tuple[str, ...] = setting(
        "listener.security.protocol.map",
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "NAME:PROTOCOL,…: what the listener of each name speaks.",
        group=SECURITY,
    )
    inter_broker_listener_name: str | None = setting(
        "inter.broker.listener.name", None, "The listener that brokers are to use among themselves.", group=SECURITY
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "none",
        "Whether clients show a certificate: none, requested or required.",
        group=SECURITY,
        check=one_of(("none", "requested", "required")),
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        "Versions of TLS that are spoken.",
        group=SECURITY,
        check=one_of(("TLSv1.2", "TLSv1.3")),
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        "ssl.cipher.suites", (), "Cipher suites of TLS 1.2, in OpenSSL's names; by default OpenSSL's.", group=SECURITY
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "Ways to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 (Kafka's default, GSSAPI, is not served).",
        group=SECURITY,
        check=_served,
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        524288,
        "A larger request closes its connection while nobody has logged in on it.",
        group=SECURITY,
        check=at_least(1),
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        100,
        "How long the answer to a failed login is held back.",
        group=SECURITY,
        check=at_least(0),
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        0,
        "A connection whose client has not logged in again for so long is closed (KIP-368); 0 for never.",
        group=SECURITY,
        check=at_least(0),
        type="long",
    )


@dataclasses.dataclass(frozen=True)
class ListenerSecurity:
    """What holds for one listener."""

    listener: Listener
    settings: SecuritySettings
    plain_users: Mapping[str, str] = dataclasses.field(repr=False)
    """User → password, of PLAIN."""


def listener_security(settings: SecuritySettings, listener: Listener, overrides: Mapping[str, str]) -> ListenerSecurity:
    """`settings` with those of `overrides`, the keys `listener.name.…` of all listeners, that name this one.

    Raises ConfigError for a key that cannot be overridden or read, and for SASL without a mechanism or a user.
    """
    prefix = f"{LISTENER_PREFIX}{listener.name.lower()}."
    own = {key[len(prefix) :]: text for key, text in overrides.items() if key.lower().startswith(prefix)}
    modules = {key: own.pop(key) for key in tuple(own) if key.endswith(_JAAS)}
    known = settings_of(SecuritySettings)
    for key in own:
        if key not in known or key in _NOT_PER_LISTENER:
            raise ConfigError(f"{prefix}{key}: a listener has no setting {key!r} of its own{did_you_mean(key, known)}")
    base = SecuritySettings(**{one.attribute: getattr(settings, one.attribute) for one in known.values()})
    merged = parse_properties(SecuritySettings, own, base=base)
    users: dict[str, str] = {}
    for key, text in modules.items():
        module = parse_jaas(text, prefix + key)
        if module.name == "PlainLoginModule":
            users |= module.users
        elif module.name != "ScramLoginModule":
            raise ConfigError(f"{prefix}{key}: {module.name} is not served; use PlainLoginModule or ScramLoginModule")
    if listener.sasl and not merged.sasl_enabled_mechanisms:
        raise ConfigError(f"listener {listener.name}: name a way to log in in sasl.enabled.mechanisms")
    if listener.sasl and "PLAIN" in merged.sasl_enabled_mechanisms and not users:
        raise ConfigError(
            f"listener {listener.name} has no user for PLAIN: set {prefix}plain.{_JAAS}="
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
        )
    return ListenerSecurity(listener, merged, users)
