"""Each right of broker/protocol/permissions.py, in each version that asks for it: what is told without, and with."""

from __future__ import annotations

from typing import Any

from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import FIND_SHARE, PERMISSIONS, Permission
from tests.compat.kafka_answers.asking import versions
from tests.compat.kafka_answers.guarded_asking import GuardedAsking
from tests.support.permission_cases import CASES

_KEPT = {"name", "topic_name", "topic", "group_id", "transactional_id", "resource_name", "partition_index"}


_LATER = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    *(one for one in ApiKey if "SHARE" in one.name),
}
"""Kafka 3.8.1 does not serve them."""
_LOGGED_IN = {need for need, case in CASES.items() if case.logged_in}
"""Who asks did not log in."""


def ask_all(asking: GuardedAsking) -> None:
    for need in PERMISSIONS:
        if need.api in _LATER or need is FIND_SHARE or need in _LOGGED_IN:
            continue
        for version in versions(need.api):
            if need.low <= version <= (version if need.high is None else need.high):
                _ask(asking, need, version)


def _ask(asking: GuardedAsking, need: Permission, version: int) -> None:
    case = CASES[need]
    is_shown = case.look or (lambda answer: case.shows in repr(answer))
    shows = case.look is not None or case.shows != ""
    for having, rights in (("without", case.others), ("with", (need, *case.others))):
        asking.world.allow(*rights)
        name = f"{need.request} {having} {need.operation.title} {need.resource.title}"
        answer = asking.ask(name, need.api, case.body(asking.world, version), version, _code if shows else told)
        if shows:
            asking.note(f"{name}: shown", answer is not None and is_shown(answer), version)


def _code(answer: Any) -> Any:
    return answer.get("error_code", "none")


def told(answer: Any) -> Any:
    """The error codes of a neutral answer, and what they are about; a topic's settings are but a number."""
    match answer:
        case dict():
            found = {
                key: len(value) > 0 if key == "configs" and value is not None else told(value)
                for key, value in answer.items()
                if key.endswith("error_code") or key in _KEPT or isinstance(value, list | dict)
            }
            return {key: value for key, value in found.items() if value not in ({}, [])}
        case list():
            return [one for one in map(told, answer) if one != {}]
    return answer
