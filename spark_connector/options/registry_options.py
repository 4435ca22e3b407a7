"""The options `schema.registry.*` of a read or write.

Used by read_options.py and typed_write_options.py. Raises ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from broker.errors import ConfigError
from spark_connector.formats.value_format import RegistrySettings, Schema, SchemaSubject, registry_address
from spark_connector.options.option_table import REGISTRY_ACCESS, REGISTRY_TYPE, REGISTRY_URL
from spark_connector.options.option_values import OptionValues

URL = REGISTRY_URL
ACCESS = tuple(option.name for option in REGISTRY_ACCESS)
_USER_INFO, _TOKEN, _CA, _GROUP, _REGION, _PROFILE, _USE_ID, _ID_BYTES = ACCESS[:8]

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
        id_bytes=int(values.word(_ID_BYTES)),
    )


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
