"""The settings of the group coordinator, with Kafka's names (`.` as `_`) and Kafka's defaults.

Built by the server from its configuration, read by the state machine and the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import ConfigError

__all__ = ["GroupConfig"]

# A record's string has an i16 length, and a character has up to four bytes of UTF-8.
_MAX_METADATA = 8191


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What an operator can set about consumer groups; raises ConfigError for what cannot work."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    # How long the first rebalance of an empty group waits for more members.
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    # In characters, as Kafka counts.
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000

    def __post_init__(self) -> None:
        if not 0 < self.group_min_session_timeout_ms <= self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) must be positive and not above "
                f"group.max.session.timeout.ms ({self.group_max_session_timeout_ms})"
            )
        for key, lowest in _LOWEST.items():
            if getattr(self, key) < lowest:
                raise ConfigError(f"{key.replace('_', '.')} is {getattr(self, key)}; it must be at least {lowest}")
        if self.offset_metadata_max_bytes > _MAX_METADATA:
            raise ConfigError(f"offset.metadata.max.bytes is above {_MAX_METADATA}, which no stored record can hold")


_LOWEST = {
    "group_initial_rebalance_delay_ms": 0,
    "group_max_size": 1,
    "offset_metadata_max_bytes": 0,
    "offsets_retention_minutes": 1,
    "offsets_retention_check_interval_ms": 1,
}
