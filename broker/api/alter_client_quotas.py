"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546).

Each entity succeeds or fails alone. With validate_only nothing is changed. Errors are those of Kafka's
`ZkAdminManager`; that a quota must be above 0 is from its KRaft controller, because Kafka with ZooKeeper takes 0 for no
limit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.cluster.quota_configs import addresses_of
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import ALTER_QUOTAS
from broker.quotas.quota_entity import CLIENT_ID, CLIENT_KEYS, IP, IP_KEYS, QUOTA_KEYS, USER, QuotaEntity


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Alter the entities one after another."""
    entries = []
    for entry in request.body.entries:
        code, message = ErrorCode.none, None
        parts = {one.entity_type: one.entity_name for one in entry.entity}
        try:
            context.check(client, ALTER_QUOTAS)
            await _alter(context, parts, entry.ops, validate_only=request.body.validate_only)
        except BrokerError as error:
            code, message = error.code, error.message or None
        entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]
        entries.append({"error_code": code, "error_message": message, "entity": entity})
    return {"entries": entries}


async def _alter(context: ApiContext, parts: Mapping[str, str | None], operations: Any, *, validate_only: bool) -> None:
    entity = _entity(parts)
    if entity.ip:
        try:
            await asyncio.to_thread(addresses_of, entity.ip)
        except (OSError, UnicodeError) as error:
            raise _invalid(f"{entity.ip} is not a valid IP or resolvable host.") from error
    changes = _changes(entity, operations)
    if not validate_only:
        await context.quota_configs.alter(entity, changes)


def _entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """A name of None is the default."""
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in parts and len(parts) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be used with user/client ID entity.")
    names = {kind: name or "" for kind, name in parts.items()}
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def _changes(entity: QuotaEntity, operations: Any) -> dict[str, str | None]:
    """The new text of each key, None to remove it."""
    keys = CLIENT_KEYS if entity.ip is None else IP_KEYS
    changes: dict[str, str | None] = {}
    for one in operations:
        if one.key not in keys:
            raise _invalid(f"Invalid configuration key {one.key}")
        if one.remove:
            changes[one.key] = None
            continue
        key = QUOTA_KEYS[one.key]
        if not (math.isfinite(one.value) and one.value > 0):
            raise _invalid(f"Quota {key.name} must be greater than 0")
        text = key.format(one.value)
        if text is None:
            raise _invalid(f"Configuration {key.name} must be a {key.type.upper()} value")
        changes[key.name] = text
    return changes


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_request, message)
