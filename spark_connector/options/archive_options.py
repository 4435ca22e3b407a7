"""The options of a read that takes archived records from the store itself: `archive`, `archive.url`,
`archive.option.*`. Called by read_options.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.errors import ConfigError
from broker.storage.url_secrets import without_secrets
from spark_connector.options.option_table import ARCHIVE_PREFIX
from spark_connector.options.option_values import OptionValues

_SECRET = "secret."
_SECRETS_SHOWN = {"account_key"}
"""Secret storage options in whose names Spark (spark.redaction.regex) finds no secret."""


@dataclass(frozen=True)
class ArchiveOptions:
    """Where archived records are read from the store. `url` is None where the brokers tell it.

    `only`: no broker is asked for anything, so the topics end where the archive does. Neither URL nor options are
    shown: they may hold secrets.
    """

    only: bool
    url: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster_id: str | None = None
    """Whose archive is read, where the store holds those of several clusters."""


def parse_archive(values: OptionValues) -> ArchiveOptions | None:
    """None for a read through the brokers. Raises ConfigError, without a value of `archive.option.*`."""
    source = values.word("archive")
    url, given = values.text("archive.url"), values.prefixed(ARCHIVE_PREFIX)
    if source == "broker":
        return None
    if url == "" or (url is None and source == "only"):
        raise ConfigError(
            "Option 'archive'=only needs option 'archive.url': where the brokers keep the archive (their archive.url)"
            if source == "only"
            else "Option 'archive.url' is empty; leave it out to take that of the brokers"
        )
    if url is not None and without_secrets(url) != url:
        raise ConfigError("Option 'archive.url' holds a login: give it by options 'archive.option.*'")
    return ArchiveOptions(source == "only", url, _storage_options(given), values.text("archive.cluster"))


def _storage_options(given: Mapping[str, str]) -> dict[str, str]:
    """By the names of the store. Spark shows the options of a stream in its plan, but hides those whose names say that
    they are secret."""
    named = {name.removeprefix(_SECRET): value for name, value in given.items()}
    if "" in named:
        raise ConfigError(f"Option '{ARCHIVE_PREFIX}' lacks the name of a storage option")
    for name in _SECRETS_SHOWN & given.keys():
        raise ConfigError(
            f"Spark would show option '{ARCHIVE_PREFIX}{name}' in plans: write '{ARCHIVE_PREFIX}{_SECRET}{name}', "
            "whose name hides it"
        )
    return named
