"""Opens the store of the cluster's metadata: a file for a standalone broker, else ZooKeeper.

Called by broker/server.py at the start of a broker. Metadata that a standalone broker has left moves into ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from broker.clock import Clock
from broker.config.broker_config import BrokerConfig
from broker.meta_properties import refuse_foreign
from broker.zookeeper.metadata_move import METADATA_FILE, MOVING_FILE, move_into_zookeeper, standalone_store
from broker.zookeeper.metadata_store import MetadataStore

ZOOKEEPER_DIRECTORY: Final = "zookeeper"
"""Of an embedded ZooKeeper, in the first log directory."""
OPERATION_TIMEOUT_S: Final = 10.0
"""How long a request that needs ZooKeeper waits while that is away, before its client gets an error; less when sessions
are short."""


def open_store(
    config: BrokerConfig,
    directories: Sequence[Path],
    clock: Clock,
    start: Callable[[MetadataStore], MetadataStore],
    start_zookeeper: Callable[[], str],
) -> MetadataStore:
    """The store, started. `directories` are the log directories.

    `start` starts a store, `start_zookeeper` an embedded ZooKeeper, whose address it returns. Raises ConfigError where
    a log directory belongs to a broker of another kind.
    """
    directory = directories[0]
    if config.standalone:
        store = standalone_store(directory, clock)
        refuse_foreign(directories, [directory / METADATA_FILE])
        return start(store)
    # kazoo behind it, for brokers with a ZooKeeper
    from broker.zookeeper.client import ZooKeeper

    own = [] if config.zookeeper_connect else [ZOOKEEPER_DIRECTORY, METADATA_FILE, MOVING_FILE]
    refuse_foreign(directories, [directory / name for name in own])
    session_ms = config.zookeeper_session_timeout_ms
    zookeeper = ZooKeeper(
        config.zookeeper_connect or start_zookeeper(),
        session_ms,
        operation_timeout_s=min(OPERATION_TIMEOUT_S, session_ms / 1000 + 1),
        login=config.zookeeper_login(),
    )
    zookeeper.patient = True
    start(zookeeper)
    move_into_zookeeper(directory, zookeeper)
    return zookeeper
