"""The fetchers of this broker, one for each leader of partitions that it follows (Kafka's ReplicaFetcherManager)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping

from broker.background_tasks import BackgroundTasks
from broker.config.broker_config import BrokerConfig
from broker.net.peer_connection import PeerConnection
from broker.net.peer_security import PeerSecurity
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo
from broker.replica.follower import Follower
from broker.replica.replica_fetcher import ReplicaFetcher
from broker.replica.replication_quota import ReplicationQuota

logger = logging.getLogger(__name__)

Address = tuple[str, int]


class FetcherManager:
    """Gives each follower to the fetcher of its leader. Belongs to the event loop."""

    def __init__(
        self, config: BrokerConfig, peers: PeerSecurity, on_stale: Callable[[str], None], quota: ReplicationQuota
    ) -> None:
        """`on_stale(topic)`: a leader says that this broker's metadata of a topic are old. `quota` is for all leaders
        together."""
        self._config = config
        self._peers = peers
        self._quota = quota
        self._on_stale = on_stale
        self._addresses: dict[int, Address] = {}
        self._followed: dict[int, dict[TopicPartition, tuple[Follower, uuid.UUID]]] = {}
        """By leader. A leader whose address is not known has no fetcher yet."""
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._tasks = BackgroundTasks()
        self._broker_epoch = -1
        """Of this broker's registration."""
        self._is_closed = False

    def update_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Connect to other addresses where brokers have some. One that is not registered now may be back soon: what it
        leads is still fetched from where it was (P8)."""
        if self._config.broker_id in brokers:
            self._broker_epoch = brokers[self._config.broker_id].epoch
        for broker_id, broker in brokers.items():
            address = self._address(broker)
            if address is None or self._addresses.get(broker_id) == address:
                continue
            self._addresses[broker_id] = address
            self._stop(broker_id)
            for follower, topic_id in self._followed.get(broker_id, {}).values():
                self._fetch(follower, topic_id)

    def add(self, follower: Follower, topic_id: uuid.UUID) -> None:
        """Fetch for `follower`, in place of an older one of the same partition and leader."""
        self._followed.setdefault(follower.leader, {})[follower.tp] = follower, topic_id
        if follower.leader in self._addresses and not self._is_closed:
            self._fetch(follower, topic_id)

    def remove(self, follower: Follower) -> None:
        """Fetch for `follower` no more. Idempotent."""
        followed = self._followed.get(follower.leader, {})
        if follower.tp not in followed or followed[follower.tp][0] is not follower:
            return
        _, topic_id = followed.pop(follower.tp)
        if not followed:
            del self._followed[follower.leader]
            self._stop(follower.leader)
        elif follower.leader in self._fetchers:
            self._fetchers[follower.leader].remove(follower.tp, topic_id)

    async def close(self) -> None:
        """Stop all fetchers, for good, and wait for their tasks. Idempotent."""
        self._is_closed = True
        self._followed.clear()
        for leader in list(self._fetchers):
            self._stop(leader)
        await self._tasks.close()

    def _fetch(self, follower: Follower, topic_id: uuid.UUID) -> None:
        fetcher = self._fetchers.get(follower.leader)
        if fetcher is None:
            broker_id, (host, port) = self._config.broker_id, self._addresses[follower.leader]
            timeout_s = self._config.replica_socket_timeout_ms / 1000
            client_id = f"broker-{broker_id}-fetcher"
            peer = PeerConnection(host, port, client_id=client_id, security=self._peers, timeout_s=timeout_s)
            fetcher = self._fetchers[follower.leader] = ReplicaFetcher(
                broker_id, peer, self._config, self._tasks, self._on_stale, lambda: self._broker_epoch, self._quota
            )
        fetcher.add(follower, topic_id)

    def _stop(self, leader: int) -> None:
        if (fetcher := self._fetchers.pop(leader, None)) is not None:
            fetcher.stop()

    def _address(self, broker: BrokerInfo) -> Address | None:
        """Where brokers talk to `broker`."""
        endpoint = broker.endpoint(self._peers.listener)
        if endpoint is not None:
            return endpoint.host, endpoint.port
        if broker.broker_id != self._config.broker_id:
            text = "cannot replicate from broker %d: it has no listener %s, which brokers use among themselves here"
            logger.error(text, broker.broker_id, self._peers.listener)
        return None
