"""What Spark's error text, a page long, comes down to, and whether the same may work another time. Pure.

Called by load.py when a load's job has failed. The cause may lie in one of our tasks, which are Python, or in
Spark's own writer: then it is the last of the JVM's causes that says something.
"""

from __future__ import annotations

import re

__all__ = ["is_lasting", "summary"]

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
"""What a task of Spark may fail with that the next try would fail with too."""
_OF_OUR_READER = "[PYTHON_DATA_SOURCE_ERROR]"
_NO_RIGHT = re.compile(r"^Access(?:Denied|Control)Exception\b|\((?:Permission denied|Read-only file system)\)$")


def summary(text: str) -> str:
    """One line: the last Python error, else the last cause, else the first line."""
    python, causes = _PYTHON_ERROR.findall(text), _JVM_CAUSE.findall(text)
    if causes and "Traceback (most recent call last)" not in text:
        return str(causes[-1])
    return str(python[-1]) if python else text.strip().partition("\n")[0]


def is_lasting(text: str, *, in_planning: bool = False) -> bool:
    """Whether the next try would fail like the one with this text. What Spark cannot plan (`in_planning`: one of its
    analysis errors) it never can, but for a plan that our own reader makes: then what that ran into says it."""
    reason = summary(text)
    if reason.startswith(_NEVER_HEALS) or _NO_RIGHT.search(reason) is not None:
        return True
    return in_planning and _OF_OUR_READER not in text
