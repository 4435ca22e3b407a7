"""The sender's connection to one broker, and the produce requests under way on it.

Called by sender.py only, from its one thread. Replies come in the order of the requests, so a queue tells
which batches a reply is about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from broker.client.accumulator import PartitionQueue
from broker.client.cluster_metadata import Node
from broker.client.connection import Connection
from broker.client.produce_request import Produced, produce_request, produced
from broker.client.producer_batch import ProducerBatch
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Acknowledgement", "BrokerLink", "Entry"]


class Entry(NamedTuple):
    """A batch in flight and the queue it came from."""

    queue: PartitionQueue
    batch: ProducerBatch


class _InFlight(NamedTuple):
    sent_at: float
    entries: Sequence[Entry]


class Acknowledgement(NamedTuple):
    """A reply, the batches it is about, and when (monotonic seconds) they were sent."""

    entries: Sequence[Entry]
    results: dict[TopicPartition, Produced]
    sent_at: float


class BrokerLink:
    """Produce requests to `node`, several at a time. What it raises is what Connection raises."""

    def __init__(
        self, node: Node, connection: Connection, *, acks: int, timeout_ms: int, transactional_id: str | None = None
    ) -> None:
        self.node = node
        self.connection = connection
        self.fileno = connection.fileno()
        """For the selector, also after the connection was closed."""
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        self._requests: deque[_InFlight] = deque()

    @property
    def requests(self) -> int:
        """Requests without a reply yet."""
        return len(self._requests)

    @property
    def oldest(self) -> float | None:
        """When the request that has waited longest was sent, in monotonic seconds."""
        return self._requests[0].sent_at if self._requests else None

    def send(self, entries: Sequence[Entry], now: float) -> bool:
        """One request with a batch each of different partitions. Whether a reply will come (not with acks=0)."""
        self._requests.append(_InFlight(now, entries))  # first: should the send break, they are not lost
        batches = {entry.queue.tp: entry.batch.payload() for entry in entries}
        body = produce_request(
            batches, acks=self._acks, timeout_ms=self._timeout_ms, transactional_id=self._transactional_id
        )
        self.connection.send(ApiKey.PRODUCE, body, expect_reply=self._acks != 0)
        if self._acks == 0:
            self._requests.pop()
        return self._acks != 0

    def receive(self) -> Acknowledgement:
        """The next reply, which should be there already."""
        _, answer = self.connection.receive()
        request = self._requests.popleft()
        return Acknowledgement(request.entries, produced(answer), request.sent_at)

    def close(self) -> list[Entry]:
        """Hang up; the batches whose fate is unknown, oldest first."""
        self.connection.close()
        lost = [entry for request in self._requests for entry in request.entries]
        self._requests.clear()
        return lost
