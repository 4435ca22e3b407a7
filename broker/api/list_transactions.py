"""ListTransactions: the transactional ids this broker coordinates, filtered by state and producer (KIP-664).

Version notes: 1 — only transactions that have run for longer than a number of ms (KIP-994). 2 — only ids that a regular
expression matches as a whole (KIP-1152). As in Kafka the syntax is RE2's, which takes linear time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.transaction_records import TransactionMetadata, TransactionState
from broker.errors import BrokerError, ErrorCode
from broker.net.stopwatch import work_in_thread
from broker.patterns.re2 import InvalidPattern, Re2Pattern
from broker.protocol.messages import field
from broker.protocol.permissions import LIST_TRANSACTION

Listed = tuple[str, TransactionMetadata]

_STATES = {state.title: state for state in TransactionState}


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Return the transactions. Unknown state names are returned too and otherwise ignored."""
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
