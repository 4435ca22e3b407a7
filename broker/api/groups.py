"""Groups of the classic protocol, and to describe, list and delete groups."""

from __future__ import annotations

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.coordinator.group_messages import JoinRequest, LeavingMember, SyncRequest
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import (
    DELETE_GROUPS_GROUP,
    DESCRIBE_GROUPS_GROUP,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS_ANY,
    LIST_GROUPS_GROUP,
    SYNC_GROUP,
)
from broker.security.acl_types import AclResourceType


@serves(ApiKey.JOIN_GROUP, 0, 9)
async def join_group(context: ApiContext, request: Request, client: Client) -> Fields:
    """JoinGroup: join the next generation of a group. The answer comes when all members have joined.

    Version notes: 1 — a rebalance time-out; 4 — a new dynamic member first gets an id (KIP-394); 5 — static members; 8
    — a reason (KIP-800); 9 — a static leader that comes back may skip the assignment (KIP-814).
    """
    body = request.body
    if not context.allows(client, JOIN_GROUP, body.group_id):
        return {"error_code": JOIN_GROUP.code, "protocol_name": None if request.version >= 7 else ""}
    reply = await context.groups.join(
        JoinRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            client_id=request.client_id or "",
            client_host=f"/{client.host}",
            protocol_type=body.protocol_type,
            protocols=tuple((p.name, p.metadata) for p in body.protocols),
            session_timeout_ms=to_ms(body.session_timeout),
            rebalance_timeout_ms=to_ms(field(body, "rebalance_timeout", -1)),
            group_instance_id=field(body, "group_instance_id"),
            require_known_member_id=request.version >= 4,
            can_skip_assignment=request.version >= 9,
            reason=field(body, "reason"),
        )
    )
    return {
        "error_code": reply.error,
        "generation_id": reply.generation_id,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name if request.version >= 7 else reply.protocol_name or "",
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.group_instance_id, "metadata": m.metadata}
            for m in reply.members
        ],
    }


_FIRST_WITH_PROTOCOL = 5


@serves(ApiKey.SYNC_GROUP, 0, 5)
async def sync_group(context: ApiContext, request: Request, client: Client) -> Fields:
    """SyncGroup: the leader sends the assignments of all members, and each member gets its own.

    Version notes: from 5 a member must send its protocol type and name (KIP-559).
    """
    body = request.body
    if not context.allows(client, SYNC_GROUP, body.group_id):
        return {"error_code": SYNC_GROUP.code, "assignment": b""}
    if request.version >= _FIRST_WITH_PROTOCOL and None in (body.protocol_type, body.protocol_name):
        return {"error_code": ErrorCode.inconsistent_group_protocol, "assignment": b""}
    reply = await context.groups.sync(
        SyncRequest(
            group_id=body.group_id,
            generation_id=body.generation_id,
            member_id=body.member_id,
            assignments={a.member_id: a.assignment for a in body.assignments},
            group_instance_id=field(body, "group_instance_id"),
            protocol_type=field(body, "protocol_type"),
            protocol_name=field(body, "protocol_name"),
        )
    )
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }


@serves(ApiKey.HEARTBEAT, 0, 4)
async def heartbeat(context: ApiContext, request: Request, client: Client) -> Fields:
    """Heartbeat: keep a member's session alive, and tell it whether a rebalance has begun."""
    body = request.body
    if not context.allows(client, HEARTBEAT, body.group_id):
        return {"error_code": HEARTBEAT.code}
    error = await context.groups.heartbeat(
        body.group_id, body.generation_id, body.member_id, field(body, "group_instance_id")
    )
    return {"error_code": error}


@serves(ApiKey.LEAVE_GROUP, 0, 5)
async def leave_group(context: ApiContext, request: Request, client: Client) -> Fields:
    """LeaveGroup: remove one member, or from version 3 several, also by static instance id.

    Before version 3 the only member's error is that of the answer.
    """
    body = request.body
    if not context.allows(client, LEAVE_GROUP, body.group_id):
        return {"error_code": LEAVE_GROUP.code, "members": ()}
    asked = field(body, "members")
    if asked is None:
        reply = await context.groups.leave(body.group_id, [LeavingMember(body.member_id)])
        return {"error_code": reply.error if reply.error is not ErrorCode.none else reply.members[0][1]}
    reply = await context.groups.leave(
        body.group_id, [LeavingMember(m.member_id, m.group_instance_id, field(m, "reason")) for m in asked]
    )
    return {
        "error_code": reply.error,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.group_instance_id, "error_code": error}
            for m, error in reply.members
        ],
    }


@serves(ApiKey.DESCRIBE_GROUPS, 0, 6)
async def describe_groups(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeGroups: state and members of groups.

    Version notes: 3 — the operations the client is allowed, on request; 6 — an unknown group is an error (KIP-1043).
    """
    return {"groups": [await _describe(context, request, client, group_id) for group_id in request.body.groups]}


async def _describe(context: ApiContext, request: Request, client: Client, group_id: str) -> Fields:
    if not context.allows(client, DESCRIBE_GROUPS_GROUP, group_id):
        return {"group_id": group_id, **outcome(context.refusal(client, DESCRIBE_GROUPS_GROUP, group_id))}
    found = await context.groups.describe(group_id)
    absent = found.error is ErrorCode.none and found.state == "Dead" and request.version >= 6
    operations = NOT_ASKED
    if found.error is ErrorCode.none and not absent and field(request.body, "include_authorized_operations", False):
        operations = context.authorized_operations(client, request.api, AclResourceType.GROUP, group_id)
    return {
        "error_code": ErrorCode.group_id_not_found if absent else found.error,
        "error_message": found.message if absent else None,
        "group_id": group_id,
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol_name,
        "authorized_operations": operations,
        "members": [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.subscription,
                "member_assignment": m.assignment,
            }
            for m in found.members
        ],
    }


@serves(ApiKey.LIST_GROUPS, 0, 5)
async def list_groups(context: ApiContext, request: Request, client: Client) -> Fields:
    """ListGroups: the groups this broker coordinates, filtered by state (version 4, KIP-518) and type (5, KIP-848).

    Every group in one of the requested states and of one of the requested types.
    """
    types = {one.lower() for one in field(request.body, "types_filter", ())}
    error, groups = await context.groups.list_groups(field(request.body, "states_filter", ()))
    groups = [one for one in groups if not types or one.kind in types]
    if not context.allows(client, LIST_GROUPS_ANY, asked=False):
        groups = [one for one in groups if context.allows(client, LIST_GROUPS_GROUP, one.group_id, asked=False)]
    return {
        "error_code": error,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name,
                "group_type": group.kind.value,
            }
            for group in groups
        ],
    }


@serves(ApiKey.DELETE_GROUPS, 0, 2)
async def delete_groups(context: ApiContext, request: Request, client: Client) -> Fields:
    """DeleteGroups: delete empty groups and their offsets (KIP-229), also share groups with their states (KIP-932).

    Each group succeeds or fails alone.
    """
    results = {}
    for name in dict.fromkeys(request.body.groups_names):
        allowed = context.allows(client, DELETE_GROUPS_GROUP, name)
        results[name] = await _delete_states(context, name) if allowed else DELETE_GROUPS_GROUP.code
    results |= await context.groups.delete_groups(name for name, code in results.items() if code is ErrorCode.none)
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results.items()]}


async def _delete_states(context: ApiContext, group_id: str) -> ErrorCode:
    """Before a share group is deleted. One of another kind or at another coordinator has none here."""
    try:
        context.groups.share_group(group_id)
    except BrokerError:
        return ErrorCode.none
    try:
        results = await context.share.states.delete(group_id)
    except BrokerError as error:
        return error.code
    return next((error.code for error in results.values() if error is not None), ErrorCode.none)
