"""ListTransactions: the transactional ids this broker coordinates, filtered by state and producer (KIP-664).

Version notes: 1 — only transactions that run for longer than a number of ms (KIP-994). 2, which filters by a
regular expression, is not served: a client could keep the broker busy with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.coordinator.transaction_records import TransactionState
from broker.net.router import Client
from broker.protocol.messages import Request, field

__all__ = ["handle"]

_STATES = {state.title: state for state in TransactionState}


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """List them; state names that do not exist are told back, and what is left of the filter holds."""
    body = request.body
    unknown = [name for name in body.state_filters if name not in _STATES]
    states = {_STATES[name] for name in body.state_filters if name in _STATES}
    if unknown and not states:
        listed: list[Mapping[str, Any]] = []
        return {"unknown_state_filters": unknown, "transaction_states": listed}
    error, found = context.transactions.list(
        states, frozenset(body.producer_id_filters), field(body, "duration_filter", -1)
    )
    return {
        "error_code": error,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.title,
            }
            for transaction in found
        ],
    }
