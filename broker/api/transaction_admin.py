"""Transactions seen from outside: describe and list them, and end them in partitions (KIP-664)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.serving import serves
from broker.background_tasks import log_unexpected
from broker.coordinator.transaction_records import TransactionMetadata, TransactionState
from broker.errors import BrokerError, ErrorCode
from broker.net.stopwatch import work_in_thread
from broker.patterns.re2 import InvalidPattern, Re2Pattern
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import (
    DESCRIBE_TRANSACTION,
    DESCRIBE_TRANSACTION_TOPIC,
    LIST_TRANSACTION,
    WRITE_MARKERS_AS_ADMIN,
    WRITE_MARKERS_AS_BROKER,
)
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.records.control import ControlType, EndMarker


@serves(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
def describe_transactions(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeTransactions: state, producer and partitions of transactional ids (KIP-664).

    An unknown one gets TRANSACTIONAL_ID_NOT_FOUND.
    """
    names = request.body.transactional_ids
    return {"transaction_states": [_describe(context, client, name) for name in names]}


def _describe(context: ApiContext, client: Client, transactional_id: str) -> Fields:
    found: TransactionMetadata | ErrorCode = DESCRIBE_TRANSACTION.code
    if context.allows(client, DESCRIBE_TRANSACTION, transactional_id):
        found = context.transactions.describe(transactional_id)
    if isinstance(found, ErrorCode):
        return {
            "error_code": found,
            "transactional_id": transactional_id,
            "transaction_start_time": -1,
            "producer_id": 0,
            "producer_epoch": 0,
        }
    rows = (
        (tp, tp.partition)
        for tp in sorted(found.partitions)
        if context.allows(client, DESCRIBE_TRANSACTION_TOPIC, tp.topic, asked=False)
    )
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": found.state.title,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": topic_rows(rows, topic="topic"),
    }


Listed = tuple[str, TransactionMetadata]

_STATES = {state.title: state for state in TransactionState}


@serves(ApiKey.LIST_TRANSACTIONS, 0, 2)
async def list_transactions(context: ApiContext, request: Request, client: Client) -> Fields:
    """ListTransactions: the transactional ids this broker coordinates, filtered by state and producer (KIP-664).

    Unknown state names are returned too and otherwise ignored.
    Version notes: 1 — only transactions that have run for longer than a number of ms (KIP-994). 2 — only ids that a
    regular expression matches as a whole (KIP-1152). As in Kafka the syntax is RE2's, which takes linear time.
    """
    body = request.body
    unknown = [name for name in body.state_filters if name not in _STATES]
    states = {_STATES[name] for name in body.state_filters if name in _STATES}
    if unknown and not states:
        return {"error_code": ErrorCode.none, "unknown_state_filters": unknown, "transaction_states": ()}
    error, found = context.transactions.list(
        states, frozenset(body.producer_id_filters), field(body, "duration_filter", -1)
    )
    found = [one for one in found if context.allows(client, LIST_TRANSACTION, one[0], asked=False)]
    pattern = field(body, "transactional_id_pattern")
    if pattern:
        try:
            found = await work_in_thread(functools.partial(_matching, found, pattern))
        except BrokerError as refused:
            return {"error_code": refused.code}
    return {
        "error_code": error,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": current.producer_id,
                "transaction_state": current.state.title,
            }
            for transactional_id, current in found
        ],
    }


def _matching(found: Sequence[Listed], pattern: str) -> list[Listed]:
    """Those whose whole ids match `pattern`. Raises BrokerError `invalid_regular_expression`."""
    try:
        matches = list(Re2Pattern(pattern).matching([transactional_id for transactional_id, _ in found]))
    except InvalidPattern as error:
        raise BrokerError(ErrorCode.invalid_regular_expression, str(error)) from error
    return [transaction for transaction, matched in zip(found, matches, strict=True) if matched]


TIMEOUT_S: Final = 3.0
"""How long a request waits for followers. A coordinator tries again after REQUEST_TIMED_OUT, and other transactions
wait for this request meanwhile."""


@serves(ApiKey.WRITE_TXN_MARKERS, 1, 2)
async def write_txn_markers(context: ApiContext, request: Request, client: Client) -> Fields:
    """WriteTxnMarkers: end transactions in partitions that this broker leads.

    Transaction coordinators send it, and admins to end a hanging transaction; others get CLUSTER_AUTHORIZATION_FAILED.
    A partition's answer comes when all in-sync replicas have its marker. All markers are appended before the first of
    them is waited for.
    Version notes: 2 has the version of the transaction. In version 2 (KIP-890) a marker that came late is refused.
    """
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
    future.add_done_callback(functools.partial(log_unexpected, "writing a marker"))  # the answer may have been sent
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
