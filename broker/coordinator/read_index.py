"""Makes sure that this broker leads a coordinator's partition now, before it answers from memory (P7).

A broker that was frozen, or is cut off from ZooKeeper, does not know that it is deposed. What it stores is never
committed, but its memory has old offsets, and a copier that continues from them would copy twice. So it asks the other
in-sync replicas: the next leader is one of them, and acknowledges nothing before its own metadata have the next leader
epoch. This is the idea of Raft's ReadIndex. ZooKeeper is not asked, so groups go on without it (P8). Lives on the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition

TIMEOUT_S = 2.0
"""How long a request waits for the answers of all in-sync replicas. While one is dead or frozen, none is acknowledged
either: nothing is, until it has left the ISR."""

_RETRY_S = 0.05
_METADATA_VERSION = 9


class _Claim(NamedTuple):
    """This broker leads `tp` in `epoch`."""

    tp: TopicPartition
    epoch: int


class ReadIndex:
    """Asks other brokers whether they know of a later leader."""

    def __init__(self, topics: MetadataCache, broker_id: int, connect: Connect) -> None:
        self._topics = topics
        self._broker_id = broker_id
        self._peers = PeerRequests(connect, _send)
        self._is_closed = False

    async def leads(self, tp: TopicPartition) -> bool | None:
        """Whether this broker led the partition at a moment after the call. None when that cannot be said.

        At once with a single in-sync replica: nobody else can be elected then.
        """
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while (left := deadline - asyncio.get_running_loop().time()) > 0 and not self._is_closed:
            try:
                partition = self._topics.partition(tp)
            except BrokerError:
                return False
            asked = [
                self._peers.ask(replica, _Claim(tp, partition.leader_epoch)) for replica in self._others(partition)
            ]
            if not asked:
                return True
            await asyncio.wait(asked, timeout=left)
            codes = {future.result() if future.done() else ErrorCode.request_timed_out for future in asked}
            if codes == {ErrorCode.none}:
                return True
            if ErrorCode.not_coordinator in codes:
                return False
            await asyncio.sleep(_RETRY_S)
        return None

    def _others(self, partition: Partition) -> frozenset[int]:
        return frozenset() if partition.in_sync is None else partition.in_sync.largest_isr - {self._broker_id}

    async def close(self) -> None:
        """End all requests."""
        self._is_closed = True
        await self._peers.close()


async def _send(peer: PeerConnection, claims: Sequence[_Claim]) -> Mapping[_Claim, ErrorCode]:
    body = {
        "topics": [{"name": topic} for topic in sorted({claim.tp.topic for claim in claims})],
        "allow_auto_topic_creation": False,
    }
    answer = await peer.request(ApiKey.METADATA, _METADATA_VERSION, body)
    epochs = {
        TopicPartition(topic.name, found.partition_index): found.leader_epoch
        for topic in answer.topics
        for found in topic.partitions
    }
    return {
        claim: ErrorCode.none if epochs[claim.tp] <= claim.epoch else ErrorCode.not_coordinator
        for claim in claims
        if claim.tp in epochs
    }
