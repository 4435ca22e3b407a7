"""DescribeClientQuotas: the quotas of users, client ids and addresses that pass a filter (KIP-546).

A component of the filter asks for entities with a type: of a name, the default, or any. A strict filter leaves out
entities with other types. Errors are those of Kafka's `ZkAdminManager`; that a name must be there or not, as the match
asks, is from KRaft, because Kafka with ZooKeeper fails or overlooks it.
"""

from __future__ import annotations

from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import DESCRIBE_QUOTAS
from broker.quotas.quota_entity import CLIENT_ID, DEFAULT

EXACT, BY_DEFAULT, ANY = 0, 1, 2
_WITHOUT_NAME = {BY_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Answer from the cache."""
    try:
        context.check(client, DESCRIBE_QUOTAS)
        wanted = _wanted(request.body.components)
        found = list(context.quota_configs.find(wanted, strict=request.body.strict))
    except BrokerError as error:
        return {**outcome(error), "entries": None}
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts().items()],
            "values": [{"key": key, "value": limit} for key, limit in limits.items()],
        }
        for entity, limits in found
    ]
    return {**outcome(), "entries": entries}


def _wanted(components: Any) -> dict[str, str | None]:
    """Type → name, DEFAULT, or None for any."""
    wanted: dict[str, str | None] = {}
    for one in components:
        if one.entity_type in wanted:
            kind = "client" if one.entity_type == CLIENT_ID else one.entity_type
            raise _invalid(f"Duplicate {kind} filter component entity type")
        if one.match_type == EXACT:
            if one.match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            # An empty name is nobody's, but must not pass for the default.
            wanted[one.entity_type] = one.match or _NOBODY
        elif one.match_type not in _WITHOUT_NAME:
            raise _invalid(f"Unexpected match type: {one.match_type}")
        elif one.match is not None:
            raise _invalid(f"Request specified {_WITHOUT_NAME[one.match_type]}, but also specified a match string.")
        else:
            wanted[one.entity_type] = DEFAULT if one.match_type == BY_DEFAULT else None
    return wanted


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_request, message)


_NOBODY = "\0"
