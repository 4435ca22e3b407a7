"""Consumer groups and the topic that keeps them."""

from __future__ import annotations

import dataclasses

from broker.settings import at_least, between, setting

__all__ = ["GroupSettings"]

GROUPS = "groups"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """A part of `BrokerConfig`."""

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long a new group waits for more members.",
        group=GROUPS,
        check=at_least(0),
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        6000,
        "Shortest session time-out a member may ask for.",
        group=GROUPS,
        check=at_least(1),
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        1800000,
        "Longest session time-out a member may ask for.",
        group=GROUPS,
        check=at_least(1),
    )
    group_max_size: int = setting(
        "group.max.size", 2147483647, "Most members of one group.", group=GROUPS, check=at_least(1)
    )
    # A stored string has at most 32767 bytes, and a character up to four.
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", 4096, "Longest text stored with an offset.", group=GROUPS, check=between(0, 8191)
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        10080,
        "Offsets of an empty group are kept this long.",
        group=GROUPS,
        check=at_least(1),
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        600000,
        "How often offsets that are too old are looked for.",
        group=GROUPS,
        check=at_least(1),
        type="long",
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets; fixed once it exists.",
        group=GROUPS,
        check=at_least(1),
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        1,
        "Taken and not used: __consumer_offsets has one replica.",
        group=GROUPS,
        check=at_least(1),
        type="short",
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", 104857600, "Segment size of __consumer_offsets.", group=GROUPS, check=at_least(1)
    )
