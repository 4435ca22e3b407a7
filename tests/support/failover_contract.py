"""What tests/compat/test_failover.py asks of any client: a writer and a reader."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterable
from typing import Self

PARTITIONS = 3
PATIENCE_S = 90.0


class Aborted(Exception):
    """The client says that the transaction has to be aborted."""


class Writer(abc.ABC):
    """A producer with idempotence and acks=all. `transactional_id` makes it transactional."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> None:
        self.bootstrap, self.topic, self.transactional_id = bootstrap, topic, transactional_id

    @abc.abstractmethod
    def send(self, numbers: Iterable[int]) -> None:
        """Send each number to partition number % 3, without waiting."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until all is acknowledged. Raises when something is not."""

    def begin(self) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        """Raises Aborted."""
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Say good-bye."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reader(abc.ABC):
    """The only member of a group that commits what it has read."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group

    @abc.abstractmethod
    def take(self) -> list[int]:
        """The numbers that came within a moment."""

    @abc.abstractmethod
    def close(self) -> None:
        """Commit and leave."""

    def take_until(self, wanted: set[int]) -> list[int]:
        """All numbers that come until `wanted` are among them."""
        taken: list[int] = []
        missing, deadline = set(wanted), time.monotonic() + PATIENCE_S
        while missing:
            assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} did not come: {sorted(missing)[:9]}…"
            found = self.take()
            taken += found
            missing -= set(found)
        return taken


def partition_of(number: int) -> int:
    return number % PARTITIONS
