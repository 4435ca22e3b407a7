"""IncrementalAlterConfigs: set, delete, append to or subtract from a topic's settings (KIP-339).

Changes are kept in ZooKeeper and hold at once. Broker settings are read at start and refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.api.describe_configs import TOPIC
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log.log_config import TOPIC_KEYS
from broker.net.router import Client
from broker.protocol.messages import Request
from broker.settings import did_you_mean

__all__ = ["alter_each", "handle"]

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Alter each resource; each succeeds or fails alone."""
    return await alter_each(context, request, _changes)


async def alter_each(
    context: ApiContext, request: Request, changes_of: Callable[[Any, Mapping[str, str]], dict[str, str | None]]
) -> Mapping[str, Any]:
    """Apply `changes_of(resource, settings the topic has)` to each named topic; None takes a setting away."""
    responses = []
    for asked in request.body.resources:
        code, message = ErrorCode.none, None
        try:
            changes = changes_of(asked, _settings_of(context, asked))
            await context.topics.alter_config(asked.resource_name, changes, validate_only=request.body.validate_only)
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


def _settings_of(context: ApiContext, asked: Any) -> Mapping[str, str]:
    if asked.resource_type != TOPIC:
        raise BrokerError(ErrorCode.invalid_request, "only topic settings can be altered while the broker runs")
    topic = context.topics.metadata.topics.get(asked.resource_name)
    if topic is None:
        raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {asked.resource_name}")
    return topic.config


def _changes(asked: Any, current: Mapping[str, str]) -> dict[str, str | None]:
    return {c.name: _new_value(c, current.get(c.name)) for c in asked.configs}


def _new_value(change: Any, current: str | None) -> str | None:
    key = TOPIC_KEYS.get(change.name)
    if key is None:
        raise ConfigError(f"unknown setting {change.name!r}{did_you_mean(change.name, TOPIC_KEYS)}")
    if change.config_operation == DELETE:
        return None
    if change.value is None:
        raise ConfigError(f"{change.name}: a value is needed")
    if change.config_operation == SET:
        return str(change.value)
    if key.type != "list":
        raise ConfigError(f"{change.name}: only a list can be appended to or subtracted from")
    items = [item for item in (key.format(key.default) if current is None else current).split(",") if item]
    named = [item.strip() for item in change.value.split(",")]
    if change.config_operation == APPEND:
        return ",".join(items + [item for item in named if item not in items])
    if change.config_operation == SUBTRACT:
        return ",".join(item for item in items if item not in named)
    raise BrokerError(ErrorCode.invalid_request, f"config operation {change.config_operation} is not known")
