"""DescribeClientQuotas: the quotas of users and clients (KIP-546). There are none, and none can be set yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """None, whatever is asked for."""
    return {"error_code": ErrorCode.none, "error_message": None, "entries": ()}
