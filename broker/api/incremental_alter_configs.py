"""IncrementalAlterConfigs: set, delete, append to or subtract from settings of topics, of brokers (those that may
change at run time, KIP-226) and of a broker's loggers (KIP-339).

Changes of topics and brokers are kept in ZooKeeper; all hold at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.api.config_changes import Changes, incremental_changes
from broker.api.config_resources import resource
from broker.api.context import ApiContext
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request
from broker.settings import Setting

__all__ = ["alter_each", "handle"]

ChangesOf = Callable[[Sequence[Any], Mapping[str, str], Mapping[str, Setting]], Changes]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Alter each resource; each succeeds or fails alone."""
    return await alter_each(context, request, incremental_changes)


async def alter_each(context: ApiContext, request: Request, changes_of: ChangesOf) -> Mapping[str, Any]:
    """Apply `changes_of(what is asked, what the resource has, what its settings are)` to each resource."""
    named = Counter((asked.resource_type, asked.resource_name) for asked in request.body.resources)
    responses = []
    for asked in request.body.resources:
        code, message = ErrorCode.none, None
        try:
            if named[asked.resource_type, asked.resource_name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "a resource may stand in the request only once")
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
        raise BrokerError(ErrorCode.invalid_request, "AlterConfigs is for topics and brokers only")
    changes = changes_of(asked.configs, found.current(), found.keys)
    await found.alter(changes, validate_only=validate_only)
