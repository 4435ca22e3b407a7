"""DescribeClientQuotas and AlterClientQuotas: the quotas of users, client ids and addresses (KIP-546).

Errors are those of Kafka's `ZkAdminManager`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.cluster.quota_configs import addresses_of
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import ALTER_QUOTAS, DESCRIBE_QUOTAS
from broker.quotas.quota_entity import CLIENT_ID, CLIENT_KEYS, DEFAULT, IP, IP_KEYS, QUOTA_KEYS, USER, QuotaEntity

EXACT, BY_DEFAULT, ANY = 0, 1, 2
_NOBODY = "\0"
_WITHOUT_NAME = {BY_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}


@serves(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1)
def describe_client_quotas(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeClientQuotas: the quotas of users, client ids and addresses that pass a filter (KIP-546).

    A component of the filter asks for entities with a type: of a name, the default, or any. A strict filter leaves out
    entities with other types. That a name must be there or not, as the match asks, is from KRaft, because Kafka with
    ZooKeeper fails or overlooks it.
    """
    try:
        context.check(client, DESCRIBE_QUOTAS)
        wanted = _wanted(request.body.components)
        found = list(context.quota_configs.find(wanted, strict=request.body.strict))
    except BrokerError as error:
        return {**outcome(error), "entries": None}
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts().items()],
            "values": [{"key": key, "value": limit} for key, limit in limits.items()],
        }
        for entity, limits in found
    ]
    return {**outcome(), "entries": entries}


def _wanted(components: Any) -> dict[str, str | None]:
    """Type → name, DEFAULT, or None for any."""
    wanted: dict[str, str | None] = {}
    for one in components:
        if one.entity_type in wanted:
            kind = "client" if one.entity_type == CLIENT_ID else one.entity_type
            raise _invalid(f"Duplicate {kind} filter component entity type")
        if one.match_type == EXACT:
            if one.match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            # An empty name is nobody's, but must not pass for the default.
            wanted[one.entity_type] = one.match or _NOBODY
        elif one.match_type not in _WITHOUT_NAME:
            raise _invalid(f"Unexpected match type: {one.match_type}")
        elif one.match is not None:
            raise _invalid(f"Request specified {_WITHOUT_NAME[one.match_type]}, but also specified a match string.")
        else:
            wanted[one.entity_type] = DEFAULT if one.match_type == BY_DEFAULT else None
    return wanted


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_request, message)


@serves(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, changes_metadata=True)
async def alter_client_quotas(context: ApiContext, request: Request, client: Client) -> Fields:
    """AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546).

    Each entity succeeds or fails alone. With validate_only nothing is changed. That a quota must be above 0 is from
    Kafka's KRaft controller, because Kafka with ZooKeeper takes 0 for no limit.
    """
    entries = []
    for entry in request.body.entries:
        told = outcome()
        parts = {one.entity_type: one.entity_name for one in entry.entity}
        try:
            context.check(client, ALTER_QUOTAS)
            await _alter(context, parts, entry.ops, validate_only=request.body.validate_only)
        except BrokerError as error:
            told = outcome(error)
        entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]
        entries.append({**told, "entity": entity})
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
