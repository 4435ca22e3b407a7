"""Whether records of a transaction may be written: their partition must have been added to it (KIP-890).

Called by the Produce handler. Without this, records that come late, after their transaction has ended, would
open one that nobody ever ends and that holds readers up for good.
"""

from __future__ import annotations

from broker.api.context import ApiContext
from broker.api.transaction_requests import code_for_version
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import BatchHeader

__all__ = ["check_transaction"]

# Older clients do not try these again; of this one every client knows that it helps.
_TRY_AGAIN = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}


def check_transaction(
    context: ApiContext,
    version: int,
    transactional_id: str | None,
    tp: TopicPartition,
    header: BatchHeader,
) -> None:
    """Raise BrokerError unless the producer of a transaction's batch has one open that has `tp`."""
    if transactional_id is None:
        raise BrokerError(
            ErrorCode.transactional_id_authorization_failed, "records of a transaction need a transactional id"
        )
    if not context.config.transaction_partition_verification_enable:
        return
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    code = context.transactions.verify(transactional_id, producer, tp)
    if code is ErrorCode.none:
        return
    shown = ErrorCode.not_enough_replicas if code in _TRY_AGAIN else code_for_version(ApiKey.PRODUCE, version, code)
    raise BrokerError(shown, _WHY.get(code, f"transaction {transactional_id}: {code.name}"))


_WHY = {
    ErrorCode.transaction_abortable: "the partition was not added to the transaction, or that has ended",
    ErrorCode.producer_fenced: "another producer with the same transactional id has taken over",
    ErrorCode.invalid_producer_id_mapping: "the transactional id is not known, or has another producer id",
}
