"""DescribeCluster: the brokers and the controller, for admin clients (KIP-700).

Version notes: from 1 the client says whether it asks a broker or a KRaft controller, which this is not (KIP-919); from
2 a broker may be fenced, which none is with ZooKeeper.
"""

from __future__ import annotations

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import DESCRIBE_CLUSTER_OPERATIONS
from broker.security.acl_types import AclResourceType

BROKERS, CONTROLLERS = 1, 2


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    endpoint_type = field(request.body, "endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        known = endpoint_type == CONTROLLERS
        return {
            "error_code": ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            "error_message": f"this is a broker; endpoints of type {endpoint_type} are not served here",
            "endpoint_type": BROKERS,
            "cluster_authorized_operations": NOT_ASKED,
        }
    metadata = context.topics.metadata
    operations = NOT_ASKED
    if request.body.include_cluster_authorized_operations:
        shown = context.allows(client, DESCRIBE_CLUSTER_OPERATIONS, asked=False)
        operations = context.authorized_operations(client, request.api, AclResourceType.CLUSTER) if shown else 0
    return {
        "error_code": ErrorCode.none,
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "endpoint_type": BROKERS,
        "cluster_authorized_operations": operations,
        "brokers": [
            {"broker_id": broker_id, "host": at.host, "port": at.port, "rack": metadata.brokers[broker_id].rack}
            for broker_id, at in metadata.endpoints(client.listener).items()
        ],
    }
