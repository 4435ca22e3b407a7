"""The cause in Spark's long error texts, and whether a retry may succeed. Pure.

The cause may be in one of our own tasks, which are Python, or in Spark's writer: then it is the last of the JVM's
causes.
"""

from __future__ import annotations

import re

__all__ = ["is_lasting", "summary"]

_OURS = re.compile(r"(?:^|: )(?:broker|spark_connector)(?:\.\w+)*\.(\w+: .+)$", re.MULTILINE)
"""An error that we raise on purpose: Spark shows it without a traceback (entry_point.py), behind words of its own."""
_PYTHON_ERROR = re.compile(
    r"^(?:\w+\.)*(\w*(?:Error|Exception|DataLoss|CorruptBatch|Failed|TimedOut|UnknownTopic): .+)$", re.MULTILINE
)
_JVM_CAUSE = re.compile(r"^Caused by: (?:\w+\.)*([\w$]+: .+)$", re.MULTILINE)
_NEVER_HEALS = (
    "LoadError",
    "DataLoss",
    "CorruptBatch",
    "ConfigError",
    "ConnectorError",
    "AuthenticationFailed",
    "UnknownTopic",
)
"""Errors of a Spark task that would fail the next try, too."""
_NO_SOURCE = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: pykafka\b")
_SET_PYTHON = (
    "ConfigError: the Python that Spark starts its workers with has no pykafka: set PYSPARK_PYTHON to the one that "
    "has it before Spark starts; `pykafka doctor` shows both"
)
_OF_OUR_READER = "[PYTHON_DATA_SOURCE_ERROR]"
_NO_RIGHT = re.compile(
    r"^Access(?:Denied|Control)Exception\b|\((?:Permission denied|Read-only file system)\)$"
    r"|^\w+: \w+_AUTHORIZATION_FAILED \("
)


def summary(text: str) -> str:
    """One line: the last error of ours, or of Python, or else the last cause, or else the first line."""
    if _NO_SOURCE.search(text):
        return _SET_PYTHON
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    python, causes = _PYTHON_ERROR.findall(text), _JVM_CAUSE.findall(text)
    if causes and "Traceback (most recent call last)" not in text:
        return str(causes[-1])
    return str(python[-1]) if python else text.strip().partition("\n")[0]


def is_lasting(text: str, *, in_planning: bool = False) -> bool:
    """Whether the next try would fail with the same text.

    `in_planning`: it is one of Spark's analysis errors. These are lasting, unless our own reader failed in planning.
    """
    reason = summary(text)
    if reason.startswith(_NEVER_HEALS) or _NO_RIGHT.search(reason) is not None:
        return True
    return in_planning and _OF_OUR_READER not in text
