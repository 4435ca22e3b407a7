"""Transactions and the topic that keeps them."""

from __future__ import annotations

import dataclasses

from broker.settings import at_least, setting

__all__ = ["TransactionSettings"]

TRANSACTIONS = "transactions"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """A part of `BrokerConfig`."""

    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        900000,
        "Longest transaction a producer may ask for (its transaction.timeout.ms).",
        group=TRANSACTIONS,
        check=at_least(1),
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        604800000,
        "A transactional id that is not used for this long is forgotten.",
        group=TRANSACTIONS,
        check=at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "How often transactions that took too long are looked for and aborted.",
        group=TRANSACTIONS,
        check=at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "How often transactional ids that expired are looked for.",
        group=TRANSACTIONS,
        check=at_least(1),
    )
    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        True,
        "Refuse records of a transaction that their partition was not added to.",
        group=TRANSACTIONS,
    )
    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state; fixed once it exists.",
        group=TRANSACTIONS,
        check=at_least(1),
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        1,
        "Taken and not used: __transaction_state has one replica.",
        group=TRANSACTIONS,
        check=at_least(1),
        type="short",
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        104857600,
        "Segment size of __transaction_state.",
        group=TRANSACTIONS,
        check=at_least(1),
    )
