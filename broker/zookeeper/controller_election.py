"""`/controller`, which names the controller, `/controller_epoch`, which counts and fences them, and the election.

Both nodes change in one transaction, so the version of the epoch also says which node of the controller it is.

Whenever there is no controller, every broker tries to become it (kafka.controller.KafkaController.elect). The server
starts that after the broker is registered. It runs on ZooKeeper's event thread: when the controller's session ends, on
this broker or another, the next election begins at once. `take_over` does not wait for that end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from broker.clock import Clock
from broker.errors import ConnectionFailed
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import BadVersion, Check, Create, Delete, NodeExists, NoNode, SetData

log = logging.getLogger(__name__)


class ControllerEpoch(NamedTuple):
    """Which controller wrote something. `version` is that of `/controller_epoch`, which fences earlier controllers."""

    epoch: int
    version: int


class ControllerNode:
    """Methods block and raise ConnectionFailed, as those of the registry, which has the one instance."""

    def __init__(self, zk: MetadataStore, clock: Clock) -> None:
        self._zk = zk
        self._clock = clock

    def elect(self, broker_id: int, *, dead: int = -1) -> ControllerEpoch | None:
        """Make this broker the controller if there is none; None when another broker is.

        `dead`: the id of a controller that is dead although its session has not ended. Its node is replaced, and so is
        one that an earlier process of this broker has left. The node and the epoch change in one transaction, so of
        several brokers that try one succeeds. If this session is the controller already, returns its epoch.
        """
        while True:
            found = self.epoch()
            now, session = self._read(), self._zk.session_id
            if not session:
                continue  # the connection broke since the read, so nothing says whether the node is ours
            if now is not None and now[1] == session:
                if found == self.epoch():  # else there was another election between the two reads
                    return found
                continue
            if now is not None and now[0] not in (broker_id, dead):
                return None
            node = znodes.encode_controller(broker_id, self._clock.now_ms())
            try:
                *_, stat = self._zk.transaction(
                    [
                        *([Delete(znodes.CONTROLLER)] if now is not None else ()),
                        Create(znodes.CONTROLLER, node, ephemeral=True),
                        SetData(znodes.CONTROLLER_EPOCH, str(found.epoch + 1).encode(), found.version),
                    ]
                )
                return ControllerEpoch(found.epoch + 1, stat.version)
            except (BadVersion, NodeExists, NoNode):
                continue

    def resign(self) -> None:
        """Delete the controller node if this session owns it. Returns at once while ZooKeeper is away."""
        if not self._zk.connected:
            return
        epoch, now = self.epoch(), self._read()
        if now is not None and now[1] == self._zk.session_id:
            with contextlib.suppress(NoNode, BadVersion):  # another broker has taken over
                self._zk.transaction([Check(znodes.CONTROLLER_EPOCH, epoch.version), Delete(znodes.CONTROLLER)])

    def id(self) -> int:
        """Id of the controller, -1 when there is none."""
        found = self._read()
        return -1 if found is None else found[0]

    def _read(self) -> tuple[int, int] | None:
        """The controller's id, and the session that owns its node."""
        try:
            data, stat = self._zk.get(znodes.CONTROLLER)
        except NoNode:
            return None
        return znodes.decode_controller(data), stat.ephemeral_owner

    def watch(self, callback: Callable[[int], None]) -> Watch:
        """Call back with the controller's id (-1: none) whenever it changes."""
        return self._zk.watch_data(
            znodes.CONTROLLER, lambda data, _: callback(-1 if data is None else znodes.decode_controller(data))
        )

    def epoch(self) -> ControllerEpoch:
        """The number of controllers so far."""
        try:
            data, stat = self._zk.get(znodes.CONTROLLER_EPOCH)
        except NoNode:
            with contextlib.suppress(NodeExists):
                self._zk.create(znodes.CONTROLLER_EPOCH, b"0")
            data, stat = self._zk.get(znodes.CONTROLLER_EPOCH)
        return ControllerEpoch(int(data), stat.version)


class ControllerElection:
    """One broker's part in the election. `start` and `stop` block, so call them from a worker thread."""

    def __init__(self, node: ControllerNode, broker_id: int) -> None:
        self._node = node
        self._broker_id = broker_id
        self._watch: Watch | None = None
        self._lock = threading.Lock()  # the event thread and `take_over` may elect at the same time
        self._on_elected: Callable[[], None] = lambda: None
        self.epoch: ControllerEpoch | None = None
        """The epoch for which this broker was elected; None while it is not the controller, as far as it knows."""

    def subscribe(self, on_elected: Callable[[], None]) -> None:
        """Call `on_elected` whenever this broker is elected, on ZooKeeper's event thread; now if it is."""
        self._on_elected = on_elected
        if self.epoch is not None:
            on_elected()

    def start(self) -> None:
        """Elect at once if there is no controller, and watch from then on. Raises ConnectionFailed."""
        self._elect()
        self._watch = self._node.watch(self._controller_changed)

    def stop(self) -> None:
        """Leave the election, and resign if this broker is the controller. Idempotent; quick when ZooKeeper is away."""
        if self._watch is None:
            return
        self._watch.cancel()
        self._watch = None
        self.epoch = None
        try:
            self._node.resign()
        except ConnectionFailed as error:
            log.warning("cannot delete the controller node; it ends with the session: %s", error)

    def take_over(self, dead: int) -> None:
        """Become the controller in the place of broker `dead`, if that still is. Blocks. Raises ConnectionFailed.

        Safe also if it lives: it is fenced by the controller epoch, and steps down when its watch fires.
        """
        if self._watch is not None:
            self._elect(dead)

    def _controller_changed(self, controller_id: int) -> None:
        if controller_id in (-1, self._broker_id):  # with our own id, its epoch may be another one than is known here
            self._elect()
            return
        with self._lock:  # an election of `take_over` that was lost meanwhile must not set the epoch afterwards
            self.epoch = None

    def _elect(self, dead: int = -1) -> None:
        with self._lock:
            before, self.epoch = self.epoch, self._node.elect(self._broker_id, dead=dead)
            if self.epoch is None or self.epoch == before:
                return
            log.info("broker %d is the controller, epoch %d", self._broker_id, self.epoch.epoch)
        self._on_elected()
