"""The operations a client is allowed, as bit fields for Metadata and the Describe APIs (KIP-430).

The bit of an operation is its number. A request that does not ask for them gets NOT_ASKED.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from broker.api.context import ApiContext, Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import Permission
from broker.security.acl_types import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclResourceType

NOT_ASKED = -(2**31)


def authorized_operations(
    context: ApiContext, client: Client, api: ApiKey, resource: AclResourceType, name: str = CLUSTER_NAME
) -> int:
    """What the client may do with a resource, of all that can be done with one of its type."""
    allows = context.authorizer.allows
    needs = _needs(api, resource)
    return sum(1 << need.operation for need in needs if allows(client, need, name, asked=False, keep=False))


@functools.cache
def _needs(api: ApiKey, resource: AclResourceType) -> Sequence[Permission]:
    return tuple(Permission(api, operation, resource) for operation in SUPPORTED_OPERATIONS[resource])
