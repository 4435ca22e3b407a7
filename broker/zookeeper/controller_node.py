"""`/controller`, which names the controller, and `/controller_epoch`, which counts and fences controllers.

Both change in one transaction, so the version of the epoch also says which node of the controller it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from broker.clock import Clock
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import BadVersion, Check, Create, Delete, NodeExists, NoNode, SetData


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
            now = self._read()
            if now is not None and now[1] == self._zk.session_id:
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
