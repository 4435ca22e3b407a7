"""Security settings: protocols of listeners, TLS, SASL, and what a listener overrides.

`listener.name.<name>.<key>` overrides a key for one listener. `listener.name.<name>.plain.sasl.jaas.config` lists the
users of PLAIN; those of SCRAM are in ZooKeeper (cluster/users.py). `username` and `password` in the
`listener.name.<name>.<mechanism>.sasl.jaas.config` of the inter-broker listener are what brokers log in with. With
OAUTHBEARER these are `clientId` and `clientSecret`, and its tokens are checked as `sasl.oauthbearer.…` says. With
GSSAPI the keytab is what a broker accepts tickets with, and what it logs in with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

from broker.config.listener import PROTOCOLS, Listener
from broker.errors import ConfigError
from broker.security.foreign_logins import LOGIN_HANDLERS
from broker.security.identity_provider import is_file, require_url
from broker.security.jaas import LoginModule, parse_jaas
from broker.security.kerberos import identity_of_module, service_name
from broker.security.kerberos_login import KerberosLogin
from broker.security.kerberos_rules import KerberosRules
from broker.security.kerberos_server import KerberosKeys
from broker.security.login import Login
from broker.security.mechanisms import GSSAPI, LOGIN_MODULES, MECHANISMS, OAUTHBEARER
from broker.security.oauthbearer import TokenLogin, client_first
from broker.security.password_login import password_login
from broker.security.principal_mapping import PrincipalMapping
from broker.security.stores import SECURITY, StoreSettings
from broker.security.token_providers.file import URL
from broker.security.token_providers.provider_table import usual_provider
from broker.security.token_source import sasl_extensions, token_source, without_extensions
from broker.settings import Long, at_least, did_you_mean, one_of, parse_properties, setting, settings_of

LISTENER_PREFIX = "listener.name."
ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
_JAAS = "sasl.jaas.config"
_OAUTH_PREFIX = "oauthbearer."
_VALIDATOR = "oauthbearer.sasl.server.callback.handler.class"
_UNSIGNED_VALIDATOR = "OAuthBearerUnsecuredValidatorCallbackHandler"
_LOGIN_HANDLER = "oauthbearer.sasl.login.callback.handler.class"
_KRB5_MODULE = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
    'keyTab="/etc/kafka.keytab" principal="kafka/HOST@REALM";'
)
_HANDLERS = {_VALIDATOR: ("OAuthBearerValidatorCallbackHandler", _UNSIGNED_VALIDATOR), _LOGIN_HANDLER: LOGIN_HANDLERS}
"""Kafka's classes that may be named for a listener."""
_security = partial(setting, group=SECURITY)
_NOT_PER_LISTENER = frozenset(
    [
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "super.users",
        "authorizer.class.name",
        "allow.everyone.if.no.acl.found",
    ]
)


def _supported(value: tuple[str, ...] | str | None) -> str | None:
    names = value if isinstance(value, tuple) else () if value is None else (value,)
    wrong = [name for name in names if name not in MECHANISMS]
    return f"{wrong[0]} is not supported; choose from {', '.join(MECHANISMS)}" if wrong else None


def parse_super_users(text: str) -> frozenset[str]:
    """The principals in `super.users`, which are separated by semicolons since names of certificates have commas."""
    return frozenset(principal.strip() for principal in text.split(";") if principal.strip())


def _mapping_rules(value: str) -> str | None:
    try:
        PrincipalMapping(value)
    except ConfigError as error:
        return str(error)
    return None


def _kerberos_rules(value: tuple[str, ...]) -> str | None:
    try:
        KerberosRules(value)
    except ConfigError as error:
        return str(error)
    return None


def _principals(value: str) -> str | None:
    wrong = sorted(principal for principal in parse_super_users(value) if not principal.startswith("User:"))
    return f"expected User:name;User:name, found {wrong[0]!r}" if wrong else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecuritySettings(StoreSettings):
    """The stores of keys and certificates are in the base class."""

    listener_security_protocol_map: tuple[str, ...] = _security(
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "NAME:PROTOCOL,…: the security protocol of each listener.",
    )
    inter_broker_listener_name: str | None = _security(
        None,
        "Listener that brokers use among themselves. By default the first of listeners that is PLAINTEXT, else the "
        "first that is SSL, else the first.",
    )
    security_inter_broker_protocol: str | None = _security(
        None,
        "Name of that listener if it is the name of its protocol. Set this or inter.broker.listener.name.",
        lambda value: None if value is None else one_of(PROTOCOLS)(value),
    )
    sasl_mechanism_inter_broker_protocol: str | None = _security(
        None,
        "SASL mechanism that brokers log in with. By default the first enabled one with a username and password in "
        "listener.name.NAME.MECHANISM.sasl.jaas.config of the inter-broker listener.",
        _supported,
    )
    super_users: str = _security(
        "",
        "User:name;…: who may do everything, also what only brokers do, such as fetch as a follower. The user that "
        "brokers log in with need not be named.",
        _principals,
    )
    authorizer_class_name: str = _security(
        "",
        f"{ACL_AUTHORIZER}: ACLs decide who may do what. Empty: everybody may do everything that brokers do not do.",
        one_of(("", ACL_AUTHORIZER, "org.apache.kafka.metadata.authorizer.StandardAuthorizer")),
    )
    allow_everyone_if_no_acl_found: bool = _security(
        False, "Whether everybody may use a resource that no ACL applies to (with an authorizer)."
    )
    ssl_endpoint_identification_algorithm: str = _security(
        "https",
        "https: the certificate of another broker must name its advertised host. none, or an empty value: no check.",
        one_of(("https", "HTTPS", "none", "")),
    )
    ssl_client_auth: str = _security(
        "none",
        "Whether clients show a certificate: none, requested or required.",
        one_of(("none", "requested", "required")),
    )
    ssl_principal_mapping_rules: str = _security(
        "DEFAULT",
        "RULE:PATTERN/REPLACEMENT/[LU],…,DEFAULT: what a client is called after its certificate's distinguished name "
        "(KIP-371). A client to which no rule applies is refused.",
        _mapping_rules,
    )
    ssl_enabled_protocols: tuple[str, ...] = _security(
        ("TLSv1.2", "TLSv1.3"), "Accepted TLS versions.", one_of(("TLSv1.2", "TLSv1.3"))
    )
    ssl_cipher_suites: tuple[str, ...] = _security(
        (), "Cipher suites of TLS 1.2, in OpenSSL's names; by default OpenSSL's."
    )
    sasl_enabled_mechanisms: tuple[str, ...] = _security(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        f"SASL mechanisms: {', '.join(MECHANISMS)} (Kafka's default).",
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
    sasl_oauthbearer_jwks_endpoint_url: str | None = _security(
        None,
        "OAUTHBEARER: https://… or file:///… of the identity provider's keys (JWKS), which verify access tokens. http "
        "is accepted for this machine only.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Long = _security(
        3600000, "The keys are fetched again after this time, and when a token names an unknown key.", at_least(0)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Long = _security(
        100, "Wait before keys are fetched again after a failure. It doubles with each one.", at_least(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Long = _security(
        10000, "Longest wait before keys are fetched again after a failure.", at_least(1)
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = _security(
        (), "A token must be for one of these (aud). Without this, a token that names an audience is refused."
    )
    sasl_oauthbearer_expected_issuer: str | None = _security(None, "A token must be of this issuer (iss).")
    sasl_oauthbearer_clock_skew_seconds: int = _security(
        30, "How far the clocks of the identity provider and of the broker may differ.", at_least(0)
    )
    sasl_oauthbearer_scope_claim_name: str = _security("scope", "Claim of a token that has its scopes.")
    sasl_oauthbearer_sub_claim_name: str = _security("sub", "Claim of a token that has the user's name.")
    sasl_oauthbearer_token_endpoint_url: str | None = _security(
        None,
        "Where a broker gets tokens to log in to others: https://… with clientId and clientSecret in "
        "listener.name.NAME.oauthbearer.sasl.jaas.config, or file:///… of a token.",
    )

    sasl_kerberos_service_name: str | None = _security(
        None, "GSSAPI: the first part of the brokers' Kerberos principal; kafka by default."
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = _security(
        ("DEFAULT",),
        "GSSAPI: rules of Hadoop's auth_to_local, or DEFAULT: what a client is called after its Kerberos principal. A "
        "client to which no rule applies is refused.",
        _kerberos_rules,
    )


@dataclasses.dataclass(frozen=True)
class ListenerSecurity:
    listener: Listener
    settings: SecuritySettings
    plain_users: Mapping[str, str] = dataclasses.field(repr=False)
    """User → password of PLAIN."""
    logins: Mapping[str, Login] = dataclasses.field(default_factory=dict, repr=False)
    """Mechanism → what this broker logs in with on the same listener of other brokers."""
    token_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Options of the OAuthBearerLoginModule."""
    unsigned_tokens: bool = False
    """Whether OAUTHBEARER takes unsigned tokens, and no others."""
    kerberos: KerberosKeys | None = None
    """What tickets of GSSAPI are accepted with."""

    @property
    def authenticates(self) -> bool:
        """Whether it knows who connects."""
        return self.listener.sasl or (self.listener.encrypted and self.settings.ssl_client_auth != "none")


def listener_security(settings: SecuritySettings, listener: Listener, overrides: Mapping[str, str]) -> ListenerSecurity:
    """`settings` with the `overrides` (the keys `listener.name.…` of all listeners) of this listener.

    Raises ConfigError for a key that cannot be overridden or parsed, and for SASL without a mechanism or a user.
    """
    prefix = f"{LISTENER_PREFIX}{listener.name.lower()}."
    own = {key[len(prefix) :]: text for key, text in overrides.items() if key.lower().startswith(prefix)}
    modules = {key: own.pop(key) for key in tuple(own) if key.endswith(_JAAS)}
    unsigned = _takes_unsigned({prefix + key: own.pop(key) for key in _HANDLERS if key in own}, prefix)
    merged = _overridden(settings, own, prefix)
    users: dict[str, str] = {}
    logins: dict[str, Login] = {}
    options: Mapping[str, str] = {}
    kerberos: KerberosKeys | None = None
    for key, text in modules.items():
        module = parse_jaas(text, prefix + key)
        if module.name not in LOGIN_MODULES.values():
            raise ConfigError(
                f"{prefix}{key}: {module.name} is not supported; use PlainLoginModule, ScramLoginModule, "
                "OAuthBearerLoginModule or Krb5LoginModule"
            )
        if module.name == LOGIN_MODULES[OAUTHBEARER]:
            options = module.options
            logins |= _token_login(prefix + key, module, merged)
        elif module.name == LOGIN_MODULES[GSSAPI]:
            kerberos, logins[GSSAPI] = _kerberos(prefix + key, module, merged)
        else:
            logins |= _logins(prefix + key, key[: -len(_JAAS)].rstrip(".").upper(), module)
        if module.name == LOGIN_MODULES["PLAIN"]:
            users |= module.users
    security = ListenerSecurity(listener, merged, users, logins, options, unsigned, kerberos)
    _check_mechanisms(security, prefix)
    return security


def _overridden(settings: SecuritySettings, own: dict[str, str], prefix: str) -> SecuritySettings:
    """The settings with those of one listener. Raises ConfigError for a key that it cannot have."""
    for key in [key for key in own if key.startswith(f"{_OAUTH_PREFIX}sasl.{_OAUTH_PREFIX}")]:
        own[key.removeprefix(_OAUTH_PREFIX)] = own.pop(key)  # Kafka takes them with and without the mechanism
    known = settings_of(SecuritySettings)
    for key in own:
        if key not in known or key in _NOT_PER_LISTENER:
            raise ConfigError(f"{prefix}{key}: {key!r} cannot be set for one listener{did_you_mean(key, known)}")
    base = SecuritySettings(**{field.attribute: getattr(settings, field.attribute) for field in known.values()})
    return parse_properties(SecuritySettings, own, base=base)


def _check_mechanisms(security: ListenerSecurity, prefix: str) -> None:
    """Raise ConfigError for SASL without a mechanism, and for a mechanism that can admit nobody."""
    name, settings = security.listener.name, security.settings
    enabled = settings.sasl_enabled_mechanisms if security.listener.sasl else ()
    if security.listener.sasl and not enabled:
        raise ConfigError(f"listener {name}: name a mechanism in sasl.enabled.mechanisms")
    if "PLAIN" in enabled and not security.plain_users:
        raise ConfigError(
            f"listener {name} has no user for PLAIN: set {prefix}plain.{_JAAS}="
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
        )
    if GSSAPI in enabled and security.kerberos is None:
        raise ConfigError(f"listener {name} has no keytab for GSSAPI: set {prefix}gssapi.{_JAAS}={_KRB5_MODULE}")
    keys_url = settings.sasl_oauthbearer_jwks_endpoint_url
    if keys_url is not None:
        require_url(f"{prefix}sasl.oauthbearer.jwks.endpoint.url", keys_url)
    elif OAUTHBEARER in enabled and not security.unsigned_tokens:
        raise ConfigError(
            f"listener {name} cannot verify the tokens of OAUTHBEARER: set {prefix}sasl.oauthbearer.jwks.endpoint.url"
        )


def _takes_unsigned(handlers: Mapping[str, str], prefix: str) -> bool:
    """Whether the classes named for a listener ask for unsigned tokens. Raises ConfigError for unknown ones."""
    for key, name in handlers.items():
        known = _HANDLERS[key.removeprefix(prefix)]
        if name.rpartition(".")[2] not in known:
            raise ConfigError(f"{key}={name}: there are {' and '.join(known)}")
    return handlers.get(prefix + _VALIDATOR, "").endswith(_UNSIGNED_VALIDATOR)


def _token_login(key: str, module: LoginModule, settings: SecuritySettings) -> dict[str, Login]:
    """By mechanism: how this broker gets tokens, if it does."""
    options, url = module.options, settings.sasl_oauthbearer_token_endpoint_url
    if not (any(name == "clientId" or name.startswith("unsecuredLogin") for name in options) or is_file(url or "")):
        return {}
    asked = without_extensions(options) | ({URL: url} if url else {})
    try:
        tokens, user = token_source(usual_provider(asked), asked), options.get("clientId", "")
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    extensions = sasl_extensions(options)
    client_first("token", extensions)
    where = f"sasl.oauthbearer.token.endpoint.url and {key}"
    return {OAUTHBEARER: TokenLogin(OAUTHBEARER, user, tokens, extensions, settings=where)}


def _kerberos(key: str, module: LoginModule, settings: SecuritySettings) -> tuple[KerberosKeys, KerberosLogin]:
    """By what a listener accepts tickets, and how this broker logs in to others. Raises ConfigError."""
    identity = identity_of_module(module.options, key)
    if not identity.keytab:
        raise ConfigError(f"{key}: a broker needs a keytab: {_KRB5_MODULE}")
    keys = KerberosKeys(
        identity.keytab, identity.principal, KerberosRules(settings.sasl_kerberos_principal_to_local_rules), key
    )
    service = service_name(module.options, settings.sasl_kerberos_service_name, key)
    return keys, KerberosLogin(GSSAPI, identity.principal, identity, service, settings=f"the options in {key}")


def _logins(key: str, mechanism: str, module: LoginModule) -> dict[str, Login]:
    """By mechanism: the user and password in a module. One without a mechanism in its key is for all of its kind."""
    user, password = module.options.get("username"), module.options.get("password")
    if not user or password is None:
        return {}
    return {
        fitting: password_login(fitting, user, password, settings=f"username and password in {key}")
        for fitting, name in LOGIN_MODULES.items()
        if name == module.name and mechanism in ("", fitting)
    }


@dataclasses.dataclass(frozen=True)
class InterBroker:
    """How brokers talk to each other."""

    security: ListenerSecurity
    """Of the inter-broker listener."""
    login: Login | None
    """None where that listener requires no login."""


def inter_broker(settings: SecuritySettings, listeners: Mapping[str, ListenerSecurity]) -> InterBroker:
    """How brokers with these settings and listeners talk to each other. Raises ConfigError when they cannot."""
    security = listeners[inter_broker_listener(settings, [found.listener for found in listeners.values()])]
    name = security.listener.name
    if not security.listener.sasl:
        if security.authenticates and not parse_super_users(settings.super_users):
            raise ConfigError(
                f"listener {name} is for brokers and requires certificates: set super.users to the names in those of "
                "the brokers, such as User:CN=broker1,O=ACME;User:CN=broker2,O=ACME"
            )
        return InterBroker(security, None)
    enabled, wanted = security.settings.sasl_enabled_mechanisms, settings.sasl_mechanism_inter_broker_protocol
    if wanted is not None and wanted not in enabled:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={wanted}: listener {name} does not offer it; add it to "
            "sasl.enabled.mechanisms"
        )
    mechanism = wanted or next((known for known in enabled if known in security.logins), enabled[0])
    login = security.logins.get(mechanism)
    if login is None:
        if mechanism == OAUTHBEARER:
            raise ConfigError(
                f"brokers cannot log in to each other on listener {name}: set sasl.oauthbearer.token.endpoint.url and "
                f"{LISTENER_PREFIX}{name.lower()}.oauthbearer.{_JAAS}=org.apache.kafka.common.security.oauthbearer."
                'OAuthBearerLoginModule required clientId="ID" clientSecret="SECRET";'
            )
        if mechanism == GSSAPI:
            raise ConfigError(
                f"brokers cannot log in to each other on listener {name}: set {LISTENER_PREFIX}{name.lower()}.gssapi."
                f"{_JAAS}={_KRB5_MODULE}"
            )
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        raise ConfigError(
            f"brokers cannot log in to each other on listener {name}: set {LISTENER_PREFIX}{name.lower()}."
            f"{mechanism.lower()}.{_JAAS}=org.apache.kafka.common.security.{module} required "
            'username="NAME" password="PASSWORD";'
        )
    if login.principal is None and not parse_super_users(settings.super_users):
        raise ConfigError(
            f"brokers log in to each other by {mechanism} on listener {name}: set super.users to the names in their "
            "tokens, or those that the rules give their Kerberos principals, such as User:kafka"
        )
    return InterBroker(security, login)


def inter_broker_listener(settings: SecuritySettings, listeners: Sequence[Listener]) -> str:
    """The name of the listener that brokers use among themselves. Raises ConfigError."""
    names = [listener.name for listener in listeners]
    name, protocol = settings.inter_broker_listener_name, settings.security_inter_broker_protocol
    if name and protocol:
        raise ConfigError("set inter.broker.listener.name or security.inter.broker.protocol, not both")
    if name or protocol:
        key = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
        wanted = (name or protocol or "").upper()
        if wanted not in names:
            raise ConfigError(f"{key}={name or protocol}: there is no such listener in listeners ({', '.join(names)})")
        return wanted
    protocols = {listener.protocol: listener.name for listener in reversed(listeners)}
    return protocols.get("PLAINTEXT") or protocols.get("SSL") or names[0]
