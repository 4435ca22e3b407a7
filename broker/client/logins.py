"""How a client logs in, from its settings: one function for each kind of mechanism."""

from __future__ import annotations

from collections.abc import Mapping

from broker.client.sasl_settings import SaslSettings
from broker.errors import ConfigError
from broker.security.foreign_logins import translated
from broker.security.jaas import LoginModule, parse_jaas
from broker.security.login import Login
from broker.security.mechanisms import LOGIN_MODULES, MECHANISMS, OAUTHBEARER
from broker.security.oauthbearer import TokenLogin, client_first
from broker.security.password_login import password_login
from broker.security.token_providers import aws_msk, azure
from broker.security.token_providers.file import URL
from broker.security.token_providers.oidc import ENCODED
from broker.security.token_providers.provider_table import usual_provider
from broker.security.token_source import sasl_extensions, token_source, without_extensions


def login_of(settings: SaslSettings, host: str = "") -> Login:
    """`host`: the first one of bootstrap.servers, for providers whose tokens are for a place.

    Raises ConfigError for settings that name no mechanism, or not what it needs.
    """
    module = parse_jaas(settings.sasl_jaas_config) if settings.sasl_jaas_config else None
    classes = (
        settings.sasl_login_callback_handler_class,
        settings.sasl_client_callback_handler_class,
        settings.sasl_oauthbearer_jwt_retriever_class,
    )
    provider, jaas = translated(settings.sasl_mechanism, module, classes)
    if provider is not None:
        return _by_token(settings, jaas, host, provider)
    mechanism = _chosen(settings, module)
    if mechanism == OAUTHBEARER:
        return _by_token(settings, jaas, host)
    return _by_password(settings, mechanism, jaas)


def _chosen(settings: SaslSettings, module: LoginModule | None) -> str:
    """The mechanism."""
    mechanism = settings.sasl_mechanism
    if module is not None:
        if mechanism is None:
            fitting = [known for known, name in LOGIN_MODULES.items() if name == module.name]
            mechanism = fitting[0] if len(fitting) == 1 else None
        needed = LOGIN_MODULES.get(mechanism or "", module.name)
        if module.name != needed:
            raise ConfigError(f"sasl.jaas.config: sasl.mechanism={mechanism} needs {needed}, not {module.name}")
    if mechanism is None:
        protocol = settings.security_protocol.upper()
        raise ConfigError(f"security.protocol={protocol}: set sasl.mechanism to one of {', '.join(MECHANISMS)}")
    return mechanism


def _by_password(settings: SaslSettings, mechanism: str, jaas: Mapping[str, str]) -> Login:
    user, password = settings.sasl_username, settings.sasl_password
    if settings.sasl_jaas_config:
        user, password = jaas.get("username"), jaas.get("password")
    if not user or password is None:
        raise ConfigError(
            f"security.protocol={settings.security_protocol.upper()}: set sasl.username and sasl.password, or "
            "sasl.jaas.config with both"
        )
    return password_login(mechanism, user, password)


def _by_token(settings: SaslSettings, jaas: Mapping[str, str], host: str, same_as_class: str | None = None) -> Login:
    """From the settings, which win over the options of the login module, as in Kafka."""
    given = {**jaas, **_set_for_tokens(settings)}
    options = without_extensions(given)
    chosen = settings.sasl_oauthbearer_token_provider
    if chosen is not None and same_as_class not in (None, chosen):
        raise ConfigError(
            f"sasl.oauthbearer.token.provider={chosen}: the classes that are named for the login stand for "
            f"{same_as_class}; leave out one of the two"
        )
    extensions = sasl_extensions(given) | dict(
        pair.partition("=")[::2] for pair in settings.sasl_oauthbearer_extensions
    )
    client_first("token", extensions)
    provider = chosen or same_as_class or usual_provider(options)
    tokens = token_source(provider, options, host)
    where = "sasl.oauthbearer.token.endpoint.url and the credentials for it"
    if chosen or same_as_class:
        where = f"sasl.oauthbearer.token.provider={provider} and its options"
    return TokenLogin(OAUTHBEARER, options.get("clientId", ""), tokens, extensions, settings=where)


def _set_for_tokens(settings: SaslSettings) -> dict[str, str]:
    """The options of token providers, by the names that these know them by."""
    named = {
        URL: settings.sasl_oauthbearer_token_endpoint_url,
        "clientId": settings.sasl_oauthbearer_client_credentials_client_id or settings.sasl_oauthbearer_client_id,
        "clientSecret": settings.sasl_oauthbearer_client_credentials_client_secret
        or settings.sasl_oauthbearer_client_secret,
        "scope": settings.sasl_oauthbearer_scope,
        ENCODED: "true" if settings.sasl_oauthbearer_header_urlencode else None,
        **{name: getattr(settings, name.replace(".", "_")) for name in (*aws_msk.OPTIONS, *azure.OPTIONS)},
    }
    return {name: value for name, value in named.items() if value}
