"""WriteTxnMarkers: end transactions in partitions that this broker leads.

Transaction coordinators send it, and admins to end a hanging transaction; others get CLUSTER_AUTHORIZATION_FAILED. A
partition's answer comes when all in-sync replicas have its marker. All markers are appended before the first of them is
waited for.
Version notes: 2 has the version of the transaction. In version 2 (KIP-890) a marker that came late is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from broker.api.context import ApiContext, Client, Fields, Request
from broker.background_tasks import log_unexpected
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import WRITE_MARKERS_AS_ADMIN, WRITE_MARKERS_AS_BROKER
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker

TIMEOUT_S: Final = 3.0
"""How long a request waits for followers. A coordinator tries again after REQUEST_TIMED_OUT, and other transactions
wait for this request meanwhile."""


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    unsafe: list[tuple[dict[str, Any], asyncio.Future[object]]] = []
    allowed = _is_admin(context, client) or context.allows(client, WRITE_MARKERS_AS_BROKER)
    answer = {"markers": [_append_all(context, marker, unsafe, allowed) for marker in request.body.markers]}
    if unsafe:
        await asyncio.wait([future for _, future in unsafe], timeout=TIMEOUT_S)
        for row, future in unsafe:
            row["error_code"] = _code_of(future)
    return answer


def _is_admin(context: ApiContext, client: Client) -> bool:
    """Whether ACLs let the client end hanging transactions. Without an authorizer only brokers may."""
    return context.acls is not None and context.allows(client, WRITE_MARKERS_AS_ADMIN, asked=False)


def _append_all(
    context: ApiContext, asked: Any, unsafe: list[tuple[dict[str, Any], asyncio.Future[object]]], allowed: bool
) -> Fields:
    how = ControlType(asked.transaction_result)
    version = field(asked, "transaction_version", 0)
    marker = EndMarker(asked.producer_id, asked.producer_epoch, how, asked.coordinator_epoch, version)
    topics = []
    for topic in asked.topics:
        rows = []
        for index in topic.partition_indexes:
            row: dict[str, Any] = {"partition_index": index, "error_code": ErrorCode.none}
            rows.append(row)
            if not allowed:
                row["error_code"] = ErrorCode.cluster_authorization_failed
                continue
            try:
                waiting = context.markers.write(TopicPartition(topic.name, index), marker)
            except BrokerError as error:
                row["error_code"] = error.code
            else:
                if waiting is not None:
                    unsafe.append((row, _future(waiting)))
        topics.append({"name": topic.name, "partitions": rows})
    return {"producer_id": asked.producer_id, "topics": topics}


def _future(waiting: Awaitable[object]) -> asyncio.Future[object]:
    future = asyncio.ensure_future(waiting)
    future.add_done_callback(partial(log_unexpected, "writing a marker"))  # the answer may have been sent
    return future


def _code_of(future: asyncio.Future[object]) -> ErrorCode:
    if not future.done():
        return ErrorCode.request_timed_out
    error = future.exception()
    if isinstance(error, BrokerError):
        return error.code
    if error is not None:
        raise error
    return ErrorCode.none
