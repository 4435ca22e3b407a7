"""Keeps this broker registered in ZooKeeper: its ephemeral node `/brokers/ids/N`.

- The id of another live broker is refused, with that broker's address.
- A node left by this broker's previous process is taken over (Kafka's broker fails to start then).
- After an expired session, a restart of ZooKeeper or a deleted node, the broker registers again without a restart.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from broker.errors import ConfigError, ConnectionFailed
from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import NodeExists, NodeStat
from broker.zookeeper.registry import Registry

log = logging.getLogger(__name__)

_EXPIRY_SLACK_S = 2.0  # sessions expire on a tick of the server, usually every 2 s
_RETRY_S = 0.1
_PROBE_TIMEOUT_S = 1.0


class Membership:
    """Registers one broker and keeps it registered. `start` and `stop` block, so call them from a worker thread.

    `session_file` stores the id of the session that owns the node. After a `kill -9` the next process of this broker
    recognizes the node by it and takes it over at once, instead of waiting until the session expires. Only this broker
    may write that file, so it lies in the locked log directory.
    """

    def __init__(
        self, zk: MetadataStore, registry: Registry, info: BrokerInfo, *, session_file: Path | None = None
    ) -> None:
        self._zk = zk
        self._registry = registry
        self._info = info
        self._session_file = session_file
        self._watch: Watch | None = None
        self._lock = threading.Lock()  # so that `stop` and `_node_changed` do not overlap
        self._stopped = False
        self._owner = 0  # session that owns our node, as last seen; 0: none, or not ours

    @property
    def registered(self) -> bool:
        """Whether, as far as known, the node exists and is ours; False while ZooKeeper is away."""
        return self._owner != 0 and self._owner == self._zk.session_id

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Register. While the node of a broker that seems dead exists, wait for up to the session timeout.

        `prepare()` is called when the id is free and before the others see this broker; if a try to register fails, it
        is called again.
        Raises ConfigError when another broker has this id; ConnectionFailed when ZooKeeper does not answer.
        """
        previous_session = self._read_session_file()
        deadline = time.monotonic() + self._zk.session_timeout_ms / 1000 + _EXPIRY_SLACK_S
        while True:
            found = self._registry.broker_node(self._info.broker_id)
            if found is None:
                prepare()
                if self._try_register():
                    break
                continue
            other, stat = found
            if stat.ephemeral_owner == previous_session:
                log.info("taking over the node that the previous process of this broker left: %s", other)
                self._registry.unregister_broker(self._info.broker_id)
                continue
            if time.monotonic() >= deadline or self._answers(other):
                self._delete_session_file()
                raise self._duplicate(other)
            time.sleep(_RETRY_S)
        self._watch = self._zk.watch_data(znodes.broker_path(self._info.broker_id), self._node_changed)

    def stop(self) -> None:
        """Delete the node if it is ours, for good. Idempotent; quick when ZooKeeper is away."""
        with self._lock:
            self._stopped = True
            if self._watch is not None:
                self._watch.cancel()
            if self.registered:
                try:
                    self._registry.unregister_broker(self._info.broker_id)
                    self._delete_session_file()
                except ConnectionFailed as error:
                    log.warning("cannot delete the broker's node; it ends with the session: %s", error)
            self._owner = 0

    # -- registering

    def _try_register(self) -> bool:
        """False when another session owns the node."""
        self._write_session_file()
        try:
            self._registry.register_broker(self._info)
        except NodeExists:
            return False
        self._owner = self._zk.session_id
        return True

    def _node_changed(self, _: bytes | None, stat: NodeStat | None) -> None:
        """On the event thread, after every change of the node and every reconnection."""
        with self._lock:
            if self._stopped:
                return
            if stat is not None:
                ours = stat.ephemeral_owner == self._zk.session_id
                self._owner = stat.ephemeral_owner if ours else 0
                if not ours:  # our own expired session, or another broker with our id that came while we were away
                    log.warning("broker id %d is registered by another session; waiting", self._info.broker_id)
                return
            try:
                if self._try_register():
                    log.info("registered broker %d again", self._info.broker_id)
            except ConnectionFailed as error:
                log.warning("cannot register again yet: %s", error)

    # -- another broker with this id

    def _answers(self, other: BrokerInfo) -> bool:
        """Whether something listens at the address of `other`, which proves nothing if we have that address too."""
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
            f"({self._zk}); set broker.id to another number, or to -1 to have one generated"
        )

    # -- the session file

    def _read_session_file(self) -> int:
        """-1, which owns no node, when there is no file."""
        try:
            return int(self._session_file.read_text(), 16) if self._session_file is not None else -1
        except (OSError, ValueError):
            return -1

    def _write_session_file(self) -> None:
        """Called before the node is created, in case we crash in between.

        The file only makes the next start faster, so a full or broken disk must not keep the broker from registering.
        """
        if self._session_file is not None and self._zk.session_id:
            try:
                self._session_file.write_text(f"{self._zk.session_id:#x}\n")
            except OSError as error:
                log.warning("cannot write %s: %s", self._session_file, error)

    def _delete_session_file(self) -> None:
        if self._session_file is not None:
            with contextlib.suppress(OSError):
                self._session_file.unlink(missing_ok=True)
