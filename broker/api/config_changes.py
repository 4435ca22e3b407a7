"""What an altering request asks for, as changes: setting → new value, or None to take it away. Pure.

Called by incremental_alter_configs.py and alter_configs.py. Errors are those of Kafka's ConfigAdminManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.settings import Setting

__all__ = ["Changes", "incremental_changes", "replacing_changes"]

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

Changes = dict[str, str | None]


def incremental_changes(asked: Sequence[Any], current: Mapping[str, str], keys: Mapping[str, Setting]) -> Changes:
    """Set, delete, append to or subtract from each named setting (KIP-339).

    `current`: what the resource has of its own; `keys`: what is known of its settings. Raises BrokerError
    `invalid_request` (a name twice, no value, an unknown operation), ConfigError (no list).
    """
    _check_named_once(asked)
    return {change.name: _new_value(change, current.get(change.name), keys.get(change.name)) for change in asked}


def replacing_changes(asked: Sequence[Any], current: Mapping[str, str], keys: Mapping[str, Setting]) -> Changes:
    """Everything the resource has goes, but for what is named. Raises BrokerError `invalid_request`."""
    _check_named_once(asked)
    if nulls := [change.name for change in asked if change.value is None]:
        raise BrokerError(ErrorCode.invalid_request, f"a value is needed for {', '.join(nulls)}")
    return {**dict.fromkeys(current), **{change.name: change.value for change in asked}}


def _check_named_once(asked: Sequence[Any]) -> None:
    twice = [name for name, count in Counter(change.name for change in asked).items() if count > 1]
    if twice:
        raise BrokerError(ErrorCode.invalid_request, f"named more than once: {', '.join(twice)}")


def _new_value(change: Any, current: str | None, key: Setting | None) -> str | None:
    operation = change.config_operation
    if operation == DELETE:
        return None
    if operation not in (SET, APPEND, SUBTRACT):
        raise BrokerError(ErrorCode.invalid_request, f"{change.name}: there is no config operation {operation}")
    if change.value is None:
        raise BrokerError(ErrorCode.invalid_request, f"a value is needed for {change.name}")
    if operation == SET or key is None:  # an unknown setting is refused with the others, and for being unknown
        return str(change.value)
    if key.type != "list":
        raise ConfigError(f"{change.name}: only a list can be appended to or subtracted from")
    items = _items(key.format(key.default) if current is None else current)
    named = _items(change.value)
    if operation == APPEND:
        return ",".join(items + [item for item in named if item not in items])
    return ",".join(item for item in items if item not in named)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
