"""DescribeCluster: the brokers and the controller, for admin clients (KIP-700)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """What the metadata cache knows of the cluster."""
    metadata = context.topics.metadata
    return {
        "error_code": ErrorCode.none,
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "endpoint_type": 1,
        "cluster_authorized_operations": -(2**31),
        "brokers": [
            {"broker_id": b.broker_id, "host": b.host, "port": b.port, "rack": None} for b in metadata.brokers.values()
        ],
    }
