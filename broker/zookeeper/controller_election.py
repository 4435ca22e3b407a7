"""Controller election: whenever there is no controller, try to become it (kafka.controller.KafkaController.elect).

Started by the server after the broker is registered. Runs on ZooKeeper's event thread: when the controller's session
ends, on this broker or another, the next election begins at once. `take_over` does not wait for that end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from broker.errors import ConnectionFailed
from broker.zookeeper.controller_node import ControllerEpoch
from broker.zookeeper.metadata_store import Watch
from broker.zookeeper.registry import Registry

log = logging.getLogger(__name__)


class ControllerElection:
    """One broker's part in the election. `start` and `stop` block, so call them from a worker thread."""

    def __init__(self, registry: Registry, broker_id: int) -> None:
        self._registry = registry
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
        self._watch = self._registry.controller.watch(self._controller_changed)

    def stop(self) -> None:
        """Leave the election, and resign if this broker is the controller. Idempotent; quick when ZooKeeper is away."""
        if self._watch is None:
            return
        self._watch.cancel()
        self._watch = None
        self.epoch = None
        try:
            self._registry.controller.resign()
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
            before, self.epoch = self.epoch, self._registry.controller.elect(self._broker_id, dead=dead)
            if self.epoch is None or self.epoch == before:
                return
            log.info("broker %d is the controller, epoch %d", self._broker_id, self.epoch.epoch)
        self._on_elected()
