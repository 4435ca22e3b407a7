"""The settings of one group, in Kafka's key names, each declared once.

Those with bounds come from the broker where a group does not set them: `consumer.session.timeout.ms` from
`group.consumer.session.timeout.ms`, and lies between `group.consumer.min.session.timeout.ms` and
`group.consumer.max.session.timeout.ms`. `with_defaults_of` declares these three. Idea: Kafka's `GroupConfig`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from broker.errors import ConfigError
from broker.settings import Check, at_least, between, one_of, parse_properties, setting, settings_of

_DURATION = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?(?<![PT])", re.IGNORECASE | re.ASCII
)
_MOST: Final = 2**31 - 1
T = TypeVar("T")


def reset_age_ms(reset: str) -> int | None:
    """How long ago a group begins by `share.auto.offset.reset`; None for latest and earliest, and what is wrong."""
    found = _DURATION.fullmatch(reset)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _check_reset(reset: str) -> str | None:
    is_known = reset in ("latest", "earliest") or reset_age_ms(reset) is not None
    return None if is_known else "must be latest, earliest, or by_duration: and a duration such as PT1H30M"


def _check_dead_letter_topic(name: str) -> str | None:
    return "is for topics of brokers: do not begin it with __" if name.startswith("__") else None


class _Bounds(NamedTuple):
    """The broker's defaults of the least and the largest value, and the checks of its default and of these two."""

    low: int
    high: int
    checks: tuple[Check, Check, Check]


def _bounded(
    default: int, low: int, high: int, doc: str, limits: tuple[int, int, int, int] = (1, _MOST, _MOST, _MOST)
) -> Any:
    """A setting whose default and bounds are settings of the broker.

    `limits`: the least value that any of them may have, and the most that the default, the lower bound (at the same
    time the least upper one) and the upper bound may have.
    """
    least, most, middle, highest = limits
    checks = _range(least, most), _range(least, middle), _range(1 if middle == _MOST else middle, highest)
    return setting(default, doc, at_least(least), bounds=_Bounds(low, high, checks))


def _range(low: int, high: int) -> Check:
    return at_least(low) if high == _MOST else between(low, high)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """Every key of groups; a field's name is the key with `_` for `.`. Times in ms."""

    consumer_session_timeout_ms: int = _bounded(
        45000, 45000, 60000, "A member of a consumer group (KIP-848) that is not heard from for this long is removed."
    )
    consumer_heartbeat_interval_ms: int = _bounded(
        5000, 5000, 15000, "How often members of a stable consumer group send heartbeats; each second in others."
    )
    share_session_timeout_ms: int = _bounded(
        45000, 45000, 60000, "A member of a share group that is not heard of for this time is removed."
    )
    share_heartbeat_interval_ms: int = _bounded(
        5000, 5000, 15000, "How often a member of a share group sends a heartbeat."
    )
    share_record_lock_duration_ms: int = _bounded(
        *(30000, 15000, 60000, "A record that a member got and did not acknowledge in this time goes to another."),
        limits=(1000, 3600000, 30000, 3600000),
    )
    share_delivery_count_limit: int = _bounded(
        *(5, 2, 10, "A record that was delivered this often without success is delivered no more."),
        limits=(2, 10, 5, 25),
    )
    share_partition_max_record_locks: int = _bounded(
        *(2000, 100, 4000, "Most records of a partition that the members of a share group hold."),
        limits=(100, 10000, 2000, 10000),
    )
    share_auto_offset_reset: str = setting(
        "latest",
        "Where the share group begins in a partition: latest, earliest, or by_duration:PT1H, so long ago (ISO 8601).",
        _check_reset,
    )
    share_isolation_level: str = setting(
        "read_uncommitted",
        "read_committed leaves out the records of transactions that were aborted.",
        one_of(("read_committed", "read_uncommitted")),
    )
    share_renew_acknowledge_enable: bool = setting(True, "Whether a member may renew its locks.")
    errors_deadletterqueue_topic_name: str = setting(
        "",
        "Topic that gets a dead letter of each record that a member rejected, or that was delivered too often; empty: "
        "none (KIP-1191). The topic needs errors.deadletterqueue.group.enable=true.",
        _check_dead_letter_topic,
    )
    errors_deadletterqueue_copy_record_enable: bool = setting(
        False, "Whether dead letters have the record's key, value and headers, too, and not only where it is."
    )

    @classmethod
    def of(cls, broker: object, properties: Mapping[str, str]) -> GroupConfig:
        """`properties` of a group over the settings of `broker`, a BrokerConfig. Raises ConfigError."""
        defaults = cls(**{attribute: getattr(broker, f"group_{attribute}") for attribute in _BOUNDS})
        config = parse_properties(cls, properties, base=defaults)
        for name in properties:
            kind, _, rest = name.partition(".")
            attribute = GROUP_KEYS[name].attribute
            value = getattr(config, attribute)
            for bound, is_beyond in (("min", int.__lt__), ("max", int.__gt__)) if attribute in _BOUNDS else ():
                if is_beyond(value, limit := getattr(broker, _bound_name(attribute, bound))):
                    word = "below" if bound == "min" else "above"
                    raise ConfigError(f"{name}={value} is {word} the broker's group.{kind}.{bound}.{rest}={limit}")
            timeout = getattr(config, f"{kind}_session_timeout_ms", None)
            if timeout is not None and getattr(config, f"{kind}_heartbeat_interval_ms") >= timeout:
                raise ConfigError(f"{kind}.session.timeout.ms={timeout} must be above {kind}.heartbeat.interval.ms")
        return config


GROUP_KEYS = settings_of(GroupConfig)
_BOUNDS: Final[Mapping[str, _Bounds]] = {
    one.name: one.metadata["bounds"] for one in dataclasses.fields(GroupConfig) if "bounds" in one.metadata
}
BROKER_KEYS: Final = {name: (f"group.{name}",) for name, key in GROUP_KEYS.items() if key.attribute in _BOUNDS}
"""Setting of a group → the broker's setting that is its default."""


def with_defaults_of(kind: str, group: str) -> Callable[[type[T]], type[T]]:
    """Declares in a class of the broker's settings the defaults and bounds of groups of this kind: consumer, share."""

    def declare(cls: type[T]) -> type[T]:
        for name, key in GROUP_KEYS.items():
            bounds = _BOUNDS.get(key.attribute)
            if bounds is None or not name.startswith(kind):
                continue
            for attribute, default, doc, check in (
                (f"group_{key.attribute}", key.default, key.doc, bounds.checks[0]),
                (_bound_name(key.attribute, "min"), bounds.low, f"Least {name} of a group.", bounds.checks[1]),
                (_bound_name(key.attribute, "max"), bounds.high, f"Largest {name} of a group.", bounds.checks[2]),
            ):
                cls.__annotations__[attribute] = int
                setattr(cls, attribute, setting(default, doc, check, group=group))
        return cls

    return declare


def _bound_name(attribute: str, bound: str) -> str:
    kind, _, rest = attribute.partition("_")
    return f"group_{kind}_{bound}_{rest}"
