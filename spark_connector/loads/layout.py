"""Partitioned output: which columns may become directories, and what a path says about them.

Called by loads/request.py, loads/output.py, loads/footers.py and the Delta log. `topic` and `partition` are columns of
every record; `date` and `hour` are made from its timestamp, in UTC whatever the session's time zone is. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from broker.errors import ConfigError

__all__ = ["DERIVED", "PARTITION_COLUMNS", "check_topics", "parse_partition_by", "values_in_path"]

PARTITION_COLUMNS = ("topic", "partition", "date", "hour")

DERIVED = {
    # floor, for a record without a timestamp has -1 ms, which is still 1969
    "date": "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400D) AS INT))",
    "hour": "CAST(pmod(unix_seconds(timestamp), 86400) DIV 3600 AS INT)",
}
"""Columns that a record does not have, as Spark SQL."""

_NULL = "__HIVE_DEFAULT_PARTITION__"

_NOT_TEXT = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?"  # 2024, 007, 1.5, 1e5, 2d
    r"|[+-]?0x[0-9a-f]*\.?[0-9a-f]*p[+-]?\d+[df]?"
    r"|[+-]?(nan|infinity)[df]?"
    r"|\d{4,}-\d{1,2}(-\d{1,2})?(t.*)?",  # 2024-01-31
    re.IGNORECASE,
)
"""What Spark takes for a number or a date in the name of a directory, and a little more."""


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


def check_topics(partition_by: Sequence[str], topics: Iterable[str]) -> None:
    """Raise ConfigError when a topic, as a directory of files, would be read back as something else than its name:
    Spark guesses types from such names (007 becomes 7), and only a table has a type of its own for the column."""
    if "topic" not in partition_by:
        return
    for topic in sorted(topics):
        if topic == _NULL or _NOT_TEXT.fullmatch(topic):
            raise ConfigError(
                f"topic '{topic}' cannot be a directory of files: Spark would read topic={topic} back as "
                f"{'null' if topic == _NULL else 'a number or a date'}. Leave 'topic' out of partition_by "
                "(--partition-by), or use format=delta, where the column keeps its type"
            )


def values_in_path(name: str) -> dict[str, str | None]:
    """Column → value of the directories in a file's name: `date=2026-11-21/part-0` → {"date": "2026-11-21"}."""
    segments = (segment.partition("=") for segment in posixpath.dirname(name).split("/"))
    found = ((unquote(key), unquote(value)) for key, separator, value in segments if separator)
    return {key: None if value == _NULL else value for key, value in found}
