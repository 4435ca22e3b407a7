"""The requests of a transaction, one function each (KIP-98). They keep no state between calls.

Called by transaction_manager.py for `Producer`, and by programs that drive a transaction from several processes. These
share a handle, which can be pickled and belongs to no connection. One process may begin and write

    handle = init_transactional_id(cluster, "sink-7", timeout_ms=900_000)
    add_partitions(cluster, handle, [tp])
    produce_batches(cluster, tp, batches, transaction=handle)

and another that gets the handle may end it with `end_transaction(cluster, handle, commit=True)`. The next
`init_transactional_id` of the same id aborts an open transaction and fences everyone with an older handle.

All functions retry retriable errors for `timeout_s` (`default.api.timeout.ms`), and raise TransactionError,
RequestTimedOut or ConnectionFailed. `check_open` and `end_transactions` do many transactions with one round trip per
coordinator: the Spark connector's driver ends the transactions of all tasks of a batch.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.client.broker_connection import SOFTWARE
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind, Node
from broker.client.committed_offsets import GroupMetadata, commit_codes
from broker.client.coordinator import Codes, Coordinator, topic_of
from broker.client.leader_requests import partition_rows
from broker.client.produce_request import ProducerIdentity
from broker.client.transaction_errors import TransactionError, transaction_error
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition, topic_rows

_LAST_EPOCH: Final = 32766
"""The next one is kept for an abort; InitProducerId gives a new producer id."""


def transaction_version(cluster: Cluster) -> int:
    """The feature `transaction.version` (KIP-890), which may be changed while the cluster runs; 0 where it has none."""
    answer = cluster.retrying(lambda: cluster.any_connection().request(ApiKey.API_VERSIONS, SOFTWARE))
    features = field(answer, "finalized_features", ())
    return next((int(feature.max_version_level) for feature in features if feature.name == "transaction.version"), 0)


class TransactionHandle(NamedTuple):
    """One epoch of a transactional id: all that is needed to write in its transaction and to end it."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)


def init_transactional_id(
    cluster: Cluster,
    transactional_id: str,
    *,
    timeout_ms: int = 60_000,
    previous: ProducerIdentity | None = None,
    timeout_s: float | None = None,
) -> TransactionHandle:
    """Get a new epoch of `transactional_id`, which fences all earlier ones and aborts their open transaction.

    `timeout_ms`: the coordinator aborts a transaction that is open longer; at most the broker's
    `transaction.max.timeout.ms`. `previous`: bump the epoch only if it is still this one, else raise ProducerFenced
    (KIP-360). The last epoch of a producer id is left out: Kafka 4.0.0 cannot abort its transaction after a time-out,
    nor from then on any other.
    """
    identity = previous or ProducerIdentity(-1, -1)
    body = {"transaction_timeout": timeout_ms, "producer_id": identity.producer_id, "producer_epoch": identity.epoch}
    coordinator = _coordinator(cluster, transactional_id)
    answer = _ask(coordinator, ApiKey.INIT_PRODUCER_ID, body, "asking for the producer id", timeout_s)
    handle = TransactionHandle(transactional_id, int(answer.producer_id), int(answer.producer_epoch))
    if handle.epoch != _LAST_EPOCH:
        return handle
    previous = previous and handle.identity
    return init_transactional_id(
        cluster, transactional_id, timeout_ms=timeout_ms, previous=previous, timeout_s=timeout_s
    )


def add_partitions(
    cluster: Cluster,
    transaction: TransactionHandle,
    partitions: Iterable[TopicPartition],
    *,
    timeout_s: float | None = None,
) -> None:
    """Add `partitions` to the transaction before anything is written to them. The first begins the transaction."""

    def codes(answer: Any) -> list[tuple[ErrorCode, str, str]]:
        rows = [
            (row.partition_error_code, f"adding {tp} to the transaction", topic_of(row.partition_error_code, tp))
            for tp, row in _added(answer).items()
        ]
        # When one partition is refused, the others are not attempted: report the cause, not its consequence.
        return sorted(rows, key=lambda row: row[0] is ErrorCode.operation_not_attempted)

    body = _partitions_body(transaction, sorted(partitions))
    _ask(_coordinator(cluster, transaction.transactional_id), ApiKey.ADD_PARTITIONS_TO_TXN, body, codes, timeout_s)


def add_offsets(
    cluster: Cluster, transaction: TransactionHandle, group: str, *, timeout_s: float | None = None
) -> None:
    """Add the offsets of `group` to the transaction, before `commit_offsets`."""
    coordinator = _coordinator(cluster, transaction.transactional_id)
    body = {**_producer(transaction), "group_id": group}
    what = f"adding the offsets of group {group!r} to the transaction"
    _ask(coordinator, ApiKey.ADD_OFFSETS_TO_TXN, body, what, timeout_s)


def commit_offsets(
    cluster: Cluster,
    transaction: TransactionHandle,
    offsets: Mapping[TopicPartition, int],
    group: GroupMetadata,
    *,
    metadata: str = "",
    timeout_s: float | None = None,
) -> None:
    """Commit `offsets` (each the next offset to read) with the transaction, each with the text `metadata`."""
    rows = (
        (tp, {"partition_index": tp.partition, "committed_offset": offset, "committed_metadata": metadata})
        for tp, offset in offsets.items()
    )
    body = {
        **_producer(transaction),
        **group.member._asdict(),
        "transactional_id": transaction.transactional_id,
        "topics": topic_rows(rows),
    }
    _ask(Coordinator(cluster, group.group_id), ApiKey.TXN_OFFSET_COMMIT, body, commit_codes, timeout_s)


def end_transaction(
    cluster: Cluster, transaction: TransactionHandle, *, commit: bool, timeout_s: float | None = None
) -> None:
    """Commit or abort. To repeat the same call succeeds; to commit what was aborted, or the reverse, is an error."""
    coordinator = _coordinator(cluster, transaction.transactional_id)
    body = {**_producer(transaction), "committed": commit}
    _ask(coordinator, ApiKey.END_TXN, body, f"{'committing' if commit else 'aborting'} the transaction", timeout_s)


def _coordinator(cluster: Cluster, transactional_id: str) -> Coordinator:
    return Coordinator(cluster, transactional_id, CoordinatorKind.TRANSACTION)


def _producer(transaction: TransactionHandle) -> dict[str, Any]:
    return {"producer_id": transaction.producer_id, "producer_epoch": transaction.epoch}


def _partitions_body(transaction: TransactionHandle, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": transaction.transactional_id,
        "v3_and_below_producer_id": transaction.producer_id,
        "v3_and_below_producer_epoch": transaction.epoch,
        "v3_and_below_topics": topic_rows((tp, tp.partition) for tp in partitions),
    }


def _added(answer: Any) -> dict[TopicPartition, Any]:
    return partition_rows(answer.results_by_topic_v3_and_below, partitions="results_by_partition")


def _ask(
    coordinator: Coordinator, api: ApiKey, body: Mapping[str, Any], codes: Codes | str, timeout_s: float | None
) -> Any:
    """`Coordinator.ask`, with errors as TransactionError."""
    try:
        return coordinator.ask(api, body, codes, timeout_s=timeout_s)
    except BrokerError as error:
        if error.retriable:
            raise
        raise transaction_error(error, api, aborting=body.get("committed") is False) from error


_WINDOW: Final = 64
"""Requests in flight to one coordinator: some kilobytes, which fit into the socket's buffer."""

Outcome = TransactionError | None


def end_transactions(cluster: Cluster, transactions: Sequence[TransactionHandle], *, commit: bool) -> list[Outcome]:
    """Commit or abort each. Returns the error of each, None for success. Raises errors that are not a transaction's."""
    bodies = [(handle, {**_producer(handle), "committed": commit}) for handle in transactions]

    def again(index: int) -> None:
        end_transaction(cluster, transactions[index], commit=commit)

    return _ask_all(cluster, ApiKey.END_TXN, bodies, lambda answer: answer.error_code, again)


def check_open(cluster: Cluster, transactions: Sequence[tuple[TransactionHandle, TopicPartition]]) -> list[Outcome]:
    """Whether each transaction, given with one of its partitions, is still open: None, or why it is not.

    It adds the partition again. That changes nothing in an open transaction, and is refused after a time-out or when
    the transactional id has a newer epoch, by any version of a broker.
    """
    bodies = [(handle, _partitions_body(handle, [tp])) for handle, tp in transactions]

    def code_of(answer: Any) -> Any:
        (row,) = _added(answer).values()
        return row.partition_error_code

    def again(index: int) -> None:
        handle, tp = transactions[index]
        add_partitions(cluster, handle, [tp])

    return _ask_all(cluster, ApiKey.ADD_PARTITIONS_TO_TXN, bodies, code_of, again)


def _ask_all(
    cluster: Cluster,
    api: ApiKey,
    bodies: Sequence[tuple[TransactionHandle, Mapping[str, Any]]],
    code_of: Callable[[Any], Any],
    again: Callable[[int], None],
) -> list[Outcome]:
    """Send all requests together, if there are several. What got an error, or no answer, is asked once more, alone and
    with all retries, by `again(index)`."""
    done: set[int] = set()
    by_node: dict[Node, list[int]] = defaultdict(list)
    for index, (handle, _) in enumerate(bodies if len(bodies) > 1 else ()):
        by_node[cluster.coordinator(handle.transactional_id, CoordinatorKind.TRANSACTION)].append(index)
    for node, indexes in by_node.items():
        with contextlib.suppress(PykafkaError), cluster.open_connection(node) as connection:
            for start in range(0, len(indexes), _WINDOW):
                run = indexes[start : start + _WINDOW]
                for index in run:
                    handle, body = bodies[index]
                    connection.send(api, {"transactional_id": handle.transactional_id, **body})
                done.update(index for index in run if code_of(connection.receive()[1]) is ErrorCode.none)
    outcomes: list[Outcome] = [None] * len(bodies)
    for index in sorted(set(range(len(bodies))) - done):
        try:
            again(index)
        except TransactionError as error:
            outcomes[index] = error
    return outcomes
