"""Levels of the broker's loggers, seen and set while it runs (KIP-412). They are not kept: a restart forgets them.

Called by config_resources.py. Names are those of Python's loggers (`broker.cluster.topics`), `root` is the one above
all; levels are Kafka's, where TRACE is what Python calls NOTSET + 5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.api.config_entries import ConfigEntry, ConfigSource
from broker.errors import BrokerError, ErrorCode
from broker.settings import Setting

__all__ = ["LEVEL", "alter_loggers", "check_loggers", "logger_entries", "own_levels"]

ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
LEVEL = Setting("level", "level", "string", None, "Level of a logger.", "", None)
"""What is known of each logger's setting."""


def logger_entries() -> list[ConfigEntry]:
    """Each logger with the level in force."""
    return [
        ConfigEntry(name, _name_of(_logger(name).getEffectiveLevel()), ConfigSource.DYNAMIC_BROKER_LOGGER)
        for name in _names()
    ]


def own_levels() -> Mapping[str, str]:
    """Each logger with its own level; empty where the one above it counts."""
    return {name: _name_of(_logger(name).level) if _logger(name).level else "" for name in _names()}


def check_loggers(changes: Mapping[str, str | None]) -> None:
    """Raise BrokerError `invalid_request`, or `invalid_config` for what is no level, unless all can be done."""
    known = _names()
    for name, level in changes.items():
        if name not in known:
            raise BrokerError(ErrorCode.invalid_config, f"there is no logger {name!r}")
        if level is None and name == ROOT:
            raise BrokerError(ErrorCode.invalid_request, "the level of the root logger cannot be taken away")
        if level is not None and level.upper() not in LEVELS:
            raise BrokerError(ErrorCode.invalid_config, f"{name}={level}: the levels are {', '.join(LEVELS)}")


def alter_loggers(changes: Mapping[str, str | None]) -> None:
    """Set levels, or with None leave it to the logger above."""
    for name, level in changes.items():
        _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level.upper()])


def _names() -> set[str]:
    made = (name for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger))
    return {ROOT, *made}


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name_of(level: int) -> str:
    """The finest of Kafka's levels that is not below it."""
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")
