"""conf/server.properties as it must read, made from the declared settings.

`python -m tests.support.server_properties` writes the file; tests/test_conf.py compares. Settings an
operator nearly always sets are given a value, all others stand commented out at their default.
"""

from __future__ import annotations

from broker.config.broker_config import BrokerConfig
from broker.settings import settings_of
from tests.support.source_tree import ROOT

FILE = ROOT / "conf" / "server.properties"

SET = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "data/broker",
    "num.partitions": "1",
    "zookeeper.connect": "",
    "embedded.zookeeper.port": "2181",
}

TITLES = {
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


def render() -> str:
    """The file's text."""
    lines = ["# Settings of `pykafka broker start conf/server.properties`, in Apache Kafka's names.", ""]
    group = ""
    for name, key in settings_of(BrokerConfig).items():
        if key.group != group:
            group = key.group
            lines += [f"############################# {TITLES[group]} #############################", ""]
        lines.append(f"# {key.doc}")
        lines += [f"{name}={SET[name]}" if name in SET else f"#{name}={key.format(key.default)}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
