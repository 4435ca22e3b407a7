"""Standing for controller: whenever there is none, try to be it (kafka.controller.KafkaController.elect).

Started by the server after the broker is registered. It lives on ZooKeeper's event thread: a controller's session
that ends, this broker's own or another's, is followed by a new election without anybody asking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.errors import ConnectionFailed
from broker.zookeeper.client import Watch
from broker.zookeeper.registry import Registry

__all__ = ["ControllerElection"]

log = logging.getLogger(__name__)


class ControllerElection:
    """One broker's candidacy. `start` and `stop` block: call them from a worker thread."""

    def __init__(
        self, registry: Registry, broker_id: int, *, on_change: Callable[[int, int], None] | None = None
    ) -> None:
        """`on_change(controller_id, controller_epoch)` comes on the event thread: soon after the start, when somebody
        becomes controller, and after each reconnection."""
        self._registry = registry
        self._broker_id = broker_id
        self._on_change = on_change
        self._watch: Watch | None = None

    def start(self) -> None:
        """Elect at once if there is no controller, and go on watching. Raises ConnectionFailed."""
        self._registry.elect_controller(self._broker_id)
        self._watch = self._registry.watch_controller(self._controller_changed)

    def stop(self) -> None:
        """Withdraw, and give the office up if this broker holds it. Idempotent; quick when ZooKeeper is gone."""
        if self._watch is None:
            return
        self._watch.cancel()
        self._watch = None
        try:
            self._registry.resign_controller()
        except ConnectionFailed as error:
            log.warning("leaving the controller's node to expire: %s", error)

    def _controller_changed(self, controller_id: int) -> None:
        if controller_id == -1:
            self._stand()  # whoever wins is told as the next change
        elif self._on_change is not None:
            self._on_change(controller_id, self._registry.controller_epoch())

    def _stand(self) -> None:
        epoch = self._registry.elect_controller(self._broker_id)
        if epoch is not None:
            log.info("broker %d is the controller now, epoch %d", self._broker_id, epoch)
