"""How a client logs in, from its settings: one function for each kind of mechanism."""

from __future__ import annotations

from collections.abc import Mapping

from broker.client.sasl_settings import SaslSettings
from broker.errors import ConfigError
from broker.security.jaas import parse_jaas
from broker.security.login import Login
from broker.security.mechanisms import LOGIN_MODULES, MECHANISMS, OAUTHBEARER
from broker.security.oauthbearer import TokenLogin, client_first
from broker.security.password_login import password_login
from broker.security.token_source import sasl_extensions, token_source


def login_of(settings: SaslSettings) -> Login:
    """Raises ConfigError for settings that name no mechanism, or not what it needs."""
    mechanism, jaas = _chosen(settings)
    if mechanism == OAUTHBEARER:
        return _by_token(settings, jaas)
    return _by_password(settings, mechanism, jaas)


def _chosen(settings: SaslSettings) -> tuple[str, Mapping[str, str]]:
    """The mechanism, and the options of the login module."""
    mechanism, options = settings.sasl_mechanism, {}
    if settings.sasl_jaas_config:
        module = parse_jaas(settings.sasl_jaas_config)
        options = dict(module.options)
        if mechanism is None:
            fitting = [known for known, name in LOGIN_MODULES.items() if name == module.name]
            mechanism = fitting[0] if len(fitting) == 1 else None
        needed = LOGIN_MODULES.get(mechanism or "", module.name)
        if module.name != needed:
            raise ConfigError(f"sasl.jaas.config: sasl.mechanism={mechanism} needs {needed}, not {module.name}")
    if mechanism is None:
        protocol = settings.security_protocol.upper()
        raise ConfigError(f"security.protocol={protocol}: set sasl.mechanism to one of {', '.join(MECHANISMS)}")
    return mechanism, options


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


def _by_token(settings: SaslSettings, jaas: Mapping[str, str]) -> Login:
    """From the settings, which win over the options of the login module, as in Kafka."""
    named = {
        "clientId": settings.sasl_oauthbearer_client_credentials_client_id or settings.sasl_oauthbearer_client_id,
        "clientSecret": settings.sasl_oauthbearer_client_credentials_client_secret
        or settings.sasl_oauthbearer_client_secret,
        "scope": settings.sasl_oauthbearer_scope,
    }
    options = {**jaas, **{name: value for name, value in named.items() if value}}
    extensions = sasl_extensions(jaas) | dict(pair.partition("=")[::2] for pair in settings.sasl_oauthbearer_extensions)
    client_first("token", extensions)
    tokens = token_source(
        settings.sasl_oauthbearer_token_endpoint_url,
        options,
        "in sasl.jaas.config or as sasl.oauthbearer.client.credentials.client.id and …secret",
        encoded=settings.sasl_oauthbearer_header_urlencode,
    )
    where = "sasl.oauthbearer.token.endpoint.url and the credentials for it"
    return TokenLogin(OAUTHBEARER, options.get("clientId", ""), tokens, extensions, settings=where)
