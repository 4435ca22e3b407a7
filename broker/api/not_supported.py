"""APIs of features that this broker does not have: client quotas.

DescribeClientQuotas (KIP-546) answers an empty list.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.permissions import DESCRIBE_QUOTAS

__all__ = [
    "describe_client_quotas",
]

_NONE = {"error_code": ErrorCode.none, "error_message": None}


def describe_client_quotas(context: ApiContext, request: Request, client: Client) -> Fields:
    if not context.allows(client, DESCRIBE_QUOTAS):
        refused = context.refusal(client, DESCRIBE_QUOTAS)
        return {"error_code": refused.code, "error_message": refused.message, "entries": None}
    return {**_NONE, "entries": ()}
