"""A database as the target of a load: `sqlite:///x.db#table`, `postgresql+psycopg://user@host/db` and a table.

Called by loads/request.py to tell a database from a directory and a table from its absence. Pure: nothing is imported
from SQLAlchemy, which those who load into files need not have.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from broker.errors import ConfigError

__all__ = ["DatabaseAddress", "is_database_url"]

_DIALECTS = frozenset({"sqlite", "postgresql", "mysql", "mariadb", "mssql", "oracle"})
_SCHEME = re.compile(r"(?P<dialect>[a-z][a-z0-9]*)(\+[a-z0-9_]+)?://")
_NAME = re.compile(r"[^\x00-\x1f\"`\[\];#]{1,128}")  # a # would make of its end another name, in a load's `output`
# As SQLAlchemy reads it: a user may hold an @, a password anything but that.
_PASSWORD = re.compile(r"(?<=://)(?P<user>[^:/]*):(?:[^?]*|[^@]*)@")
_SECRET = re.compile(
    r"(?P<name>[?&][^=&#]*(?:password|passwd|pwd|token|secret|sslkey|odbc_connect)[^=&#]*=)[^&#]*", re.IGNORECASE
)


def is_database_url(to: str) -> bool:
    """Whether `to` is a database that SQLAlchemy brings a dialect for; others say format=sql."""
    scheme = _SCHEME.match(to)
    return scheme is not None and scheme["dialect"] in _DIALECTS


@dataclass(frozen=True)
class DatabaseAddress:
    """A table in a database. `url` is SQLAlchemy's and may hold a password: it is not shown; `shown` is."""

    url: str = field(repr=False)
    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, to: str, table: str | None) -> DatabaseAddress:
        """From `url#table` or from both apart; the table may be `schema.table`. Raises ConfigError."""
        url, _, fragment = to.strip().rpartition("#")
        if not url or "@" in fragment:  # there is none, or it belongs to a password
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
            raise ConfigError(f"'{name}': tables whose names begin with pykafka_ are kept for the loads' own records")
        return cls(_absolute(url), plain, schema or None)

    @property
    def shown(self) -> str:
        """URL and table without a password; the same for every load, and so the `output` of its record."""
        url = _SECRET.sub(r"\g<name>***", _PASSWORD.sub(r"\g<user>:***@", self.url))
        return f"{url}#{self.schema}.{self.table}" if self.schema else f"{url}#{self.table}"


def _absolute(url: str) -> str:
    """A SQLite file by its full path: the tasks of Spark run elsewhere."""
    if not url.startswith("sqlite"):
        return url
    scheme, _, rest = url.partition("://")
    path, mark, query = rest.partition("?")
    path = path.removeprefix("/")
    if path in {"", ":memory:"} or path.startswith("file:") or urlsplit(url).netloc:
        raise ConfigError("a load into SQLite needs a file: sqlite:///path/to/file.db#table")
    return f"{scheme}:///{os.path.abspath(path)}{mark}{query}"
