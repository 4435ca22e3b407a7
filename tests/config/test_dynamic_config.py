"""The layers of settings over the broker's file, without a broker."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.errors import ConfigError


def test_subscribers_hear_of_changes_and_of_nothing_else() -> None:
    dynamic = DynamicConfig(BrokerConfig(message_max_bytes=1))
    heard: list[int] = []
    dynamic.subscribe(lambda config: heard.append(config.message_max_bytes))
    dynamic.apply({"message.max.bytes": "2"}, {})
    dynamic.apply({"message.max.bytes": "3"}, {"message.max.bytes": "2"})
    dynamic.apply({}, {"message.max.bytes": "3"})
    dynamic.apply({}, {})
    assert heard == [1, 2, 3, 1]
    assert dynamic.current == dynamic.static


def test_what_cannot_be_used_is_left_out_and_the_rest_holds(caplog: pytest.LogCaptureFixture) -> None:
    dynamic = DynamicConfig(BrokerConfig())
    dynamic.apply({"message.max.bytes": "x", "log.segment.bytes": "99"}, {"broker.id": "3", "log.retention.ms": "5"})
    assert (dynamic.cluster_wide, dynamic.own) == ({"log.segment.bytes": "99"}, {"log.retention.ms": "5"})
    assert (dynamic.current.log_segment_bytes, dynamic.current.log_retention_ms) == (99, 5)
    assert "message.max.bytes=x" in caplog.text
    assert "cannot update broker.id dynamically" in caplog.text


def test_a_candidate_changes_nothing() -> None:
    dynamic = DynamicConfig(BrokerConfig())
    assert dynamic.candidate({"message.max.bytes": "5"}, cluster_wide=True).message_max_bytes == 5
    with pytest.raises(ConfigError, match="did you mean"):
        dynamic.candidate({"message.max.byte": "5"}, cluster_wide=True)
    assert dynamic.current == dynamic.static
