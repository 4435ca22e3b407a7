"""The shape of the topics that the broker makes for itself: __consumer_offsets and __transaction_state. Pure.

Used by topics.py when one of them is first needed. Both keep the last record of each key, so they are compacted.
Each of their partitions has one replica, whatever `offsets.topic.replication.factor` and
`transaction.state.log.replication.factor` say: the files of most Kafka clusters say 3 (BrokerConfig.load warns).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC

__all__ = ["InternalTopic", "internal_topic"]


class InternalTopic(NamedTuple):
    """What one is created with."""

    partitions: int
    config: Mapping[str, str]


def internal_topic(name: str, config: BrokerConfig) -> InternalTopic | None:
    """How the broker's settings want an internal topic to be; None for the name of any other."""
    if name == GROUP_OFFSETS_TOPIC:
        return InternalTopic(
            config.offsets_topic_num_partitions,
            _compacted(config.offsets_topic_segment_bytes),
        )
    if name == TRANSACTION_STATE_TOPIC:
        return InternalTopic(
            config.transaction_state_log_num_partitions,
            _compacted(config.transaction_state_log_segment_bytes),
        )
    return None


def _compacted(segment_bytes: int) -> Mapping[str, str]:
    return {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
