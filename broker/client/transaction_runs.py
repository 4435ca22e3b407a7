"""Many transactions at once: are they still open, end them. One round trip a coordinator instead of one each.

Called by the Spark connector's driver, which ends the transactions of all tasks of a batch. The requests are those of
transactions.py, sent ahead of their answers; whatever is not answered with yes or no is asked again there, with all its
patience.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from broker.client.cluster import Cluster
from broker.client.metadata import CoordinatorKind, Node
from broker.client.transaction_errors import TransactionError, transaction_error
from broker.client.transactions import TransactionHandle, add_partitions, end_transaction
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

__all__ = ["check_open", "end_transactions"]

_WINDOW: Final = 64
"""Requests under way at one coordinator: some kilobytes, which fit into what sockets hold."""

Outcome = TransactionError | None


def end_transactions(cluster: Cluster, transactions: Sequence[TransactionHandle], *, commit: bool) -> list[Outcome]:
    """End each; what went wrong with it, in their order. Raises what is not the transaction's fault."""
    bodies = [
        (one, {"producer_id": one.producer_id, "producer_epoch": one.epoch, "committed": commit})
        for one in transactions
    ]
    codes = _ask(cluster, ApiKey.END_TXN, bodies, lambda answer: answer.error_code)
    what = "committing the transaction" if commit else "aborting the transaction"
    return [
        _outcome(code, one, what, lambda one=one: end_transaction(cluster, one, commit=commit))  # type: ignore[misc]
        for one, code in zip(transactions, codes, strict=True)
    ]


def check_open(cluster: Cluster, transactions: Sequence[tuple[TransactionHandle, TopicPartition]]) -> list[Outcome]:
    """Why each, given with a partition that is in it, is not open any more; None for one that is.

    Asks for the partition to be added, which changes nothing where it is in, and is refused where the transaction has
    timed out or its id was taken over: so this works with any broker.
    """
    bodies = [
        (
            one,
            {
                "v3_and_below_transactional_id": one.transactional_id,
                "v3_and_below_producer_id": one.producer_id,
                "v3_and_below_producer_epoch": one.epoch,
                "v3_and_below_topics": [{"name": tp.topic, "partitions": [tp.partition]}],
            },
        )
        for one, tp in transactions
    ]
    codes = _ask(cluster, ApiKey.ADD_PARTITIONS_TO_TXN, bodies, _code_of_partition)
    return [
        _outcome(code, one, f"adding {tp}", lambda one=one, tp=tp: add_partitions(cluster, one, [tp]))  # type: ignore[misc]
        for (one, tp), code in zip(transactions, codes, strict=True)
    ]


def _code_of_partition(answer: Any) -> ErrorCode:
    (topic,) = answer.results_by_topic_v3_and_below
    (row,) = topic.results_by_partition
    code: ErrorCode = row.partition_error_code
    return code


def _outcome(code: ErrorCode | None, one: TransactionHandle, what: str, again: Callable[[], None]) -> Outcome:
    if code is ErrorCode.none:
        return None
    if code is not None and not code.retriable:
        return transaction_error(BrokerError(code, f"{what} of transactional id {one.transactional_id!r}"))
    try:
        again()
    except TransactionError as error:
        return error
    return None


def _ask(
    cluster: Cluster,
    api: ApiKey,
    bodies: Sequence[tuple[TransactionHandle, Mapping[str, Any]]],
    code_of: Callable[[Any], ErrorCode],
) -> list[ErrorCode | None]:
    """What the coordinators answer, once; None where they did not."""
    codes: list[ErrorCode | None] = [None] * len(bodies)
    if len(bodies) < 2:
        return codes
    by_node: dict[Node, list[int]] = defaultdict(list)
    for index, (one, _) in enumerate(bodies):
        by_node[cluster.coordinator(one.transactional_id, CoordinatorKind.TRANSACTION)].append(index)
    for node, indexes in by_node.items():
        with contextlib.suppress(PykafkaError), cluster.open_connection(node) as connection:
            for run in _runs(indexes):
                for index in run:
                    one, body = bodies[index]
                    connection.send(api, {"transactional_id": one.transactional_id, **body})
                for index in run:
                    codes[index] = code_of(connection.receive()[1])
    return codes


def _runs(indexes: list[int]) -> Iterable[list[int]]:
    return (indexes[start : start + _WINDOW] for start in range(0, len(indexes), _WINDOW))
