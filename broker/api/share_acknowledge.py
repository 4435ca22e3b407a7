"""ShareAcknowledge: a member says what became of the records that it has (KIP-932).

Version notes: 2 — renews locks (KIP-1222).
"""

from __future__ import annotations

from broker.api import share_requests
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import SHARE_ACKNOWLEDGE_GROUP, SHARE_ACKNOWLEDGE_TOPIC
from broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Answers when the acknowledgements are stored. The final epoch releases what is left."""
    body = request.body
    try:
        key = share_requests.session_key(context, request, client, SHARE_ACKNOWLEDGE_GROUP)
        if body.share_session_epoch == INITIAL_EPOCH:
            raise BrokerError(ErrorCode.invalid_share_session_epoch, "ShareFetch opens a session")
        session = context.share.sessions.find(key, body.share_session_epoch)
    except BrokerError as error:
        return outcome(error)
    named = share_requests.asked_of(body.topics)
    results = await share_requests.acknowledge(context, request, client, key, SHARE_ACKNOWLEDGE_TOPIC, named)
    if body.share_session_epoch == FINAL_EPOCH:
        context.share.sessions.end(session)
    partitions = {one: outcome(result) for one, result in results.items()}
    return share_requests.response_fields(context, client, key.group_id, partitions, results)
