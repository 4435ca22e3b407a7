"""Reassignments on three real brokers: records, leaders and logs move, whoever dies meanwhile (KIP-455)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.client.producer import Producer
from broker.errors import ErrorCode
from broker.log.log import Log
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import PartitionInfo
from broker.zookeeper.znodes import REASSIGN_PARTITIONS, decode_reassignment, encode_reassignment
from tests.support.console import answer_of
from tests.support.follower_log import stored
from tests.support.raw_requests import Requests
from tests.support.replicating import IDS, Brokers, brokers, until

T0 = TopicPartition("t", 0)


def controller(cluster: Brokers) -> int:
    (found,) = (broker_id for broker_id in cluster.running if metadata(cluster, broker_id).controller_id == broker_id)
    return found


def metadata(cluster: Brokers, broker_id: int | None = None) -> Any:
    server = next(iter(cluster.running.values())) if broker_id is None else cluster.running[broker_id]
    return server._topics.metadata


def states(cluster: Brokers, topic: str = "t", broker_id: int | None = None) -> dict[int, PartitionInfo]:
    """As this broker knows them, or the first one."""
    found = metadata(cluster, broker_id).topics.get(topic)
    return {} if found is None else dict(found.partitions)


def log_of(cluster: Brokers, broker_id: int, tp: TopicPartition = T0) -> Log | None:
    return cluster.running[broker_id]._logs.get(tp)


async def ask(cluster: Brokers, broker_id: int, api: ApiKey, body: Mapping[str, Any]) -> Any:
    def blocking() -> Any:
        with Requests(f"127.0.0.1:{cluster.ports[broker_id]}") as requests:
            return requests.ask(api, {"timeout": 30_000, **body})

    return await asyncio.to_thread(blocking)


async def create(cluster: Brokers, topic: str, assignment: Sequence[Sequence[int]], **config: str) -> None:
    def blocking() -> None:
        with Requests(cluster.bootstrap.split(",")[0]) as requests:
            (made,) = requests.create_topics(
                {
                    "name": topic,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(assignment)],
                    "configs": [{"name": key.replace("_", "."), "value": value} for key, value in config.items()],
                }
            )
            assert made.error_code is ErrorCode.none, made

    await asyncio.to_thread(blocking)
    await until(lambda: all(topic in metadata(cluster, id).topics for id in cluster.running))


def fill(bootstrap: str, topic: str, size: int) -> None:
    with Producer(bootstrap, {"acks": "all"}) as producer:
        for sent in [producer.send(topic, b"x" * 50_000) for _ in range(size // 50_000)]:
            sent.result(60)


async def alter_broker(cluster: Brokers, broker_id: int, name: str, value: str) -> None:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resource = {"resource_type": 4, "resource_name": str(broker_id), "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    answer = await ask(cluster, broker_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
    assert [ErrorCode(one.error_code) for one in answer.responses] == [ErrorCode.none]


async def delete(cluster: Brokers, topic: str) -> None:
    def blocking() -> None:
        with Requests(cluster.bootstrap.split(",")[0]) as requests:
            assert requests.delete(topic) is ErrorCode.none

    await asyncio.to_thread(blocking)


async def alter(
    cluster: Brokers, targets: Mapping[int, Sequence[int] | None], broker_id: int | None = None, topic: str = "t"
) -> list[ErrorCode] | ErrorCode:
    """The code of each partition, or that of the whole answer."""
    body = {
        "allow_replication_factor_change": True,
        "topics": [
            {"name": topic, "partitions": [{"partition_index": i, "replicas": ids} for i, ids in targets.items()]}
        ],
    }
    answer = await ask(cluster, broker_id or controller(cluster), ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
    if answer.error_code is not ErrorCode.none:
        return ErrorCode(answer.error_code)
    return [ErrorCode(one.error_code) for one in answer.responses[0].partitions]


async def running(cluster: Brokers, topics: Sequence[Mapping[str, Any]] | None = None) -> dict[int, tuple[Any, ...]]:
    """(replicas, adding, removing) of each partition that is being reassigned."""
    answer = await ask(cluster, controller(cluster), ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": topics})
    assert answer.error_code is ErrorCode.none
    return {
        one.partition_index: (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }


async def test_replicas_leaders_and_logs_move(tmp_path: Path, zookeeper: str) -> None:
    async with brokers(tmp_path, f"{zookeeper}/moves") as cluster:
        await create(cluster, "t", [(1, 2), (2, 1), (3, 1)])
        await asyncio.to_thread(cluster.produce, "t", 600)
        first = log_of(cluster, 1)
        assert first is not None
        records = stored(first)
        assert await alter(cluster, {0: (2, 3), 1: (3, 2), 2: (2,)}) == [ErrorCode.none] * 3
        wanted = [((2, 3), (), ()), ((3, 2), (), ()), ((2,), (), ())]
        await until(lambda: [one.assignment for one in states(cluster).values()] == wanted)
        assert [one.leader for one in states(cluster).values()] == [2, 2, 2], "a leader that stays goes on"
        await until(lambda: not any(log_of(cluster, 1, TopicPartition("t", i)) for i in range(3)))
        await until(lambda: log_of(cluster, 3, TopicPartition("t", 2)) is None)
        for broker_id in (2, 3):
            log = log_of(cluster, broker_id)
            assert log is not None
            assert stored(log) == records
        assert await running(cluster) == {}
        await until(lambda: not any(one.adding for one in states(cluster, broker_id=3).values()))
        counted = {id: server._topics.replicas.metrics["t"] for id, server in cluster.running.items()}
        moved = counted[3].reassignment_bytes_in
        assert moved == sum(log.size for i in (0, 1) for log in cluster.logs("t", i)[:1])
        assert sum(one.reassignment_bytes_out for one in counted.values()) >= moved
        await asyncio.to_thread(cluster.produce, "t", 30)
        assert counted[3].reassignment_bytes_in == moved, "it is an ordinary follower now"


async def test_what_kafka_refuses_is_refused(tmp_path: Path, zookeeper: str) -> None:
    async with brokers(tmp_path, f"{zookeeper}/refused") as cluster:
        await create(cluster, "t", [(1, 2), (1, 2)])
        refused, none = ErrorCode.invalid_replica_assignment, ErrorCode.no_reassignment_in_progress
        for target, code in (((), refused), ((1, 1), refused), ((1, 9), refused), ((-1, 1), refused), (None, none)):
            assert await alter(cluster, {0: target, 1: (1, 2)}) == [code, ErrorCode.none]
        assert await alter(cluster, {7: (1,)}) == [ErrorCode.unknown_topic_or_partition]
        assert await alter(cluster, {0: (1,)}, topic="u") == [ErrorCode.unknown_topic_or_partition]
        other = next(id for id in cluster.running if id != controller(cluster))
        assert await alter(cluster, {0: (1, 3)}, other) is ErrorCode.not_controller
        answer = await ask(cluster, other, ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None})
        assert answer.error_code is ErrorCode.not_controller
        assert [one.assignment for one in states(cluster).values()] == [((1, 2), (), ())] * 2


@pytest.mark.parametrize("victim", ["controller", "source", "target"])
async def test_a_reassignment_survives_the_loss_of_a_broker(tmp_path: Path, zookeeper: str, victim: str) -> None:
    """The broker is away while the reassignment runs, or it comes too late: the outcome is the same."""
    async with brokers(tmp_path, f"{zookeeper}/survives-{victim}") as cluster:
        others = [id for id in cluster.running if id != controller(cluster)]
        source, target = (controller(cluster), others[0]) if victim == "controller" else others
        third = next(id for id in cluster.running if id not in (source, target))
        await create(cluster, "t", [(source, third)] * 3)
        await asyncio.to_thread(cluster.produce, "t", 900)
        assert await alter(cluster, dict.fromkeys(range(3), (target, third))) == [ErrorCode.none] * 3
        gone = target if victim == "target" else source
        await cluster.stop(gone)
        await until(lambda: len({metadata(cluster, id).controller_id for id in cluster.running} - {-1, gone}) == 1)
        await cluster.start(gone)
        done = ((target, third), (), ())
        await until(lambda: [one.assignment for one in states(cluster).values()] == [done] * 3)
        await until(lambda: [len(one.isr) for one in states(cluster).values()] == [2] * 3)
        await until(lambda: not any(log_of(cluster, source, TopicPartition("t", i)) for i in range(3)))
        await asyncio.to_thread(cluster.produce, "t", 90)
        for index in range(3):
            logs = [log_of(cluster, id, TopicPartition("t", index)) for id in (target, third)]
            one, other = (log for log in logs if log is not None)
            assert stored(one) == stored(other)
            assert one.log_end_offset == 330


async def test_a_topic_is_deleted_for_good_while_a_broker_is_away(tmp_path: Path, zookeeper: str) -> None:
    async with brokers(tmp_path, f"{zookeeper}/deleted") as cluster:
        for topic in ("t", "again", "kept"):
            await create(cluster, topic, [(1, 2, 3)])
        await asyncio.to_thread(cluster.produce, "t", 1)
        kept = metadata(cluster).topics["kept"].topic_id
        await cluster.stop(3)
        for topic in ("t", "again"):
            await delete(cluster, topic)
        assert set(metadata(cluster, 1).topics) & {"t", "again"} == set()
        await create(cluster, "again", [(2, 1)])
        await cluster.start(3)
        found = cluster.running[3]._logs.logs()
        assert {tp: log.topic_id for tp, log in found.items() if not tp.topic.startswith("_")} == {
            TopicPartition("kept", 0): kept
        }
        assert (tmp_path / "3" / "kept-0").exists()
        assert not (tmp_path / "3" / "t-0").exists()
        await until(lambda: all(3 in metadata(cluster, id).brokers for id in cluster.running))
        await create(cluster, "t", [(3, 1, 2)])
        await asyncio.to_thread(cluster.produce, "t", 1)


@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_a_throttled_reassignment_waits_and_ordinary_followers_do_not(
    tmp_path: Path, zookeeper: str, side: str
) -> None:
    """KIP-73. At one byte per second the first fetch, also that of an in-sync replica, takes all of the rate."""
    settings = {"replica.fetch.max.bytes": "20000", f"{side}.replication.throttled.rate": "1"}
    async with brokers(tmp_path, f"{zookeeper}/throttled-{side}", settings) as cluster:
        await create(cluster, "t", [(1, 2)] * 3, **{f"{side}_replication_throttled_replicas": "0:1,0:3"})
        await create(cluster, "other", [(1, 3)] * 3)
        await asyncio.to_thread(cluster.produce, "t", 1500)  # in-sync replicas never wait
        source = log_of(cluster, 1)
        assert source is not None
        assert await alter(cluster, {0: (1, 3)}) == [ErrorCode.none]
        await until(lambda: log_of(cluster, 3) is not None)
        for _ in range(10):
            await asyncio.to_thread(cluster.produce, "t", 3)
            await asyncio.to_thread(cluster.produce, "other", 3)
        target = log_of(cluster, 3)
        assert target is not None
        assert target.log_end_offset < source.log_end_offset / 2
        assert await running(cluster) == {0: ((1, 3, 2), (3,), (2,))}
        for broker_id in IDS:
            await alter_broker(cluster, broker_id, f"{side}.replication.throttled.rate", "1000000000")
        await until(lambda: states(cluster)[0].assignment == ((1, 3), (), ()))
        assert stored(target) == stored(source)


async def test_the_console_moves_replicas(tmp_path: Path, zookeeper: str) -> None:
    settings = {"leader.replication.throttled.rate": "0", "replica.fetch.max.bytes": "1000"}
    async with brokers(tmp_path, f"{zookeeper}/console", settings) as cluster:
        await create(cluster, "t", [(1,), (2,)])
        at = ("--bootstrap-server", cluster.bootstrap)

        async def reassign(*options: str) -> list[dict[str, Any]]:
            rows = json.loads(await asyncio.to_thread(answer_of, "topics", "reassign", *options, "--json", *at))
            assert isinstance(rows, list)
            return rows

        assert await reassign("--topic", "t", "--replication-factor", "2", "--wait") == []
        assert [one.assignment[0] for one in states(cluster).values()] == [(1, 3), (2, 1)]
        assert await reassign("--topic", "t", "--brokers", "2,3", "--wait") == []
        assert [one.assignment[0] for one in states(cluster).values()] == [(2, 3), (3, 2)]
        await create(cluster, "slow", [(1, 2)], leader_replication_throttled_replicas="*")
        await asyncio.to_thread(fill, cluster.bootstrap, "slow", 2_000_000)
        (row,) = await reassign("--topic", "slow", "--brokers", "3,2")
        assert row == {"topic": "slow", "partition": 0, "replicas": "2,3,1", "adding": "3", "removing": "1"}
        assert await reassign("--topic", "t") == []
        assert await reassign() == [row]
        assert await reassign("--topic", "slow", "--cancel") == []
        assert states(cluster, "slow")[0].assignment == ((2, 1), (), ()), "in the order of the target, as in Kafka"


async def test_a_request_of_kafkas_old_tools_is_followed_and_deleted_at_the_end(tmp_path: Path, zookeeper: str) -> None:
    """`/admin/reassign_partitions`. AlterPartitionReassignments takes precedence."""
    settings = {"leader.replication.throttled.rate": "0", "replica.fetch.max.bytes": "20000"}
    async with brokers(tmp_path, f"{zookeeper}/old-tools", settings) as cluster:
        await create(cluster, "t", [(1, 2)] * 3)
        await create(cluster, "slow", [(1, 2)] * 3, leader_replication_throttled_replicas="*")
        await asyncio.to_thread(cluster.produce, "slow", 900)
        store = cluster.running[1]._store
        assert store is not None
        asked = {
            TopicPartition("t", 0): (2, 3),
            TopicPartition("t", 1): (3,),
            TopicPartition("t", 2): (1, 9),
            TopicPartition("gone", 0): (1,),
            TopicPartition("slow", 1): (1, 3),
        }
        await asyncio.to_thread(store.create, REASSIGN_PARTITIONS, encode_reassignment(asked))
        await until(lambda: [one.assignment[0] for one in states(cluster).values()] == [(2, 3), (3,), (1, 2)])
        await until(
            lambda: decode_reassignment(store.get(REASSIGN_PARTITIONS)[0]) == {TopicPartition("slow", 1): (1, 3)}
        )
        assert await running(cluster) == {1: ((1, 3, 2), (3,), (2,))}
        assert await alter(cluster, {1: None}, topic="slow") == [ErrorCode.none]
        await until(lambda: store.exists(REASSIGN_PARTITIONS) is None)
        await asyncio.to_thread(store.create, REASSIGN_PARTITIONS, b"not json")
        await until(lambda: store.exists(REASSIGN_PARTITIONS) is None)
        assert await running(cluster) == {}
        assert states(cluster, "slow")[1].assignment == ((1, 2), (), ())
