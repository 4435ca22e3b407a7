"""DescribeAcls: there is no authorizer, and it is answered as Kafka without one answers: SECURITY_DISABLED."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["NO_AUTHORIZER", "handle"]

NO_AUTHORIZER = "no authorizer is configured on the broker"


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Refuse."""
    return {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER, "resources": ()}
