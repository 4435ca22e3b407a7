"""The operations a client is allowed, as bit fields for Metadata and the Describe APIs (KIP-430).

There is no authorizer: every client may do everything that a resource of this kind supports (Kafka's
`AclEntry.supportedOperations`). A request that does not ask for them gets NOT_ASKED.
"""

from __future__ import annotations

__all__ = ["CLUSTER_OPERATIONS", "GROUP_OPERATIONS", "NOT_ASKED", "TOPIC_OPERATIONS"]

NOT_ASKED = -(2**31)

# Kafka's AclOperation: the number is the bit.
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    1 << code for code in range(3, 13)
)
CLUSTER_OPERATIONS = CREATE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE | ALTER | DESCRIBE
TOPIC_OPERATIONS = READ | WRITE | CREATE | DESCRIBE | DELETE | ALTER | DESCRIBE_CONFIGS | ALTER_CONFIGS
GROUP_OPERATIONS = READ | DELETE | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
