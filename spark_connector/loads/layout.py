"""The layout of the output: the column that names the load, and the columns that become directories.

`topic` and `partition` are columns of every record; `date` and `hour` are made from its timestamp, always in UTC. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from broker.errors import ConfigError

LOAD_COLUMN = "load"
"""Names the load that wrote a row, by its load id: the directory `load=<load id>` of files, a column in tables."""

PARTITION_COLUMNS = ("topic", "partition", "date", "hour")

DERIVED = {
    # floor: a record without a timestamp has -1 ms, which is still in 1969
    "date": "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400D) AS INT))",
    "hour": "CAST(pmod(unix_seconds(timestamp), 86400) DIV 3600 AS INT)",
}
"""Columns that a record does not have, as Spark SQL."""

_NULL = "__HIVE_DEFAULT_PARTITION__"

_COPYING = "._COPYING_"

_NOT_TEXT = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?"  # 2024, 007, 1.5, 1e5, 2d
    r"|[+-]?0x[0-9a-f]*\.?[0-9a-f]*p[+-]?\d+[df]?"
    r"|[+-]?(nan|infinity)[df]?"
    r"|[+-]?\d{4,}-\d{1,2}(-\d{1,2})?(t.*)?",  # 2024-01-31, and -2024-01-31, a year before Christ
    re.IGNORECASE,
)
"""Names of directories that Spark reads as a number or a date (and a few more, to be safe)."""


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
    """Raise ConfigError when Spark would not read a topic's directory back as the topic's name.

    Spark guesses the type of a directory's value: 007 becomes 7. A table has a type for the column and needs no check.
    """
    if "topic" not in partition_by:
        return
    for topic in sorted(topics):
        if topic.endswith(_COPYING):
            raise ConfigError(
                f"topic '{topic}' cannot be a directory: Spark's readers pass over names that end in {_COPYING}. Leave "
                "'topic' out of partition_by (--partition-by)"
            )
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
