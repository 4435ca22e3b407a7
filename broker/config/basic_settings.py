"""Who this broker is, where its data lie, and what topics get by default."""

from __future__ import annotations

import dataclasses

from broker.settings import at_least, setting

__all__ = ["BasicSettings"]

BASICS = "basics"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BasicSettings:
    """A part of `BrokerConfig`."""

    broker_id: int = setting(
        "broker.id",
        0,
        "Id of this broker, unique in its ZooKeeper; -1 takes that of log.dirs, or has one made up above 1000.",
        group=BASICS,
        check=at_least(-1),
    )
    listeners: tuple[str, ...] = setting(
        "listeners", ("PLAINTEXT://127.0.0.1:9092",), "Where to listen; port 0 takes a free port.", group=BASICS
    )
    advertised_listeners: tuple[str, ...] = setting(
        "advertised.listeners", (), "What clients are told to connect to; by default the listeners.", group=BASICS
    )
    log_dirs: tuple[str, ...] = setting(
        "log.dirs", ("pykafka-data",), "Directories of the partition logs, comma-separated.", group=BASICS
    )
    num_partitions: int = setting(
        "num.partitions", 1, "Partitions of a topic created without a count.", group=BASICS, check=at_least(1)
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        1,
        "Replicas of a topic created without a factor; above 1 such a topic is refused.",
        group=BASICS,
        check=at_least(1),
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Create a topic when a client first names it.", group=BASICS
    )
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Allow topics to be deleted.", group=BASICS)
