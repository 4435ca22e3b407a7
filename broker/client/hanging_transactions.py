"""Finds transactions that hang: a partition waits for their end, but no coordinator knows them (KIP-664).

Used by `pykafka transactions find-hanging` and `pykafka ui`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from broker.client.admin import Admin
from broker.client.admin_types import ProducerState
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition


class OpenInPartition(NamedTuple):
    tp: TopicPartition
    producer: ProducerState


def hanging_transactions(
    admin: Admin, partitions: Iterable[TopicPartition], older_than_ms: int
) -> list[OpenInPartition]:
    """Those that have written nothing for so long. Asks the leader of each partition, and coordinators about suspects.

    Raises UnknownTopic and BrokerError.
    """
    oldest_ms = time.time_ns() // 1_000_000 - older_than_ms
    suspects = [
        OpenInPartition(tp, producer)
        for tp, known in admin.describe_producers(partitions).items()
        for producer in known
        if producer.transaction_start_offset >= 0 and producer.last_timestamp_ms <= oldest_ms
    ]
    return [suspect for suspect in suspects if coordinator_of(admin, suspect) is None]


def coordinator_of(admin: Admin, suspect: OpenInPartition) -> str | None:
    """The transactional id whose coordinator still has this partition in the producer's open transaction."""
    for listing in admin.list_transactions(producer_ids=[suspect.producer.producer_id]):
        try:
            described = admin.describe_transaction(listing.transactional_id)
        except BrokerError as error:
            if error.code is not ErrorCode.transactional_id_not_found:
                raise
            continue
        if suspect.tp in described.partitions:
            return listing.transactional_id
    return None
