"""Controller election: whenever there is no controller, try to become it (kafka.controller.KafkaController.elect).

Started by the server after the broker is registered. Runs on ZooKeeper's event thread: when the controller's session
ends, on this broker or another, the next election begins at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.errors import ConnectionFailed
from broker.zookeeper.client import Watch
from broker.zookeeper.registry import ControllerEpoch, Registry

__all__ = ["ControllerElection"]

log = logging.getLogger(__name__)


class ControllerElection:
    """One broker's part in the election. `start` and `stop` block, so call them from a worker thread."""

    def __init__(self, registry: Registry, broker_id: int) -> None:
        self._registry = registry
        self._broker_id = broker_id
        self._watch: Watch | None = None
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
        self._watch = self._registry.watch_controller(self._controller_changed)

    def stop(self) -> None:
        """Leave the election, and resign if this broker is the controller. Idempotent; quick when ZooKeeper is away."""
        if self._watch is None:
            return
        self._watch.cancel()
        self._watch = None
        self.epoch = None
        try:
            self._registry.resign_controller()
        except ConnectionFailed as error:
            log.warning("cannot delete the controller node; it ends with the session: %s", error)

    def _controller_changed(self, controller_id: int) -> None:
        if controller_id == -1:
            self._elect()
        elif controller_id != self._broker_id:
            self.epoch = None

    def _elect(self) -> None:
        self.epoch = self._registry.elect_controller(self._broker_id)
        if self.epoch is not None:
            log.info("broker %d is the controller, epoch %d", self._broker_id, self.epoch.epoch)
            self._on_elected()
