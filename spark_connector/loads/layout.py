"""Partitioned output: which columns may become directories, and what a path says about them.

Called by loads/request.py, loads/output.py, loads/footers.py and the Delta log. `topic` and `partition` are columns of
every record; `date` and `hour` are made from its timestamp, in UTC whatever the session's time zone is. Pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import unquote

from broker.errors import ConfigError

__all__ = ["DERIVED", "PARTITION_COLUMNS", "parse_partition_by", "values_in_path"]

PARTITION_COLUMNS = ("topic", "partition", "date", "hour")

DERIVED = {
    # floor, for a record without a timestamp has -1 ms, which is still 1969
    "date": "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400D) AS INT))",
    "hour": "CAST(pmod(unix_seconds(timestamp), 86400) DIV 3600 AS INT)",
}
"""Columns that a record does not have, as Spark SQL."""

_NULL = "__HIVE_DEFAULT_PARTITION__"


def parse_partition_by(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns in their order; a string is a comma-separated list. Raises ConfigError."""
    names = given.split(",") if isinstance(given, str) else list(given or ())
    columns = tuple(name.strip() for name in names)
    for name in columns:
        if name not in PARTITION_COLUMNS:
            raise ConfigError(
                f"partition_by (--partition-by) must name columns of {', '.join(PARTITION_COLUMNS)}, not '{name}'"
            )
        if columns.count(name) > 1:
            raise ConfigError(f"partition_by (--partition-by) names '{name}' twice")
    return columns


def values_in_path(name: str) -> dict[str, str | None]:
    """Column → value of the directories in a file's name: `date=2026-11-21/part-0` → {"date": "2026-11-21"}."""
    segments = (segment.partition("=") for segment in posixpath.dirname(name).split("/"))
    found = ((unquote(key), unquote(value)) for key, separator, value in segments if separator)
    return {key: None if value == _NULL else value for key, value in found}
