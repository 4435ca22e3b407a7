"""The tables of rights in docs/reference/permissions.md, made from broker/protocol/permissions.py."""

from __future__ import annotations

from broker.api.table import API_TABLE
from broker.protocol.permissions import OPEN_APIS, PERMISSIONS, Permission
from broker.security.acl_types import SUPPORTED_OPERATIONS
from tests.support.markdown_table import table

_SERVED = {api: (low, high) for api, low, high in API_TABLE}


def permissions() -> str:
    """A row for each right that an API asks for."""
    rows = sorted(PERMISSIONS, key=lambda need: need.api)  # stable: the order of the file within an API
    return table(
        ["API", "versions", "operation", "resource", "asked", "without it"],
        (
            [need.request, _versions(need), need.operation.title, need.resource.title, need.asked, _without(need)]
            for need in rows
        ),
    )


def open_apis() -> str:
    """Which APIs need no right, in a sentence."""
    *names, last = (api.title for api in sorted(OPEN_APIS))
    return f"{', '.join(names)} and {last} need no right.\n"


def operations() -> str:
    """What can be done with a resource of each type."""
    rows = (
        [type.title, ", ".join(operation.title for operation in operations)]
        for type, operations in SUPPORTED_OPERATIONS.items()
    )
    return table(["resource", "operations"], rows)


def _versions(need: Permission) -> str:
    low, high = _SERVED[need.api]
    low, high = max(low, need.low), high if need.high is None else min(high, need.high)
    return str(low) if low == high else f"{low}–{high}"


def _without(need: Permission) -> str:
    return need.otherwise or need.code.name.upper()
