"""The thread that keeps a group member alive between polls (KIP-62).

Started by consumer.py while it is subscribed. It sends a heartbeat every `heartbeat.interval.ms`, and takes the
member out of the group when the application has not polled for `max.poll.interval.ms`: one that hangs must not
keep its partitions.
"""

from __future__ import annotations

import logging
import threading
import time

from broker.client.group import GroupMember
from broker.client.settings import ClientSettings
from broker.errors import PykafkaError

__all__ = ["HeartbeatThread"]

logger = logging.getLogger(__name__)


class HeartbeatThread(threading.Thread):
    """Heartbeats of `member`. `polled()` with every poll; `stop()` ends it."""

    def __init__(self, member: GroupMember, settings: ClientSettings) -> None:
        super().__init__(name=f"pykafka-heartbeat-{member.group}", daemon=True)
        self._member = member
        self._settings = settings
        self._stopped = threading.Event()
        self._last_poll = time.monotonic()

    def polled(self) -> None:
        """The application is alive."""
        self._last_poll = time.monotonic()

    def stop(self) -> None:
        """End it; returns when it has ended, at the latest after a request's time-out."""
        self._stopped.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()

    def run(self) -> None:
        interval_s = self._settings.heartbeat_interval_ms / 1000
        retry_s = min(self._settings.retry_backoff_ms / 1000, interval_s)
        pause_s = interval_s
        while not self._stopped.wait(pause_s):
            pause_s = interval_s
            try:
                if self._idle():
                    self._member.leave()
                else:
                    self._member.heartbeat()
            except PykafkaError as error:
                logger.debug("heartbeat of group %s: %s", self._member.group, error)
                pause_s = retry_s

    def _idle(self) -> bool:
        idle_s = time.monotonic() - self._last_poll
        if not self._member.owns or idle_s <= self._settings.max_poll_interval_ms / 1000:
            return False
        logger.warning(
            "group %s: no poll for %.0f s, more than max.poll.interval.ms: leaving the group",
            self._member.group,
            idle_s,
        )
        return True
