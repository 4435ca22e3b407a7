"""ListPartitionReassignments: partitions on their way to other brokers (KIP-455); there never are any, see
alter_partition_reassignments.py."""

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
    return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}
