"""Security settings: protocols of listeners, TLS, SASL, and what a listener overrides.

`listener.name.<name>.<key>` overrides a key for one listener. `listener.name.<name>.plain.sasl.jaas.config` lists the
users of PLAIN; those of SCRAM are in ZooKeeper (cluster/users.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from broker.config.listener import Listener
from broker.errors import ConfigError
from broker.security.jaas import parse_jaas
from broker.security.stores import SECURITY, StoreSettings
from broker.settings import Long, at_least, did_you_mean, one_of, parse_properties, setting, settings_of

__all__ = ["LISTENER_PREFIX", "MECHANISMS", "ListenerSecurity", "SecuritySettings", "listener_security"]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENER_PREFIX = "listener.name."
_JAAS = "sasl.jaas.config"
_security = partial(setting, group=SECURITY)
_NOT_PER_LISTENER = frozenset(["listener.security.protocol.map", "inter.broker.listener.name"])


def _supported(value: tuple[str, ...]) -> str | None:
    wrong = [name for name in value if name not in MECHANISMS]
    return f"{wrong[0]} is not supported; choose from {', '.join(MECHANISMS)}" if wrong else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecuritySettings(StoreSettings):
    """The stores of keys and certificates are in the base class."""

    listener_security_protocol_map: tuple[str, ...] = _security(
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "NAME:PROTOCOL,…: the security protocol of each listener.",
    )
    inter_broker_listener_name: str | None = _security(None, "Listener that brokers use among themselves.")
    ssl_client_auth: str = _security(
        "none",
        "Whether clients show a certificate: none, requested or required.",
        one_of(("none", "requested", "required")),
    )
    ssl_enabled_protocols: tuple[str, ...] = _security(
        ("TLSv1.2", "TLSv1.3"), "Accepted TLS versions.", one_of(("TLSv1.2", "TLSv1.3"))
    )
    ssl_cipher_suites: tuple[str, ...] = _security(
        (), "Cipher suites of TLS 1.2, in OpenSSL's names; by default OpenSSL's."
    )
    sasl_enabled_mechanisms: tuple[str, ...] = _security(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "SASL mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 (GSSAPI, Kafka's default, is not supported).",
        _supported,
    )
    sasl_server_max_receive_size: int = _security(
        524288, "Before authentication, a larger request closes its connection.", at_least(1)
    )
    connection_failed_authentication_delay_ms: int = _security(
        100, "Delay of the response to a failed login.", at_least(0)
    )
    connections_max_reauth_ms: Long = _security(
        0, "A connection is closed unless its client logs in again within this time (KIP-368); 0: never.", at_least(0)
    )


@dataclasses.dataclass(frozen=True)
class ListenerSecurity:
    listener: Listener
    settings: SecuritySettings
    plain_users: Mapping[str, str] = dataclasses.field(repr=False)
    """User → password of PLAIN."""


def listener_security(settings: SecuritySettings, listener: Listener, overrides: Mapping[str, str]) -> ListenerSecurity:
    """`settings` with the `overrides` (the keys `listener.name.…` of all listeners) of this listener.

    Raises ConfigError for a key that cannot be overridden or parsed, and for SASL without a mechanism or a user.
    """
    prefix = f"{LISTENER_PREFIX}{listener.name.lower()}."
    own = {key[len(prefix) :]: text for key, text in overrides.items() if key.lower().startswith(prefix)}
    modules = {key: own.pop(key) for key in tuple(own) if key.endswith(_JAAS)}
    known = settings_of(SecuritySettings)
    for key in own:
        if key not in known or key in _NOT_PER_LISTENER:
            raise ConfigError(f"{prefix}{key}: {key!r} cannot be set for one listener{did_you_mean(key, known)}")
    base = SecuritySettings(**{one.attribute: getattr(settings, one.attribute) for one in known.values()})
    merged = parse_properties(SecuritySettings, own, base=base)
    users: dict[str, str] = {}
    for key, text in modules.items():
        module = parse_jaas(text, prefix + key)
        if module.name == "PlainLoginModule":
            users |= module.users
        elif module.name != "ScramLoginModule":
            raise ConfigError(
                f"{prefix}{key}: {module.name} is not supported; use PlainLoginModule or ScramLoginModule"
            )
    if listener.sasl and not merged.sasl_enabled_mechanisms:
        raise ConfigError(f"listener {listener.name}: name a mechanism in sasl.enabled.mechanisms")
    if listener.sasl and "PLAIN" in merged.sasl_enabled_mechanisms and not users:
        raise ConfigError(
            f"listener {listener.name} has no user for PLAIN: set {prefix}plain.{_JAAS}="
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
        )
    return ListenerSecurity(listener, merged, users)
