"""Quotas as the rows of DescribeClientQuotas and AlterClientQuotas (KIP-546). Called by admin.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.quotas.quota_entity import CLIENT_ID, IP, USER, QuotaEntity

_EXACT, _OF_DEFAULT, _ANY = 0, 1, 2
"""How an entity is named."""


def filter_body(wanted: Mapping[str, str | None], *, strict: bool) -> dict[str, Any]:
    components = [
        {"entity_type": kind, "match_type": _ANY if name is None else _EXACT if name else _OF_DEFAULT}
        | {"match": name or None}
        for kind, name in wanted.items()
    ]
    return {"components": components, "strict": strict}


def decode_quotas(row: Any) -> tuple[QuotaEntity, dict[str, float]]:
    """An entity with its limits: key → limit per second."""
    names = {str(one.entity_type): one.entity_name or "" for one in row.entity}
    entity = QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
    return entity, {str(one.key): float(one.value) for one in row.values}


def alteration_row(entity: QuotaEntity, changes: Mapping[str, float | None]) -> dict[str, Any]:
    operations = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes.items()]
    parts = [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts().items()]
    return {"entity": parts, "ops": operations}
