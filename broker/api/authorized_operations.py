"""What a client may do, as the bits that Metadata and the Describe APIs answer (KIP-430).

There is no authorizer: everybody may do all that the kind of resource knows (org.apache.kafka.server.authorizer
AclEntry.supportedOperations). Who did not ask is answered NOT_ASKED.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CLUSTER_OPERATIONS", "GROUP_OPERATIONS", "NOT_ASKED", "TOPIC_OPERATIONS"]

NOT_ASKED = -(2**31)


class _Operation(IntEnum):
    """Codes of Kafka's AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: _Operation) -> int:
    return sum(1 << operation for operation in operations)


_O = _Operation
CLUSTER_OPERATIONS = _bits(
    *(_O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE, _O.ALTER, _O.DESCRIBE)
)
TOPIC_OPERATIONS = _bits(
    *(_O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
)
GROUP_OPERATIONS = _bits(_O.READ, _O.DESCRIBE, _O.DELETE)
