"""Which ZooKeeper, and for how long it waits for us."""

from __future__ import annotations

import dataclasses

from broker.settings import between, setting

__all__ = ["ZooKeeperSettings"]

ZOOKEEPER = "zookeeper"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooKeeperSettings:
    """A part of `BrokerConfig`."""

    zookeeper_connect: str = setting(
        "zookeeper.connect",
        "",
        "host:port,…/chroot; empty starts a ZooKeeper of our own beside the logs.",
        group=ZOOKEEPER,
    )
    embedded_zookeeper_port: int = setting(
        "embedded.zookeeper.port",
        0,
        "Port of the ZooKeeper of our own; 0 takes a free one at each start.",
        group=ZOOKEEPER,
        check=between(0, 65535),
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        18000,
        "After this silence the broker's registration is gone.",
        group=ZOOKEEPER,
        check=between(1000, 3600000),
    )
