"""Kafka's rules for topic names, and the internal topics (org.apache.kafka.common.internals.Topic). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from broker.errors import BrokerError, ErrorCode

MAX_NAME_LENGTH = 249  # with "-" and a partition number this is still a valid file name
GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise BrokerError `invalid_topic_exception` with the rule that the name breaks."""
    if not name:
        raise _invalid("a topic name must not be empty")
    if name in {".", ".."}:
        raise _invalid(f"a topic cannot be named {name!r}")
    if len(name) > MAX_NAME_LENGTH:
        raise _invalid(f"the topic name has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed: {name}")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"topic name {name!r} has a character other than a-z, A-Z, 0-9, '.', '_' and '-'")


def absence(name: str) -> ErrorCode:
    """The error code for a topic that does not exist: its name is invalid, or it is unknown."""
    try:
        check_topic_name(name)
    except BrokerError as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Raise BrokerError `invalid_topic_exception` when another name differs only in '.' and '_'."""
    if other := colliding_topic(name, existing):
        raise _invalid(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same in names of metrics")


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """The existing topic that differs from `name` only in '.' and '_', which are the same in names of metrics."""
    if "." not in name and "_" not in name:
        return None
    unified = _unified(name)
    return next((other for other in existing if other != name and _unified(other) == unified), None)


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _invalid(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_topic_exception, reason)
