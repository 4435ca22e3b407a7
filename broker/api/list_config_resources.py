"""ListConfigResources: the resources that have settings (KIP-1142), in version 0 only client metrics (KIP-714).

There are no subscriptions to client metrics here.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.described_config import ResourceType
from broker.protocol.messages import field
from broker.protocol.permissions import LIST_CONFIG_RESOURCES


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Names and types. A request without types means all."""
    if not context.allows(client, LIST_CONFIG_RESOURCES):
        return {"error_code": LIST_CONFIG_RESOURCES.code, "config_resources": ()}
    asked = field(request.body, "resource_types", (ResourceType.CLIENT_METRICS,)) or tuple(ResourceType)
    if any(kind not in tuple(ResourceType) for kind in asked):
        return {"error_code": ErrorCode.unsupported_version}
    metadata = context.topics.metadata
    brokers = [str(broker_id) for broker_id in metadata.brokers]
    names = {
        ResourceType.TOPIC: list(metadata.topics),
        ResourceType.BROKER: brokers,
        ResourceType.GROUP: list(context.group_configs.known),
        ResourceType.BROKER_LOGGER: brokers,
    }
    found = [
        {"resource_name": name, "resource_type": int(kind)}
        for kind in dict.fromkeys(asked)
        for name in names.get(kind, ())
    ]
    return {"error_code": ErrorCode.none, "config_resources": found}
