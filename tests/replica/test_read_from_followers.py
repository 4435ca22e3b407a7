"""Consumers that read from the replica in their rack (KIP-392): three brokers, each in a rack of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.fetcher import Fetcher, fetch_together
from broker.client.producer import Producer
from broker.config.broker_config import BrokerConfig
from broker.config.setting_groups import RACK_AWARE_SELECTOR
from broker.errors import ConfigError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import PartitionInfo
from tests.support.fetch_leader import FetchLeader
from tests.support.raw_requests import ask_for, fetch_body, records_of
from tests.support.replicating import IDS, Brokers, brokers, until

SETTINGS = {
    "broker.rack": "rack-{id}",
    "replica.selector.class": RACK_AWARE_SELECTOR,
    # A follower would learn the last high watermark only after this time, if leaders did not send it at once.
    "replica.fetch.wait.max.ms": "20000",
}
TP = TopicPartition("t", 0)


class Racks:
    """The brokers, and which of them lead and follow partition 0 of topic t."""

    def __init__(self, cluster: Brokers) -> None:
        self.cluster = cluster
        state = cluster.running[1]._topics.metadata.topics["t"].partitions[0]
        self.leader, self.epoch = state.leader, state.leader_epoch
        self.near, self.far = (broker_id for broker_id in IDS if broker_id != state.leader)
        """Two followers."""

    def bytes_out(self, broker_id: int) -> int:
        """What a broker has sent to consumers."""
        return self.cluster.running[broker_id]._topics.replicas.metrics["t"].bytes_out

    async def ask(self, broker_id: int, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        host, _, port = self.cluster.addresses[broker_id]["PLAINTEXT"].rpartition(":")
        peer = PeerConnection(host, int(port), client_id="test")
        try:
            return await peer.request(api, version, fields)
        finally:
            peer.close()

    async def fetch(
        self, broker_id: int, offset: int = 0, *, rack: str = "", version: int = 12, epoch: int = -1, **body: int
    ) -> Any:
        fields = {**fetch_body([ask_for("t", offset, epoch=epoch)], **body), "rack_id": rack}
        answer = await self.ask(broker_id, ApiKey.FETCH, version, fields)
        return answer.responses[0].partitions[0]


@asynccontextmanager
async def racks(directory: Path, zookeeper: str, **changed: str) -> AsyncIterator[Racks]:
    own = {key.replace("_", "."): value for key, value in changed.items()}
    async with brokers(directory, zookeeper, {**SETTINGS, **own}) as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await asyncio.to_thread(cluster.produce, "t", 300)
        yield Racks(cluster)


async def test_the_farthest_live_follower_that_has_the_offset_is_chosen(tmp_path: Path) -> None:
    with_four = FetchLeader(tmp_path)
    with_four.lead(0, info=PartitionInfo(1, 0, (1, 2, 3, 4, 5), (1, 2, 3, 4)))
    with_four.put(0, *[b"x"] * 10)
    partition = with_four.partitions[TP]
    assert partition.preferred_read_replica(0, {2, 3, 4, 5}) == -1  # nobody has fetched yet
    partition.fetched_by(2, 5)
    partition.fetched_by(3, 8)
    partition.fetched_by(4, 8, log_start_offset=3)
    partition.fetched_by(5, 10)
    everywhere = {2, 3, 4, 5, 6}
    assert [partition.preferred_read_replica(offset, everywhere) for offset in (2, 4, 8, 9)] == [3, 4, 4, -1]
    assert [partition.preferred_read_replica(offset, {2}) for offset in (5, 6)] == [2, -1]
    assert partition.preferred_read_replica(0, {5}) == -1  # it is not in the ISR
    partition.suspect(3, with_four.clock.monotonic() + 1)
    assert partition.preferred_read_replica(2, everywhere) == 2


async def test_leaders_send_consumers_to_the_follower_in_their_rack(tmp_path: Path, zookeeper: str) -> None:
    async with racks(tmp_path, f"{zookeeper}/racks") as found:
        rack = f"rack-{found.near}"
        answer = await found.fetch(found.leader, rack=rack, max_wait=20_000)
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.none, found.near)
        assert (answer.records or b"", answer.high_watermark) == (b"", 100)
        # In a session, too, until the consumer goes there.
        body = {**fetch_body([ask_for("t")], session_epoch=0), "rack_id": rack}
        first = await found.ask(found.leader, ApiKey.FETCH, 12, body)
        assert first.responses[0].partitions[0].preferred_read_replica == found.near
        for elsewhere in (f"rack-{found.leader}", "nowhere", ""):
            answer = await found.fetch(found.leader, rack=elsewhere)
            assert (answer.preferred_read_replica, len(records_of(answer)) > 0) == (-1, True)
        answer = await found.fetch(found.leader, offset=101, rack=rack)
        assert answer.error_code is ErrorCode.offset_out_of_range  # no follower has it either

        await until(lambda: found.cluster.running[found.near]._topics.replicas.followed[TP].high_watermark == 100)
        answer = await found.fetch(found.near, rack=rack, epoch=found.epoch)
        assert (answer.error_code, answer.high_watermark, answer.preferred_read_replica) == (ErrorCode.none, 100, -1)
        assert len(records_of(answer)) == 100
        assert (await found.fetch(found.near, 100)).error_code is ErrorCode.none
        assert (await found.fetch(found.near, 101)).error_code is ErrorCode.offset_not_available
        assert (await found.fetch(found.near, -1)).error_code is ErrorCode.offset_out_of_range
        assert (await found.fetch(found.near, version=10)).error_code is ErrorCode.not_leader_or_follower
        assert (await found.fetch(found.near, epoch=found.epoch + 1)).error_code is ErrorCode.unknown_leader_epoch
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [asked]}]}
        offsets = await found.ask(found.near, ApiKey.LIST_OFFSETS, 7, fields)
        assert offsets.topics[0].partitions[0].error_code is ErrorCode.not_leader_or_follower

        # A fetch that waits at a follower ends with a record of the leader, and with the follower's role.
        waiting = asyncio.ensure_future(found.fetch(found.near, 100, max_wait=20_000))
        async with asyncio.timeout(60):
            await asyncio.to_thread(found.cluster.produce, "t", 1)
            assert [record.offset for record in records_of(await waiting)] == [100]
        session = {**fetch_body([ask_for("t", 101)], session_epoch=0, max_wait=20_000), "rack_id": rack}
        waiting = asyncio.ensure_future(found.ask(found.near, ApiKey.FETCH, 12, session))
        async with asyncio.timeout(60):
            await asyncio.to_thread(found.cluster.produce, "t", 1)
            (partition,) = (await waiting).responses[0].partitions
            assert [record.offset for record in records_of(partition)] == [101]


async def test_committed_reads_at_a_follower_end_at_its_last_stable_offset(tmp_path: Path, zookeeper: str) -> None:
    def begin(producer: Producer) -> None:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"of a transaction", partition=0).result(60)

    async with racks(tmp_path, f"{zookeeper}/racks-committed") as found:
        with Producer(found.cluster.bootstrap, {"transactional.id": "x"}) as producer:
            await asyncio.to_thread(begin, producer)
            await until(lambda: found.cluster.running[found.near]._topics.replicas.followed[TP].high_watermark == 101)
            answer = await found.fetch(found.near, isolation_level=1)
            assert (answer.high_watermark, answer.last_stable_offset, len(records_of(answer))) == (101, 100, 100)
            async with asyncio.timeout(60):
                waiting = asyncio.ensure_future(found.fetch(found.near, 100, isolation_level=1, max_wait=20_000))
                await asyncio.to_thread(producer.abort_transaction)
                answer = await waiting
            assert (answer.high_watermark, answer.last_stable_offset) == (102, 102)
            assert [aborted.first_offset for aborted in answer.aborted_transactions] == [100]


async def test_clients_read_in_their_rack_and_at_the_leader_when_that_broker_is_gone(
    tmp_path: Path, zookeeper: str
) -> None:
    def read(consumer: Consumer, count: int) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < count:
            offsets += [record.offset for record in consumer.poll(1)]
        return offsets

    def read_with_confluent(consumer: confluent_kafka.Consumer, count: int) -> list[int | None]:
        offsets: list[int | None] = []
        while len(offsets) < count:
            for message in consumer.consume(count, 1):
                assert message.error() is None, message.error()
                offsets.append(message.offset())
        return offsets

    def fetch_jointly(cluster: Cluster) -> int:
        while not (found := fetch_together(cluster, {TP: 0}, max_bytes=1 << 20)):
            pass  # the brokers are busy, and the connection takes longer than a joint fetch waits for it
        return found[TP].next_offset

    def fetch(cluster: Cluster, offset: int) -> int:
        with Fetcher(cluster, TP) as fetcher:
            return fetcher.fetch(offset).next_offset

    async with racks(tmp_path, f"{zookeeper}/racks-clients") as found:
        properties = {"client.rack": f"rack-{found.near}", "auto.offset.reset": "earliest"}
        settings = ClientSettings.of(found.cluster.bootstrap, properties)
        confluent = confluent_kafka.Consumer(
            {
                "bootstrap.servers": found.cluster.bootstrap,
                "group.id": "racks",
                "enable.auto.commit": False,
                **properties,
            }
        )
        try:
            with Consumer(settings) as consumer, Cluster(settings) as cluster:
                confluent.assign([confluent_kafka.TopicPartition("t", 0, 0)])
                consumer.assign([TP])
                async with asyncio.timeout(60):
                    assert await asyncio.to_thread(read, consumer, 100) == list(range(100))
                    assert await asyncio.to_thread(fetch_jointly, cluster) == 100
                    assert await asyncio.to_thread(fetch, cluster, 50) == 100
                    assert await asyncio.to_thread(read_with_confluent, confluent, 100) == list(range(100))
                assert (found.bytes_out(found.leader), found.bytes_out(found.far)) == (0, 0)
                assert found.bytes_out(found.near) > 350 * 200
                await found.cluster.stop(found.near)
                await asyncio.to_thread(found.cluster.produce, "t", 300)
                async with asyncio.timeout(60):
                    assert await asyncio.to_thread(read, consumer, 100) == list(range(100, 200))
                    assert await asyncio.to_thread(read_with_confluent, confluent, 100) == list(range(100, 200))
                    assert await asyncio.to_thread(fetch, cluster, 100) == 200
                assert found.bytes_out(found.leader) > 300 * 200
        finally:
            await asyncio.to_thread(confluent.close)


async def test_without_a_selector_leaders_serve_all_racks(tmp_path: Path, zookeeper: str) -> None:
    async with racks(tmp_path, f"{zookeeper}/no-selector", replica_selector_class="") as found:
        answer = await found.fetch(found.leader, rack=f"rack-{found.near}")
        assert (answer.preferred_read_replica, len(records_of(answer))) == (-1, 100)


@pytest.mark.parametrize("value", ["RackAware", "org.example.Selector"])
def test_an_unknown_selector_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="is not one of org.apache.kafka.common.replica.LeaderSelector, org"):
        BrokerConfig.load(None, {"replica.selector.class": value})
