"""DescribeProducers: the producer state of partitions, to find hanging transactions (KIP-664).

Every replica answers, as in Kafka, so that the states of a leader and its followers can be compared.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError
from broker.log.producer_state import ProducerEntry
from broker.protocol.permissions import DESCRIBE_PRODUCERS_TOPIC
from broker.protocol.topic_names import check_topic_name
from broker.protocol.topic_partition import TopicPartition


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _partition(context, client, TopicPartition(topic.name, index)) for index in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ]
    }


def _partition(context: ApiContext, client: Client, tp: TopicPartition) -> Fields:
    try:
        check_topic_name(tp.topic)
        context.check(client, DESCRIBE_PRODUCERS_TOPIC, tp.topic)
        producers = context.topics.replica(tp).log.producers
    except BrokerError as error:
        return {"partition_index": tp.partition, **outcome(error), "active_producers": ()}
    active = [_producer(entry) for entry in producers]
    return {"partition_index": tp.partition, **outcome(), "active_producers": active}


def _producer(entry: ProducerEntry) -> Fields:
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.batches[-1].timestamp if entry.batches else entry.last_seen_ms,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.transaction_first_offset,
    }
