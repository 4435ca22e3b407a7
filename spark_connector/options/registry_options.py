"""The options `schema.registry.*` of a read or write.

Used by read_options.py and typed_write_options.py. Raises ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from broker.errors import ConfigError
from spark_connector.formats.value_format import RegistrySettings, Schema, SchemaSubject, registry_address
from spark_connector.options.option_values import OptionValues
from spark_connector.options.registry_option_table import REGISTRY_ACCESS, REGISTRY_TYPE, REGISTRY_URL

URL = REGISTRY_URL
ACCESS = tuple(option.name for option in REGISTRY_ACCESS if not option.kept)
"""What says who asks a registry."""
_USER_INFO, _TOKEN, _CA, _GROUP, _REGION, _USE_ID, _ID_BYTES, _PROFILE, _SOURCE, *_PROVIDER = (
    option.name for option in REGISTRY_ACCESS
)
_ISSUER, _CLIENT_ID, _SECRET, _SCOPE, _CLUSTER, _POOL = _PROVIDER
_AZURE: Final = ("azure", (("azure.scope", "https://eventhubs.azure.net/.default"),))

_LOGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]*:[^/\s]*@", re.IGNORECASE)


def registry_settings(values: OptionValues, registries: Sequence[str]) -> RegistrySettings | None:
    """The registry of a query; None if there is none. `registries`: addresses that the URLs of schemas name."""
    given = [url.strip() for url in (values.text(URL) or "").split(",") if url.strip()]
    user_infos = {values.text(_USER_INFO)} - {None}
    urls: list[str] = []
    with_login: list[str] = []
    for url in given or registries:
        address, user_info = registry_address(url)
        if address not in urls:
            urls.append(address)
        user_infos |= {user_info} - {None}
        with_login += [address] if user_info else []
    kind = values.word(REGISTRY_TYPE) if values.has_registry else "confluent"
    if not urls and kind != "glue":
        return None
    others = {registry_address(url)[0] for url in registries} - set(urls)
    if others or (len(urls) > 1 and not given):
        raise ConfigError(f"Schemas in more than one registry: {', '.join(sorted({*urls, *others}))}. Name one")
    if len(user_infos) > 1 or (user_infos and _TOKEN in values):
        raise ConfigError(f"Set one of '{_USER_INFO}', '{_TOKEN}' and user:password@ in '{URL}', not several")
    token = values.text(_TOKEN)
    if token is not None and not re.fullmatch(r"[!-~]+", token):  # Python's error about the header would show it
        raise ConfigError(f"Option '{_TOKEN}' has a blank, a line break or a letter outside ASCII, or is empty")
    user_info = next(iter(user_infos), None)
    # The option is for all that are named beside it, a login in a URL for this one.
    login_urls = () if _USER_INFO in values else tuple(dict.fromkeys(with_login))
    if kind == "azure" and values.text(_GROUP) is None:
        raise ConfigError(f"Option '{REGISTRY_TYPE}'=azure needs option '{_GROUP}': the group of the schemas")
    return RegistrySettings(
        tuple(urls),
        user_info,
        token,
        values.text(_CA),
        login_urls=login_urls,
        type=kind,
        group=values.text(_GROUP),
        region=values.text(_REGION),
        profile=values.text(_PROFILE),
        use_id=values.word(_USE_ID),
        **_tokens(values, kind),
        id_bytes=int(values.word(_ID_BYTES)),
    )


def _tokens(values: OptionValues, kind: str) -> dict[str, Any]:
    """The fields of RegistrySettings that say where tokens come from, and what goes with them."""
    headers = {"target-sr-cluster": values.text(_CLUSTER), "Confluent-Identity-Pool-Id": values.text(_POOL)}
    made: dict[str, Any] = {"headers": tuple((name, text) for name, text in headers.items() if text)}
    source = values.word(_SOURCE)
    if source != "static_token" and (_TOKEN in values or _USER_INFO in values):
        raise ConfigError(f"Set one of '{_SOURCE}'={source.upper()}, '{_TOKEN}' and '{_USER_INFO}', not several")
    if source == "oauthbearer":
        if missing := [name for name in (_ISSUER, _CLIENT_ID, _SECRET) if not values.text(name)]:
            raise ConfigError(f"Option '{_SOURCE}'=OAUTHBEARER needs option '{missing[0]}'")
        options = {
            "sasl.oauthbearer.token.endpoint.url": values.text(_ISSUER),
            "clientId": values.text(_CLIENT_ID),
            "clientSecret": values.text(_SECRET),
            "scope": values.text(_SCOPE),
        }
        made["tokens"] = "oidc", tuple((name, text) for name, text in options.items() if text)
    elif source == "sasl_oauthbearer_inherit":
        if (values.text("kafka.sasl.mechanism") or "").upper() != "OAUTHBEARER":
            raise ConfigError(f"Option '{_SOURCE}'=SASL_OAUTHBEARER_INHERIT needs kafka.sasl.mechanism=OAUTHBEARER")
        made["inherited"] = values.client_settings("registry", {}, {})[0]
    elif _SOURCE in values and _TOKEN not in values:
        raise ConfigError(f"Option '{_SOURCE}'=STATIC_TOKEN needs option '{_TOKEN}'")
    elif kind == "azure" and _TOKEN not in values:
        made["tokens"] = _AZURE
    return made


def refuse_login(option: str, text: str) -> None:
    """Raise if `text`, the place of a schema, has a user and a password in its URL."""
    if _LOGIN.match(text):
        raise ConfigError(
            f"Option '{option}' has a user and a password in its URL, which Spark's plans would show: remove them. "
            f"For a schema registry set '{URL}' to http(s)://user:password@host:port, which plans hide"
        )


def avro_encoding(values: OptionValues, column: str, schema: Schema) -> str:
    """How the Avro of a column is encoded, which a registry decides where there is one."""
    encoding = values.word(option := f"{column}Encoding")
    if encoding != "binary" and (values.has_registry or isinstance(schema, SchemaSubject)):
        raise ConfigError(
            f"Option '{option}'={encoding} has no effect beside a schema registry, whose serializers say in their own "
            f"way of which schema a value is: leave out one of them"
        )
    return encoding


def file_names(text: str) -> list[str]:
    """The names of files, separated by commas; a schema itself is one."""
    return [text] if text[:1] in '{["' else [name.strip() for name in text.split(",") if name.strip()]
