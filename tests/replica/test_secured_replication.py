"""Brokers that know each other by passwords or certificates: they replicate, and nobody else can pass for one."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.config.broker_config import BrokerConfig
from broker.errors import AuthenticationFailed, ConfigError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.net.peer_security import PeerSecurity
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.security.plain import PlainLogin
from tests.support.raw_requests import ask_for, fetch_body
from tests.support.replicating import IDS, PARTITIONS, Brokers, brokers, until
from tests.support.secured import Certificates

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def no_handshake_is_left() -> Iterator[None]:
    """A broker that stops leaves a TLS handshake that is under way to the garbage collector: asyncio tells of none
    before its end. Here other brokers connect until the last one stops."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


USERS = {"kafka": "brokers-s3cret", "alice": "alice-s3cret", "root": "root-s3cret"}
MODULE = "listener.name.brokers.plain.sasl.jaas.config"


def module(password: str) -> str:
    users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
    return f'a.PlainLoginModule required username="kafka" password="{password}" {users};'


def settings(certificates: Certificates) -> dict[str, str]:
    return {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL",
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": "PLAIN",
        "super.users": "User:root",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.location": str(certificates.ca),
        MODULE: module(USERS["kafka"]),
    }


def certified(certificates: Certificates, keystore: Path) -> dict[str, str]:
    """Of a broker that is known by its certificate."""
    own = x509.load_pem_x509_certificate(certificates.server.read_bytes())
    return {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.brokers.ssl.client.auth": "required",
        "super.users": f"User:{own.subject.rfc4514_string()}",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.location": str(certificates.ca),
    }


def leaders(cluster: Brokers) -> list[int]:
    metadata = next(iter(cluster.running.values()))._topics.metadata
    return [info.leader for info in metadata.topics["t"].partitions.values()]


async def change_controller(cluster: Brokers) -> int:
    """Stop the controller; its id, when another one has taken over."""
    stopped = next(iter(cluster.running.values()))._topics.metadata.controller_id
    await cluster.stop(stopped)
    others = [server._topics for server in cluster.running.values()]
    await until(lambda: all(one.metadata.controller_id in cluster.running for one in others))
    await until(lambda: cluster.isrs("t") == [tuple(sorted(cluster.running))] * PARTITIONS)
    return stopped


def write_transactions(bootstrap: str, number: int) -> None:
    """One over all partitions that is committed, and one that is aborted."""
    with Producer(bootstrap, {"transactional.id": "t"}) as producer:
        producer.init_transactions()
        for value in (b"%d" % number, b"aborted"):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send("t", value, partition=partition)
            producer.abort_transaction() if value == b"aborted" else producer.commit_transaction()


def committed(bootstrap: str) -> dict[int, list[bytes | None]]:
    """The values of each partition, from its start to its last stable offset."""
    found: dict[int, list[bytes | None]] = {partition: [] for partition in range(PARTITIONS)}
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(bootstrap, settings) as consumer:
        tps = [TopicPartition("t", partition) for partition in found]
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(1.0):
                found[record.partition].append(record.value)
    return found


def connect(cluster: Brokers, broker_id: int, listener: str, user: str = "") -> PeerConnection:
    host, _, port = cluster.addresses[broker_id][listener].rpartition(":")
    security = PeerSecurity()
    if user:
        stores = cluster.running[broker_id]._peers.stores
        security = PeerSecurity(listener, stores, PlainLogin("PLAIN", user, USERS[user]))
    return PeerConnection(host, int(port), client_id="test", security=security)


async def fetch_as_replica(peer: PeerConnection, topic: str, replica: int, offset: int) -> Any:
    wanted = ask_for(topic, offset, epoch=0)
    wanted["partitions"][0]["last_fetched_epoch"] = -1
    body = {**fetch_body([wanted], max_wait=0), "replica_id": replica}
    return (await peer.request(ApiKey.FETCH, 12, body)).responses[0].partitions[0]


async def end_transaction(peer: PeerConnection, topic: str) -> Any:
    topics = [{"name": topic, "partition_indexes": [0]}]
    marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": False, "topics": topics}
    answer = await peer.request(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [{**marker, "coordinator_epoch": 0}]})
    return answer.markers[0].topics[0].partitions[0].error_code


async def verify(peer: PeerConnection) -> Any:
    asked: Mapping[str, Any] = {
        "transactional_id": "t",
        "producer_id": 1,
        "producer_epoch": 0,
        "verify_only": True,
        "topics": [],
    }
    return (await peer.request(ApiKey.ADD_PARTITIONS_TO_TXN, 4, {"transactions": [asked]})).error_code


async def change_password(peer: PeerConnection, user: str) -> Any:
    """Set the SCRAM credential of a user."""
    made = {"name": user, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
    body = {"deletions": [], "upsertions": [made]}
    return (await peer.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)).results[0].error_code


async def test_brokers_replicate_over_tls_and_only_they_act_as_brokers(
    tmp_path: Path, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates.make(tmp_path)
    async with brokers(tmp_path, f"{zookeeper}/secured-replication", settings(certificates)) as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await asyncio.to_thread(cluster.produce, "t", 300)
        assert cluster.isrs("t") == [IDS] * PARTITIONS
        leader = cluster.running[1]._topics.metadata.topics["t"].partitions[0].leader
        replica = next(broker_id for broker_id in IDS if broker_id != leader)
        partition = cluster.running[leader]._topics.partition(TopicPartition("t", 0))
        assert partition.in_sync is not None
        for listener, user in (("CLIENTS", ""), ("BROKERS", "alice")):
            peer = connect(cluster, leader, listener, user)
            before = partition.in_sync.followers[replica].log_end_offset
            answer = await fetch_as_replica(peer, "t", replica, 3)
            assert (answer.error_code, answer.high_watermark) == (ErrorCode.topic_authorization_failed, -1)
            assert partition.in_sync.followers[replica].log_end_offset == before
            assert await end_transaction(peer, "t") is ErrorCode.cluster_authorization_failed
            assert await verify(peer) is ErrorCode.cluster_authorization_failed
            assert await change_password(peer, "kafka") is ErrorCode.cluster_authorization_failed
            assert await change_password(peer, "bob") is ErrorCode.none
            peer.close()
        for user in ("kafka", "root"):
            peer = connect(cluster, leader, "BROKERS", user)
            assert (await fetch_as_replica(peer, "t", replica, 100)).error_code is ErrorCode.none
            assert await verify(peer) is ErrorCode.none
            assert await change_password(peer, "kafka") is ErrorCode.none
            peer.close()

        await asyncio.to_thread(write_transactions, cluster.bootstrap, 0)
        stranger = await change_controller(cluster)
        await asyncio.to_thread(write_transactions, cluster.bootstrap, 1)
        caplog.clear()
        await cluster.start(stranger, **{MODULE: module("wrong")})
        refused = [text for text in caplog.messages if "refused the login" in text]
        await until(lambda: sum("refused the login" in text for text in caplog.messages) >= 2)
        refused = [text for text in caplog.messages if "refused the login" in text]
        assert "user 'kafka' by PLAIN" in refused[0]
        assert f"are username and password in {MODULE} right?" in refused[0]
        assert not any(secret in text for secret in (*USERS.values(), 'wrong"') for text in caplog.messages)
        assert len(refused) == 2  # one line for each leader, however often it tries
        assert sum("login by PLAIN failed" in text for text in caplog.messages) < 20
        others = ",".join(cluster.addresses[one]["CLIENTS"] for one in cluster.running if one != stranger)
        await asyncio.to_thread(write_transactions, others, 2)
        assert stranger not in leaders(cluster)
        found = await asyncio.to_thread(committed, others)
        assert [values[-3:] for values in found.values()] == [[b"0", b"1", b"2"]] * PARTITIONS
        await cluster.stop(stranger)
        await cluster.start(stranger, **{MODULE: module(USERS["kafka"])})
        await until(lambda: cluster.isrs("t") == [IDS] * PARTITIONS)


async def test_brokers_that_know_each_other_by_certificates_replicate_and_write_transactions(
    tmp_path: Path, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Certificates.make(tmp_path)
    async with brokers(tmp_path, f"{zookeeper}/certified-brokers", certified(files, files.server)) as cluster:
        await asyncio.to_thread(cluster.create, "t")
        assert sorted(leaders(cluster)) == list(IDS)
        await asyncio.to_thread(write_transactions, cluster.bootstrap, 0)
        assert cluster.isrs("t") == [IDS] * PARTITIONS
        host, _, port = cluster.addresses[1]["BROKERS"].rpartition(":")
        for keystore, refusal in ((files.client, None), (files.stranger, "does not trust the client's certificate")):
            security = PeerSecurity.of(BrokerConfig.load(None, certified(files, keystore)))
            peer = PeerConnection(host, int(port), client_id="test", security=security)
            if refusal is None:
                assert await end_transaction(peer, "t") is ErrorCode.cluster_authorization_failed
                answer = await fetch_as_replica(peer, "t", 2, 0)
                assert answer.error_code is ErrorCode.topic_authorization_failed
            else:
                with pytest.raises(AuthenticationFailed, match=refusal):
                    await end_transaction(peer, "t")
            peer.close()

        stranger = await change_controller(cluster)
        await asyncio.to_thread(write_transactions, cluster.bootstrap, 1)
        caplog.clear()
        await cluster.start(stranger, ssl_keystore_location=str(files.stranger))
        await until(lambda: sum("does not trust the client's certificate" in text for text in caplog.messages) >= 2)
        others = ",".join(cluster.addresses[one]["CLIENTS"] for one in cluster.running if one != stranger)
        await asyncio.to_thread(write_transactions, others, 2)
        in_sync = tuple(sorted(set(IDS) - {stranger}))
        assert cluster.isrs("t") == [in_sync] * PARTITIONS
        assert stranger not in leaders(cluster)
        assert await asyncio.to_thread(committed, others) == {key: [b"0", b"1", b"2"] for key in range(PARTITIONS)}
        assert not any(record.exc_info for record in caplog.records)
        await cluster.stop(stranger)
        await cluster.start(stranger)
        await until(lambda: cluster.isrs("t") == [IDS] * PARTITIONS)


async def test_a_broker_that_could_not_talk_to_the_others_does_not_start(tmp_path: Path, zookeeper: str) -> None:
    cluster = Brokers(tmp_path, f"{zookeeper}/silent-broker")
    try:
        await cluster.start(1)
        with pytest.raises(ConfigError, match="brokers cannot log in to each other on listener SASL_PLAINTEXT: set "):
            await cluster.start(2, listeners="SASL_PLAINTEXT://127.0.0.1:0")
    finally:
        await cluster.stop(1)
