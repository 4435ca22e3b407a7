"""IncrementalAlterConfigs (KIP-339): set or delete settings, or append to and subtract from those that are lists.

It alters topics, groups, brokers (only settings that may change at run time, KIP-226) and a broker's loggers. All
changes but those of loggers are kept in ZooKeeper. They take effect at once. Errors are those of Kafka's
`ConfigAdminManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.api.config_resources import Changes, check_resource, resource
from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import (
    ALTER_CONFIGS_CLUSTER,
    ALTER_CONFIGS_GROUP,
    ALTER_CONFIGS_TOPIC,
    INCREMENTAL_ALTER_CLUSTER,
    INCREMENTAL_ALTER_GROUP,
    INCREMENTAL_ALTER_TOPIC,
)
from broker.settings import Setting

_NEEDS = {
    ApiKey.ALTER_CONFIGS: (ALTER_CONFIGS_CLUSTER, ALTER_CONFIGS_GROUP, ALTER_CONFIGS_TOPIC),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (INCREMENTAL_ALTER_CLUSTER, INCREMENTAL_ALTER_GROUP, INCREMENTAL_ALTER_TOPIC),
}

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

ChangesOf = Callable[[Sequence[Any], Mapping[str, str], Mapping[str, Setting]], Changes]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Alter each resource. Each succeeds or fails alone."""
    return await alter_each(context, request, client, incremental_changes)


async def alter_each(context: ApiContext, request: Request, client: Client, changes_of: ChangesOf) -> Fields:
    """Apply `changes_of(requested changes, values set on the resource, its known settings)` to each resource."""
    named = Counter((asked.resource_type, asked.resource_name) for asked in request.body.resources)
    responses = []
    for asked in request.body.resources:
        code, message = ErrorCode.none, None
        try:
            check_resource(context, client, _NEEDS[request.api], asked)
            if named[asked.resource_type, asked.resource_name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "a resource may be in the request only once")
            await _alter(context, asked, request.body.validate_only, changes_of)
        except BrokerError as error:
            code, message = error.code, error.message or None
        except ConfigError as error:
            code, message = ErrorCode.invalid_config, str(error)
        responses.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
            }
        )
    return {"responses": responses}


async def _alter(context: ApiContext, asked: Any, validate_only: bool, changes_of: ChangesOf) -> None:
    found = resource(context, asked.resource_type, asked.resource_name)
    if changes_of is not incremental_changes and not found.replaceable:
        raise BrokerError(ErrorCode.invalid_request, "AlterConfigs is not for loggers")
    changes = changes_of(asked.configs, found.current(), found.keys)
    await found.alter(changes, validate_only=validate_only)


def incremental_changes(asked: Sequence[Any], current: Mapping[str, str], keys: Mapping[str, Setting]) -> Changes:
    """The new value of each setting in `asked`, or None to delete it.

    `current` has the values set on the resource, `keys` its known settings. Raises BrokerError `invalid_request` (a
    name twice, no value, an unknown operation) and ConfigError (not a list).
    """
    check_named_once(asked)
    return {change.name: _new_value(change, current.get(change.name), keys.get(change.name)) for change in asked}


def check_named_once(asked: Sequence[Any]) -> None:
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
    if operation == SET or key is None:  # an unknown setting is refused later, with all others that are unknown
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
