"""Asks other brokers who leads, while ZooKeeper does not answer this broker.

A leader that is cut off from ZooKeeper alone loses its session, and another replica is elected. From then on it can
commit nothing, because the in-sync replicas follow the new leader. Its clients still reach it, and would wait for their
time-outs. So it asks the others for their metadata, and where these have a later leader epoch it follows the new
leader. Its clients get NOT_LEADER_OR_FOLLOWER then (promise P4).

While ZooKeeper is away for everybody the others know no later epoch, and this broker goes on leading (P8). What they
say can only end leadership here: nothing but ZooKeeper makes this broker a leader.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from broker.cluster.metadata_cache import MetadataCache
from broker.errors import PykafkaError
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo, PartitionInfo

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
_VERSION = 12
"""Of Metadata. Answers have leader epochs since 7 and topic ids since 10."""
_CORRELATION_ID_BYTES = 4


class LeadershipCheck:
    """Run `run` as a task on the event loop."""

    def __init__(
        self,
        topics: MetadataCache,
        connect: Callable[[BrokerInfo], PeerConnection | None],
        is_connected: Callable[[], bool],
    ) -> None:
        """`connect(broker)` gives a connection to another broker, None when brokers cannot talk to it. `is_connected`:
        whether ZooKeeper answers."""
        self._broker_id = topics.replicas.broker_id
        self._topics = topics
        self._connect = connect
        self._is_connected = is_connected
        self._peers: dict[int, PeerConnection] = {}
        self._answers: dict[int, bytes] = {}
        """The last answer of each broker. An equal one tells nothing new, and need not be decoded."""

    async def run(self) -> None:
        """Ask once a second while ZooKeeper does not answer."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                if self._is_connected():
                    self.close()
                else:
                    await self.ask_all()
        finally:
            self.close()

    async def ask_all(self) -> None:
        """Ask every other broker once about the partitions that this broker leads or follows."""
        names = {tp.topic for roles in (self._topics.replicas.led, self._topics.replicas.followed) for tp in roles}
        brokers = [broker for broker in self._topics.metadata.brokers.values() if broker.broker_id != self._broker_id]
        if names:
            await asyncio.gather(*(self._ask(broker, sorted(names)) for broker in brokers))

    async def _ask(self, broker: BrokerInfo, names: list[str]) -> None:
        peer = self._peers.get(broker.broker_id) or self._connect(broker)
        if peer is None:
            return
        self._peers[broker.broker_id] = peer
        wanted = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        request = encode_request(ApiKey.METADATA, _VERSION, 0, peer.client_id, wanted)
        try:
            answer = bytes(await peer.fetch(bytearray(request)))
            if answer[_CORRELATION_ID_BYTES:] == self._answers.get(broker.broker_id):
                return
            self._answers[broker.broker_id] = answer[_CORRELATION_ID_BYTES:]
            response = decode_response(ApiKey.METADATA, _VERSION, answer)[1]
            if response.cluster_id == self._topics.metadata.cluster_id:
                self._topics.learn_leaders(self._later_leaders(response))
        except PykafkaError as error:
            logger.debug("broker %d does not say who leads: %s", broker.broker_id, error)
        except Exception:
            logger.exception("asking broker %d who leads failed", broker.broker_id)

    def _later_leaders(self, response: Any) -> Mapping[TopicPartition, PartitionInfo]:
        """The partitions that have a later leader epoch there than here, and another leader than this broker.

        They keep the version of the older state: whatever this broker may still write over it is refused.
        """
        found: dict[TopicPartition, PartitionInfo] = {}
        known = self._topics.metadata.topics
        for topic in response.topics:
            if topic.name not in known or known[topic.name].topic_id != topic.topic_id:
                continue
            for one in topic.partitions:
                now = known[topic.name].partitions.get(one.partition_index)
                if now is None or one.leader_epoch <= now.leader_epoch or one.leader_id == self._broker_id:
                    continue
                tp = TopicPartition(topic.name, one.partition_index)
                text = "%s: another broker says that %d leads in leader epoch %d; ZooKeeper does not answer"
                logger.warning(text, tp, one.leader_id, one.leader_epoch)
                found[tp] = dataclasses.replace(
                    now,
                    leader=int(one.leader_id),
                    leader_epoch=int(one.leader_epoch),
                    isr=tuple(int(replica) for replica in one.isr_nodes),
                )
        return found

    def close(self) -> None:
        """Close the connections. The next question connects again."""
        peers, self._peers, self._answers = self._peers, {}, {}
        for peer in peers.values():
            peer.close()
