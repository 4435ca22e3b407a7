"""This broker's place in the cluster: its ephemeral node `/brokers/ids/N`, kept there across session loss.

Started by the server once its listeners are bound, stopped before its ZooKeeper client is closed. Promises: an id
that another live broker holds is refused with that broker's address; what our own previous life left behind is not
in the way (Kafka's broker fails in that case); after an expired session, a restarted ZooKeeper or a node that
somebody deleted, the broker is registered again without restart.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from broker.errors import ConfigError, ConnectionFailed
from broker.zookeeper import znodes
from broker.zookeeper.client import Watch, ZooKeeper
from broker.zookeeper.operations import NodeExists, NodeStat
from broker.zookeeper.registry import BrokerInfo, Registry

__all__ = ["Membership"]

log = logging.getLogger(__name__)

_EXPIRY_SLACK_S = 2.0  # sessions expire on the server's tick, 2 s in an ordinary ZooKeeper, so up to that late
_LOOK_AGAIN_S = 0.1
_PROBE_TIMEOUT_S = 1.0


class Membership:
    """Registers one broker and keeps it registered. `start` and `stop` block: call them from a worker thread.

    `session_file` remembers the session that holds the node. By it the next life of this broker knows a node that
    a `kill -9` left behind for its own and takes it over at once, instead of waiting until that session expires. It
    must be a file that only this broker writes, in its locked log directory.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        registry: Registry,
        info: BrokerInfo,
        *,
        session_file: Path | None = None,
        on_registered: Callable[[], None] | None = None,
    ) -> None:
        """`on_registered` is called on ZooKeeper's event thread each time the node has been made anew after the
        first time: whoever caches what is in ZooKeeper should read it again."""
        self._zk = zk
        self._registry = registry
        self._info = info
        self._session_file = session_file
        self._on_registered = on_registered
        self._watch: Watch | None = None
        self._lock = threading.Lock()  # stop() against healing on the event thread
        self._stopped = False
        self._holder = 0  # session that holds our node, as last seen; 0: none, or not ours

    @property
    def registered(self) -> bool:
        """Whether, as far as is known, the node is there and ours; False while ZooKeeper is away."""
        return self._holder != 0 and self._holder == self._zk.session_id

    def start(self) -> None:
        """Register. Blocks while a node of a broker that seems dead is there, up to the session time-out.

        Raises ConfigError when another broker has this id; ConnectionFailed when ZooKeeper does not answer.
        """
        previous_session = self._recall_session()
        deadline = time.monotonic() + self._zk.session_timeout_ms / 1000 + _EXPIRY_SLACK_S
        while not self._try_register():
            found = self._registry.broker_node(self._info.broker_id)
            if found is None:
                continue
            other, stat = found
            if stat.ephemeral_owner == previous_session:
                log.info("taking over the node that this broker left in its previous life: %s", other)
                self._registry.unregister_broker(self._info.broker_id)
                continue
            if time.monotonic() >= deadline or self._answers(other):
                self._forget_session()
                raise self._duplicate(other)
            time.sleep(_LOOK_AGAIN_S)
        self._watch = self._zk.watch_data(znodes.broker_path(self._info.broker_id), self._node_changed)

    def stop(self) -> None:
        """Take the node away, if it is ours, and keep it away. Idempotent; quick when ZooKeeper is gone."""
        with self._lock:
            self._stopped = True
            if self._watch is not None:
                self._watch.cancel()
            if self.registered:
                try:
                    self._registry.unregister_broker(self._info.broker_id)
                    self._forget_session()
                except ConnectionFailed as error:
                    log.warning("leaving the broker's node to expire: %s", error)
            self._holder = 0

    # -- registering

    def _try_register(self) -> bool:
        """False when another session holds the node."""
        self._remember_session()
        try:
            self._registry.register_broker(self._info)
        except NodeExists:
            return False
        self._holder = self._zk.session_id
        return True

    def _node_changed(self, _: bytes | None, stat: NodeStat | None) -> None:
        """On the event thread, after every change of the node and every reconnection."""
        with self._lock:
            if self._stopped:
                return
            if stat is not None:
                ours = stat.ephemeral_owner == self._zk.session_id
                self._holder = stat.ephemeral_owner if ours else 0
                if not ours:  # our own expired session's, soon gone; or a duplicate that came while we were away
                    log.warning("broker id %d is held by another session; waiting for it", self._info.broker_id)
                return
            try:
                registered = self._try_register()
            except ConnectionFailed as error:
                log.warning("registering again later: %s", error)
                return
        if registered:
            log.info("registered broker %d again", self._info.broker_id)
            if self._on_registered is not None:
                self._on_registered()

    # -- who holds the id?

    def _answers(self, other: BrokerInfo) -> bool:
        """Whether something listens at the other's address. When that is ours too, it says nothing."""
        if set(other.endpoints) & set(self._info.endpoints):
            return False
        try:
            with socket.create_connection((other.host, other.port), timeout=_PROBE_TIMEOUT_S):
                return True
        except OSError:
            return False

    def _duplicate(self, other: BrokerInfo) -> ConfigError:
        return ConfigError(
            f"broker.id={self._info.broker_id} is already used by the broker at {other.host}:{other.port} "
            f"(ZooKeeper {self._zk.connect}); set broker.id to another number, or to -1 to have one made up"
        )

    # -- the session file

    def _recall_session(self) -> int:
        """-1 when there is none: no node is owned by that."""
        try:
            return int(self._session_file.read_text(), 16) if self._session_file is not None else -1
        except (OSError, ValueError):
            return -1

    def _remember_session(self) -> None:
        """Before the node is made, so that no crash falls between."""
        if self._session_file is not None and self._zk.session_id:
            self._session_file.write_text(f"{self._zk.session_id:#x}\n")

    def _forget_session(self) -> None:
        if self._session_file is not None:
            self._session_file.unlink(missing_ok=True)
