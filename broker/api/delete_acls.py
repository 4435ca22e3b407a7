"""DeleteAcls: there is no authorizer, and it is answered as Kafka without one answers: SECURITY_DISABLED for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.api.describe_acls import NO_AUTHORIZER
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Refuse each."""
    refused = {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER, "matching_acls": ()}
    return {"filter_results": [refused for _ in request.body.filters]}
