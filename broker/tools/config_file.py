"""A `server.properties` with every setting of a broker and what it means, made from the declared settings.

`pykafka broker config` prints it. What the shipped file sets is set, all others stand commented out at their default.
"""

from __future__ import annotations

from broker.config.broker_config import BrokerConfig
from broker.settings import read_properties_file, settings_of
from broker.tools.run_broker import CONF

_TITLES = {
    "basics": "Server basics",
    "socket": "Socket server",
    "security": "Listeners, TLS and SASL",
    "log": "Log basics",
    "flush": "Log flush policy",
    "retention": "Log retention policy",
    "replicas": "Replicas",
    "cleaner": "Log cleaner",
    "zookeeper": "ZooKeeper",
    "groups": "Consumer groups",
    "share groups": "Share groups",
    "controller": "Leadership",
    "transactions": "Transactions",
    "quotas": "Quotas of clients",
    "archive": "Archive",
    "observability": "Metrics and logs",
}


def render_server_properties() -> str:
    """The file's text."""
    shipped = read_properties_file(CONF / "server.properties")
    lines = ["# Settings of `pykafka broker start server.properties`, in Apache Kafka's names."]
    group = ""
    for name, key in settings_of(BrokerConfig).items():
        if key.group != group:
            group = key.group
            lines += ["", f"############################# {_TITLES[group]} #############################"]
        lines += ["", f"# {key.doc}"]
        lines.append(f"{name}={shipped[name]}" if name in shipped else f"#{name}={key.format(key.default)}")
    return "\n".join(lines) + "\n"
