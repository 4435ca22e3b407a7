"""The broker's defaults of topics' settings: what a topic could not have, no broker has for it."""

from __future__ import annotations

import pytest

from broker.config.broker_config import TOPIC_DEFAULT_KEYS, BrokerConfig
from broker.config.topic_settings import TOPIC_KEYS
from broker.errors import ConfigError
from broker.settings import settings_of

BROKER_KEYS = settings_of(BrokerConfig)


@pytest.mark.parametrize(
    ("key", "text", "least"),
    [("log.index.size.max.bytes", "8", 12), ("log.retention.bytes", "-2", -1), ("log.segment.bytes", "13", 14)],
)
def test_a_broker_refuses_what_its_topics_would(key: str, text: str, least: int) -> None:
    """At once and by its own name, not when it opens the first log."""
    with pytest.raises(ConfigError, match=f"^{key}={text}: must be at least {least}$"):
        BrokerConfig.load(overrides={key: text})


def test_a_default_in_the_topics_unit_has_its_type() -> None:
    finest = {topic: next(iter(names)) for topic, names in TOPIC_DEFAULT_KEYS.items()}
    assert [BROKER_KEYS[name].type for name in finest.values()] == [TOPIC_KEYS[topic].type for topic in finest]
