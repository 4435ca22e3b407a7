"""The settings of share groups (KIP-932), with Kafka's names and defaults.

A group may have its own values, between `min` and `max`."""

from __future__ import annotations

import dataclasses
import re
from functools import partial

from broker.settings import UpdateMode, at_least, between, setting

_share = partial(setting, group="share groups")


_DURATION = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?(?<![PT])", re.IGNORECASE | re.ASCII
)


def reset_age_ms(reset: str) -> int | None:
    """How long ago a group begins by `share.auto.offset.reset`; None for latest and earliest, and what is wrong."""
    found = _DURATION.fullmatch(reset)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def check_reset(reset: str) -> str | None:
    is_known = reset in ("latest", "earliest") or reset_age_ms(reset) is not None
    return None if is_known else "must be latest, earliest, or by_duration: and a duration such as PT1H30M"


def check_dead_letter_topic(name: str) -> str | None:
    return "is for topics of brokers: do not begin it with __" if name.startswith("__") else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareSettings:
    """Share groups: their members, and the records that these hold."""

    group_share_max_size: int = _share(200, "Most members of one share group.", between(1, 1000))
    group_share_session_timeout_ms: int = _share(
        45000, "A member of a share group that is not heard of for this time is removed.", at_least(1)
    )
    group_share_min_session_timeout_ms: int = _share(45000, "Least share.session.timeout.ms of a group.", at_least(1))
    group_share_max_session_timeout_ms: int = _share(60000, "Most share.session.timeout.ms of a group.", at_least(1))
    group_share_heartbeat_interval_ms: int = _share(
        5000, "How often a member of a share group sends a heartbeat.", at_least(1)
    )
    group_share_min_heartbeat_interval_ms: int = _share(
        5000, "Least share.heartbeat.interval.ms of a group.", at_least(1)
    )
    group_share_max_heartbeat_interval_ms: int = _share(
        15000, "Most share.heartbeat.interval.ms of a group.", at_least(1)
    )
    group_share_record_lock_duration_ms: int = _share(
        30000,
        "A record that a member got and did not acknowledge in this time goes to another.",
        between(1000, 3600000),
    )
    group_share_min_record_lock_duration_ms: int = _share(
        15000, "Least share.record.lock.duration.ms of a group.", between(1000, 30000)
    )
    group_share_max_record_lock_duration_ms: int = _share(
        60000, "Most share.record.lock.duration.ms of a group.", between(30000, 3600000)
    )
    group_share_delivery_count_limit: int = _share(
        5, "A record that was delivered this often without success is delivered no more.", between(2, 10)
    )
    group_share_min_delivery_count_limit: int = _share(2, "Least share.delivery.count.limit of a group.", between(2, 5))
    group_share_max_delivery_count_limit: int = _share(
        10, "Most share.delivery.count.limit of a group.", between(5, 25)
    )
    group_share_partition_max_record_locks: int = _share(
        2000, "Most records of a partition that the members of a share group hold.", between(100, 10000)
    )
    group_share_min_partition_max_record_locks: int = _share(
        100, "Least share.partition.max.record.locks of a group.", between(100, 2000)
    )
    group_share_max_partition_max_record_locks: int = _share(
        4000, "Most share.partition.max.record.locks of a group.", between(2000, 10000)
    )
    group_share_max_share_sessions: int = _share(2000, "Most share sessions of this broker.", at_least(1))
    errors_deadletterqueue_topic_name_prefix: str = _share(
        "dlq.",
        "Dead letters of share groups are only written to topics whose names begin so; empty: to any (KIP-1191).",
        update=UpdateMode.CLUSTER_WIDE,
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = _share(
        False,
        "Create the dead-letter topic of a share group when it is needed.",
        update=UpdateMode.CLUSTER_WIDE,
    )
