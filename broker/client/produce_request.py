"""The Produce and InitProducerId requests and responses.

A Produce request has at most one batch per partition: brokers accept no more since version 3. With a producer id
from InitProducerId the broker checks the sequence numbers of each partition's batches (KIP-98): a batch that is sent
twice is written once, and none is written before its predecessor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.client.cluster import Cluster
from broker.errors import BrokerError, ErrorCode, raise_for
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.topic_partition import TopicPartition

__all__ = ["MAX_SEQUENCE", "Produced", "ProducerIdentity", "init_producer_id", "produce_request", "produced"]

_HINTS: Final = {
    ErrorCode.message_too_large: "lower batch.size, or raise the topic's max.message.bytes",
    ErrorCode.invalid_record: "the broker refused the batch and gave no reason; its log may",
}
"""For what brokers leave unsaid."""

_SHOWN_RECORD_ERRORS: Final = 3


class Produced(NamedTuple):
    """What the broker said about one partition's batch; times in ms, -1 for none."""

    error: ErrorCode
    base_offset: int
    log_append_time: int
    message: str

    def failure(self, tp: TopicPartition) -> BrokerError | None:
        """The error as one to raise; None when there was none."""
        if self.error is ErrorCode.none:
            return None
        said = self.message or _HINTS.get(self.error, "")
        return BrokerError(self.error, f"producing to {tp}: {said}" if said else f"producing to {tp}")


def produce_request(
    batches: Mapping[TopicPartition, bytes], *, acks: int, timeout_ms: int, transactional_id: str | None = None
) -> dict[str, Any]:
    """The body of a request; the broker waits up to `timeout_ms` for its replicas."""
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tp, records in batches.items():
        topics[tp.topic].append({"index": tp.partition, "records": records})
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [{"name": name, "partition_data": rows} for name, rows in topics.items()],
    }


def produced(answer: Any) -> dict[TopicPartition, Produced]:
    """A response by partition."""
    results = {}
    for topic in answer.responses:
        for row in topic.partition_responses:
            tp = TopicPartition(str(topic.name), int(row.index))
            results[tp] = Produced(row.error_code, int(row.base_offset), to_ms(row.log_append_time), _said(row))
    return results


def _said(row: Any) -> str:
    """What the broker says of the batch, then of its first bad records (KIP-467). A record is told by its place in the
    batch, for it has no offset. The text for all may hold those of the records already."""
    whole = field(row, "error_message") or ""
    records = field(row, "record_errors") or ()
    said = [whole] if whole else []
    for record in records[:_SHOWN_RECORD_ERRORS]:
        text = record.batch_index_error_message
        if not text or text not in whole:
            said.append(f"record {record.batch_index} of the batch: {text or 'refused'}")
    if len(records) > _SHOWN_RECORD_ERRORS:
        said.append(f"{len(records)} records in all")
    return "; ".join(said)


MAX_SEQUENCE = 0x7FFFFFFF
"""Sequence numbers wrap to 0 after this one."""


class ProducerIdentity(NamedTuple):
    """What the broker knows an idempotent producer by."""

    producer_id: int
    epoch: int


def init_producer_id(cluster: Cluster) -> ProducerIdentity:
    """A new identity, from any broker; one attempt. Raises BrokerError, and what connections raise."""
    body = {"transactional_id": None, "transaction_timeout": -1, "producer_id": -1, "producer_epoch": -1}
    answer = cluster.any_connection().request(ApiKey.INIT_PRODUCER_ID, body)
    raise_for(answer.error_code, "asking for a producer id (enable.idempotence=true)")
    return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))
