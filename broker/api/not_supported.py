"""APIs of features that this broker does not have: ACLs, client quotas.

DescribeAcls, CreateAcls and DeleteAcls answer SECURITY_DISABLED, as Kafka does without an authorizer.
DescribeClientQuotas (KIP-546) answers an empty list.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode

__all__ = [
    "create_acls",
    "delete_acls",
    "describe_acls",
    "describe_client_quotas",
]

_DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "no authorizer is configured on the broker",
}
_NONE = {"error_code": ErrorCode.none, "error_message": None}


def describe_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    return {**_DISABLED, "resources": ()}


def create_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    return {"results": [_DISABLED for _ in request.body.creations]}


def delete_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    return {"filter_results": [{**_DISABLED, "matching_acls": ()} for _ in request.body.filters]}


def describe_client_quotas(context: ApiContext, request: Request, client: Client) -> Fields:
    return {**_NONE, "entries": ()}
