"""Settings that cannot work are refused with the key and what to set."""

from __future__ import annotations

import pytest

from broker.coordinator.group_config import GroupConfig
from broker.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group_min_session_timeout_ms": 0}, r"group\.min\.session\.timeout\.ms \(0\)"),
        ({"group_max_session_timeout_ms": 5_999}, r"group\.max\.session\.timeout\.ms \(5999\)"),
        ({"group_initial_rebalance_delay_ms": -1}, r"group\.initial\.rebalance\.delay\.ms is -1; .* at least 0"),
        ({"group_max_size": 0}, r"group\.max\.size is 0"),
        ({"offset_metadata_max_bytes": 9_000}, r"offset\.metadata\.max\.bytes is above 8191"),
        ({"offsets_retention_minutes": 0}, r"offsets\.retention\.minutes is 0"),
    ],
)
def test_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GroupConfig(**settings)


def test_defaults_are_kafkas() -> None:
    config = GroupConfig()
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (6_000, 1_800_000)
    assert config.group_initial_rebalance_delay_ms == 3_000
    assert (config.offset_metadata_max_bytes, config.offsets_retention_minutes) == (4_096, 10_080)
