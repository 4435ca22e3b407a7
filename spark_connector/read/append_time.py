"""Whether the brokers set the timestamps of records, so that they grow from record to record.

A topic's setting `message.timestamp.type` says who sets those of new records, and each record batch says who has set
its own. Both are asked, because the setting may have been changed: then earlier batches have their producers' times.
Called by offset_reader.py, for a batch query with a filter on timestamps.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.client.fetcher import fetch_together
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header
from spark_connector.offset_store.base import Offsets

logger = logging.getLogger("pykafka.spark")

_TYPE = "message.timestamp.type"
_MAGIC = 2
_PARTITION_BYTES = (1 << 14, 1 << 18, 1 << 22)
"""Bytes to ask for: most batches are small, and one that does not fit is asked for again."""


def stamped_by_brokers(cluster: Cluster, offsets: Offsets) -> Mapping[TopicPartition, int]:
    """Those of the `offsets` from which on brokers have set the timestamps.

    Partitions are left out, and a debug message says so, when that cannot be found out. Without the right to describe
    a topic's configuration nothing is known of it.
    """
    topics = _append_time_topics(cluster, {tp.topic for tp in offsets})
    left = {tp: offset for tp, offset in offsets.items() if tp.topic in topics}
    stamped: dict[TopicPartition, int] = {}
    for size in _PARTITION_BYTES:
        if left:
            found = fetch_together(cluster, left, max_bytes=_PARTITION_BYTES[-1], partition_bytes=size)
            headers = {tp: parse_header(fetched.records) for tp, fetched in found.items()}
            stamped |= {tp: left[tp] for tp, one in headers.items() if one.magic == _MAGIC and one.is_log_append_time}
            left = {tp: offset for tp, offset in left.items() if tp not in found}
    return stamped


def _append_time_topics(cluster: Cluster, topics: Collection[str]) -> set[str]:
    admin, found = Admin(cluster), set()
    for topic in sorted(topics):
        try:
            entry = admin.describe_configs(ResourceType.TOPIC, topic, [_TYPE]).get(_TYPE)
        except PykafkaError as error:
            logger.debug("Whether timestamps grow in topic %s is not known: %s", topic, error)
            continue
        if entry is not None and entry.value == "LogAppendTime":
            found.add(topic)
    return found
