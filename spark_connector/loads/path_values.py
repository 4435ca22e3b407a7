"""Values in the names of directories: `date=2026-11-21`, as Spark reads them. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from broker.errors import ConfigError

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Spark's directory for rows without a value."""

_COPYING = "._COPYING_"

_NOT_TEXT = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?"  # 2024, 007, 1.5, 1e5, 2d
    r"|[+-]?0x[0-9a-f]*\.?[0-9a-f]*p[+-]?\d+[df]?"
    r"|[+-]?(nan|infinity)[df]?"
    r"|\d{2}:\d{2}:\d{2}(\.\d*)?"  # 12:30:00, a TIME since Spark 4.3
    r"|[+-]?\d{4,}-\d{1,2}(-\d{1,2}([t ].*)?)?",  # 2024-01-31, 2024-01-31 10:00, -2024-01-31, a year before Christ
    re.IGNORECASE | re.DOTALL,
)
"""Names of directories that Spark reads as a number, a date or a time (and a few more, to be safe)."""

_BLANKS = "".join(map(chr, (*range(33), *range(127, 160))))
"""What Java and Spark pass over at both ends of a number or a date."""


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
        if read_as := misread_directory(topic):
            raise ConfigError(
                f"topic '{topic}' cannot be a directory of files: Spark would read topic={topic} back as "
                f"{read_as}. Leave 'topic' out of partition_by "
                "(--partition-by), or use format=delta, where the column keeps its type"
            )


def misread_directory(value: str) -> str | None:
    """What Spark would take a directory's value for that is another text; None when it reads the text back."""
    if value.endswith(_COPYING):
        return "nothing at all"
    if value == NO_VALUE:
        return "null"
    return "a number, a date or a time" if _NOT_TEXT.fullmatch(value.strip(_BLANKS)) else None


def values_in_path(name: str) -> dict[str, str | None]:
    """Column → value of the directories in a file's name: `date=2026-11-21/part-0` → {"date": "2026-11-21"}."""
    segments = (segment.partition("=") for segment in posixpath.dirname(name).split("/"))
    found = ((unquote(key), unquote(value)) for key, separator, value in segments if separator)
    return {key: None if value == NO_VALUE else value for key, value in found}
