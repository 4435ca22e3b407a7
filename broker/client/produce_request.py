"""The Produce and InitProducerId requests and responses.

A Produce request has at most one batch per partition: brokers accept no more since version 3. With a producer id
from InitProducerId the broker checks the sequence numbers of each partition's batches (KIP-98): a batch that is sent
twice is written once, and none is written before its predecessor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.denials import DENIED, check, refusal
from broker.client.leader_requests import partition_rows
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.topic_partition import TopicPartition, topic_rows

_HINTS: Final = {
    ErrorCode.message_too_large: "lower batch.size, or raise the topic's max.message.bytes",
    ErrorCode.invalid_record: "the broker refused the batch and gave no reason; its log may",
}
"""Shown when the broker sends no message."""

_SHOWN_RECORD_ERRORS: Final = 3


class PartitionResponse(NamedTuple):
    """The broker's response to one partition's batch. `log_append_time` in ms, -1 if unset."""

    error: ErrorCode
    base_offset: int
    log_append_time: int
    message: str

    def failure(self, tp: TopicPartition, settings: ClientSettings, transactional_id: str | None) -> BrokerError | None:
        """The error as an exception; None when the batch was written."""
        if self.error is ErrorCode.none:
            return None
        if self.error in DENIED:
            about_topic = self.error is ErrorCode.topic_authorization_failed
            name = tp.topic if about_topic else transactional_id or ""
            return refusal(settings, ApiKey.PRODUCE, self.error, f"producing to {tp}", name)
        message = self.message or _HINTS.get(self.error, "")
        return BrokerError(self.error, f"producing to {tp}: {message}" if message else f"producing to {tp}")


def produce_request(
    batches: Mapping[TopicPartition, bytes], *, acks: int, timeout_ms: int, transactional_id: str | None = None
) -> dict[str, Any]:
    """The body of a request. The broker waits up to `timeout_ms` for its replicas."""
    rows = ((tp, {"index": tp.partition, "records": records}) for tp, records in batches.items())
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": topic_rows(rows, partitions="partition_data"),
    }


def read_produce_response(answer: Any) -> dict[TopicPartition, PartitionResponse]:
    rows = partition_rows(answer.responses, partitions="partition_responses", index="index")
    return {
        tp: PartitionResponse(row.error_code, int(row.base_offset), to_ms(row.log_append_time), _message(row))
        for tp, row in rows.items()
    }


def _message(row: Any) -> str:
    """The broker's message about the batch, then about its first bad records (KIP-467). Records that were not written
    have no offset, so they are named by their index in the batch. The batch's message may contain theirs already."""
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
"""After this sequence number comes 0."""


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


class Stamp(NamedTuple):
    """The producer fields of a batch; all -1 when batches have no sequence numbers."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


def init_producer_id(cluster: Cluster) -> ProducerIdentity:
    """Ask any broker for a new producer id, once. Raises BrokerError and the errors of BrokerConnection."""
    body = {"transactional_id": None, "transaction_timeout": -1, "producer_id": -1, "producer_epoch": -1}
    connection = cluster.any_connection()
    try:
        answer = connection.request(ApiKey.INIT_PRODUCER_ID, body)
    except UnsupportedVersion as error:
        raise UnsupportedVersion(f"{error}: set enable.idempotence=false; repeated requests may write twice") from None
    what = "asking for a producer id (enable.idempotence=true)"
    check(cluster.settings, ApiKey.INIT_PRODUCER_ID, answer.error_code, what)
    return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))
