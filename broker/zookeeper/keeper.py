"""Keeps the broker's own ZooKeeper up: a server that ends by itself is started again, on the same data and port.

Used by the server in place of a bare `EmbeddedZooKeeper`. The broker goes on meanwhile, as it does when an
external ZooKeeper is away. Blocking; `start` and `stop` are called from worker threads.
"""

from __future__ import annotations

import logging
import threading

from broker.errors import PykafkaError
from broker.zookeeper.embedded_server import EmbeddedZooKeeper

__all__ = ["ZooKeeperKeeper"]

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5


class ZooKeeperKeeper:
    """One embedded server and the thread that looks after it."""

    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self._server = server
        self._lock = threading.Lock()  # stop() against a restart
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="zookeeper-keeper", daemon=True)

    def start(self) -> str:
        """Start the server and return its address. Raises what `EmbeddedZooKeeper.start` raises."""
        address = self._server.start()
        log.info("started a ZooKeeper of our own at %s, process %s", address, self._server.pid)
        self._thread.start()
        return address

    def stop(self) -> None:
        """End the server, for good. Idempotent."""
        self._stopped.set()
        with self._lock:
            self._server.stop()

    def _look_after(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            with self._lock:
                if not self._stopped.is_set() and not self._server.running:
                    self._restart()

    def _restart(self) -> None:
        ended = self._server
        log.error("our own ZooKeeper at %s has ended; starting it again", ended.address)
        ended.stop()  # what may be left of it
        # With the port named: our clients know only that one.
        self._server = EmbeddedZooKeeper(ended.data_dir, ended.port, ended.properties)
        try:
            self._server.start()
            log.warning("our own ZooKeeper is back at %s, process %s", self._server.address, self._server.pid)
        except (PykafkaError, OSError) as error:
            log.error("our own ZooKeeper cannot be started, trying again: %s", error)
