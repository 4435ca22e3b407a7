"""A leader that ZooKeeper does not answer learns from the other brokers whether it was deposed (P4, P8)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from broker.cluster.leadership_check import LeadershipCheck
from broker.errors import ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.topic_partition import TopicPartition
from broker.server import BrokerServer
from broker.zookeeper.client import ZooKeeper
from tests.support.raw_requests import Requests, batch
from tests.support.replicating import Brokers, brokers, until

T0 = TopicPartition("t", 0)


def cut_off(server: BrokerServer) -> None:
    """End the broker's session for good: ZooKeeper never answers it again."""
    store = server._store
    assert isinstance(store, ZooKeeper)
    store._client.stop()


def known_leader(cluster: Brokers, broker_id: int) -> int:
    """Of the partition, as that broker knows it."""
    info = cluster.running[broker_id]._topics.metadata.partition(T0)
    assert info is not None
    return info.leader


async def test_a_leader_deposed_while_cut_off_from_zookeeper_follows(tmp_path: Path, zookeeper: str) -> None:
    """Its producers get an error before their time-out of 30 s. Without ZooKeeper for anybody the leader leads on."""
    async with asyncio.timeout(60), brokers(tmp_path, f"{zookeeper}/deposed") as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await until(lambda: all("t" in server._topics.metadata.topics for server in cluster.running.values()))
        with contextlib.ExitStack() as stack:
            clients = {id: stack.enter_context(Requests(f"127.0.0.1:{port}")) for id, port in cluster.ports.items()}

            async def produce(broker_id: int) -> ErrorCode:
                answer = await asyncio.to_thread(clients[broker_id].produce, {T0: batch(b"a")})
                return ErrorCode(answer[T0].error_code)

            old = known_leader(cluster, 1)
            first, second = (broker_id for broker_id in cluster.running if broker_id != old)
            cut_off(cluster.running[old])
            while (code := await produce(old)) is ErrorCode.none:
                pass  # it still leads
            assert code is ErrorCode.not_leader_or_follower
            await until(lambda: known_leader(cluster, first) not in (old, -1))
            new = known_leader(cluster, first)
            assert new in (first, second)
            await until(lambda: known_leader(cluster, new) == new == known_leader(cluster, old))
            assert await produce(new) is ErrorCode.none
            follower, topics = cluster.running[old]._topics.replicas.followed[T0], cluster.running[new]._topics
            await until(lambda: follower.log.log_end_offset == topics.partition(T0).log.log_end_offset)

            for broker_id in (first, second):
                cut_off(cluster.running[broker_id])
            check = LeadershipCheck(
                topics, lambda broker: PeerConnection(broker.host, broker.port, client_id="test"), lambda: False
            )
            await check.ask_all()
            check.close()
            assert await produce(new) is ErrorCode.none
