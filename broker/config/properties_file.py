"""A properties file with all settings of a broker, which `pykafka broker config` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.settings import settings_of

_TITLES: Final = {
    "basics": "Server basics",
    "socket": "Socket server",
    "security": "Listeners, TLS and SASL",
    "log": "Log basics",
    "flush": "Log flush policy",
    "retention": "Log retention policy",
    "cleaner": "Log cleaner",
    "zookeeper": "ZooKeeper",
    "groups": "Consumer groups",
    "controller": "Leadership",
    "quotas": "Quotas of clients",
    "observability": "Metrics and logs",
}


def properties_file(given: Mapping[str, str]) -> str:
    """Its text: what is `given` is set, all other settings stand commented out at their default."""
    lines = ["# Settings of `pykafka broker start server.properties`, in Apache Kafka's names.", ""]
    group = ""
    for name, key in settings_of(BrokerConfig).items():
        if key.group != group:
            group = key.group
            title = _TITLES.get(group, group.capitalize())
            lines += [f"############################# {title} #############################", ""]
        lines.append(f"# {key.doc}")
        lines += [f"{name}={given[name]}" if name in given else f"#{name}={key.format(key.default)}", ""]
    return "\n".join(lines)
