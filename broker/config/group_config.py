"""The settings of one group, in Kafka's key names, each declared once.

Those that a group does not set come from the broker: `consumer.session.timeout.ms` from
`group.consumer.session.timeout.ms`, which also has the bounds, `group.consumer.min.session.timeout.ms` and
`group.consumer.max.session.timeout.ms`. Idea: Kafka's `GroupConfig`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from broker.config.broker_config import BrokerConfig
from broker.config.share_settings import check_dead_letter_topic, check_reset
from broker.errors import ConfigError
from broker.settings import at_least, one_of, parse_properties, setting, settings_of

_consumer = functools.partial(setting, group="consumer")
_share = functools.partial(setting, group="share")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """Every key of groups; a field's name is the key with `_` for `.`. Times in ms."""

    consumer_session_timeout_ms: int = _consumer(
        45000, "A member of a consumer group that is not heard from for this long is removed.", at_least(1)
    )
    consumer_heartbeat_interval_ms: int = _consumer(
        5000, "How often members of a stable consumer group send heartbeats.", at_least(1)
    )

    share_session_timeout_ms: int = _share(
        45000, "A member of the share group that is not heard of for this time is removed.", at_least(1)
    )
    share_heartbeat_interval_ms: int = _share(
        5000, "How often a member of the share group sends a heartbeat.", at_least(1)
    )
    share_record_lock_duration_ms: int = _share(
        30000, "A record that a member got and did not acknowledge in this time goes to another.", at_least(1000)
    )
    share_delivery_count_limit: int = _share(
        5, "A record that was delivered this often without success is delivered no more.", at_least(2)
    )
    share_partition_max_record_locks: int = _share(
        2000, "Most records of a partition that the members of the share group hold.", at_least(100)
    )
    share_auto_offset_reset: str = _share(
        "latest",
        "Where the share group begins in a partition: latest, earliest, or by_duration:PT1H, so long ago (ISO 8601).",
        check_reset,
    )
    share_isolation_level: str = _share(
        "read_uncommitted",
        "read_committed leaves out the records of transactions that were aborted.",
        one_of(("read_committed", "read_uncommitted")),
    )
    share_renew_acknowledge_enable: bool = _share(True, "Whether a member may renew its locks.")
    errors_deadletterqueue_topic_name: str = _share(
        "",
        "Topic that gets a dead letter of each record that a member rejected, or that was delivered too often; empty: "
        "none (KIP-1191). The topic needs errors.deadletterqueue.group.enable=true.",
        check_dead_letter_topic,
    )
    errors_deadletterqueue_copy_record_enable: bool = _share(
        False, "Whether dead letters have the record's key, value and headers, too, and not only where it is."
    )

    @classmethod
    def of(cls, broker: BrokerConfig, properties: Mapping[str, str]) -> GroupConfig:
        """`properties` of a group over the broker's settings. Raises ConfigError."""
        config = parse_properties(cls, properties, base=_defaults(broker))
        for name in properties:
            _check_bounds(broker, name, getattr(config, GROUP_KEYS[name].attribute))
            kind = name.partition(".")[0]
            if kind == "errors":
                continue
            timeout = getattr(config, f"{kind}_session_timeout_ms")
            if getattr(config, f"{kind}_heartbeat_interval_ms") >= timeout:
                raise ConfigError(f"{kind}.session.timeout.ms={timeout} must be above {kind}.heartbeat.interval.ms")
        return config


GROUP_KEYS = settings_of(GroupConfig)


def broker_key(name: str) -> str | None:
    """The broker's setting that is the default of a group's."""
    found = f"group.{name}"
    return found if found in _BROKER_KEYS else None


_BROKER_KEYS = settings_of(BrokerConfig)


def _defaults(broker: BrokerConfig) -> GroupConfig:
    keys = {one.attribute: broker_key(name) for name, one in GROUP_KEYS.items()}
    return GroupConfig(**{key: getattr(broker, _BROKER_KEYS[name].attribute) for key, name in keys.items() if name})


def _check_bounds(broker: BrokerConfig, name: str, value: int) -> None:
    kind, _, rest = name.partition(".")
    for bound, is_beyond in (("min", int.__lt__), ("max", int.__gt__)):
        key = _BROKER_KEYS.get(f"group.{kind}.{bound}.{rest}")
        if key is not None and is_beyond(value, limit := getattr(broker, key.attribute)):
            word = "below" if bound == "min" else "above"
            raise ConfigError(f"{name}={value} is {word} the broker's {key.name}={limit}")
