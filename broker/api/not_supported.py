"""APIs of a feature that this broker does not have: ACLs.

DescribeAcls, CreateAcls and DeleteAcls answer SECURITY_DISABLED, as Kafka does without an authorizer.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode

__all__ = [
    "create_acls",
    "delete_acls",
    "describe_acls",
]

_DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "no authorizer is configured on the broker",
}


def describe_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    return {**_DISABLED, "resources": ()}


def create_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    return {"results": [_DISABLED for _ in request.body.creations]}


def delete_acls(context: ApiContext, request: Request, client: Client) -> Fields:
    return {"filter_results": [{**_DISABLED, "matching_acls": ()} for _ in request.body.filters]}
