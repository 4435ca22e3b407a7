"""The addresses of tables as users give them, in a database or in a catalog of Iceberg, and the options of places.

Pure: libraries are extras.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from broker.errors import ConfigError
from broker.storage.object_stores import object_store_of
from broker.storage.url_secrets import without_secrets

_DIALECTS = frozenset({"sqlite", "postgresql", "mysql", "mariadb", "mssql", "oracle"})
_SCHEME = re.compile(r"(?P<dialect>[a-z][a-z0-9]*)(\+[a-z0-9_]+)?://")
_NAME = re.compile(r"[^\x00-\x1f\"`\[\];#]{1,128}")  # no #: it separates URL and table in a load's `output`


def is_database_url(to: str) -> bool:
    """Whether `to` is a database with a dialect of SQLAlchemy's own. Other databases need format=sql."""
    scheme = _SCHEME.match(to)
    return scheme is not None and scheme["dialect"] in _DIALECTS


@dataclass(frozen=True)
class DatabaseAddress:
    """A table in a database. `url` is SQLAlchemy's and may hold a password; messages use `shown`."""

    url: str = field(repr=False)
    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, to: str, table: str | None) -> DatabaseAddress:
        """Parse `url#table`, or `url` and `table`; the table may be `schema.table`. Raises ConfigError."""
        url, _, fragment = to.strip().rpartition("#")
        if not url or "@" in fragment:  # no #table, or the # belongs to a password
            url, fragment = to.strip(), ""
        if not _SCHEME.match(url):
            raise ConfigError("format=sql needs 'to' to be a database URL of SQLAlchemy, such as sqlite:///x.db#table")
        if fragment and table and fragment != table:
            raise ConfigError(f"'to' names the table '{fragment}', 'table' (--table) '{table}': leave one of them out")
        name = fragment or table
        if not name:
            raise ConfigError("a load into a database needs a table: table (--table), or #table behind the URL")
        schema, _, plain = name.rpartition(".")
        for part in (schema, plain) if schema else (plain,):
            if not _NAME.fullmatch(part):
                raise ConfigError(f"'{name}' cannot be the name of a table")
        if plain.startswith("pykafka_"):
            raise ConfigError(
                f"'{name}': names that begin with pykafka_ are reserved for the tables of the loads themselves"
            )
        return cls(_absolute(url), plain, schema or None)

    @property
    def shown(self) -> str:
        """URL and table without the password: the `output` in the records of loads."""
        url = without_secrets(self.url)
        return f"{url}#{self.schema}.{self.table}" if self.schema else f"{url}#{self.table}"


def _absolute(url: str) -> str:
    """The URL with the full path of a SQLite file: Spark's tasks run in other directories."""
    if not url.startswith("sqlite"):
        return url
    scheme, _, rest = url.partition("://")
    path, mark, query = rest.partition("?")
    path = path.removeprefix("/")
    if path in {"", ":memory:"} or path.startswith("file:") or urlsplit(url).netloc:
        raise ConfigError("a load into SQLite needs a file: sqlite:///path/to/file.db#table")
    return f"{scheme}:///{os.path.abspath(path)}{mark}{query}"


_ICEBERG = "iceberg:"
_PART = re.compile(r"[^\x00-\x1f./\\\"`']{1,255}")


def is_iceberg(to: str) -> bool:
    """Whether `to` names a table in a catalog of Iceberg."""
    return to.strip().startswith(_ICEBERG)


@dataclass(frozen=True)
class IcebergName:
    """A table in a catalog: the parts of its namespace, and its name."""

    identifier: tuple[str, ...]

    @classmethod
    def parse(cls, to: str) -> IcebergName:
        """Parse `iceberg:NAMESPACE.TABLE`; a namespace may have several parts. Raises ConfigError."""
        parts = tuple(to.strip().removeprefix(_ICEBERG).split("."))
        if not is_iceberg(to) or len(parts) < 2 or not all(map(_PART.fullmatch, parts)):
            raise ConfigError(f"'{to}': format=iceberg needs 'to' as iceberg:NAMESPACE.TABLE")
        return cls(parts)

    @property
    def namespace(self) -> str:
        return ".".join(self.identifier[:-1])

    @property
    def shown(self) -> str:
        """The `output` in the records of loads."""
        return _ICEBERG + ".".join(self.identifier)


def hadoop_settings(spark_settings: Mapping[str, str]) -> dict[str, str]:
    """`spark.hadoop.x` as the Hadoop setting x, for the parts that do not use Spark."""
    prefix = "spark.hadoop."
    return {name[len(prefix) :]: value for name, value in spark_settings.items() if name.startswith(prefix)}


def storage_options_for(to: str, given: Mapping[str, str], hadoop: Mapping[str, str]) -> dict[str, str]:
    """What the user has given for this place; on HDFS beside the Hadoop settings of the session.

    Raises ConfigError where nothing would take them.
    """
    if given and (is_database_url(to) or is_iceberg(to)):
        raise ConfigError(
            "storage_options (--storage-option) are for directories and object stores; a database takes them in its "
            "URL, an Iceberg catalog in pyiceberg's configuration"
        )
    if to.strip().startswith("hdfs://"):
        return {**hadoop, **given}
    if given and object_store_of(to) is None:
        raise ConfigError(
            f"storage_options (--storage-option): '{without_secrets(to)}' is a local directory, which takes none"
        )
    return dict(given)
