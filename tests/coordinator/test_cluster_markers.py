"""Markers and verification for partitions and transactions of other brokers, which a script answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_markers import ClusterMarkerWriter
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.coordinator.transaction_verifier import TransactionVerifier
from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_request, decode_response, encode_request, encode_response
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker
from broker.replica.cluster_metadata import PartitionInfo
from tests.support.coordinators import settle
from tests.support.transactions import MemoryMarkers, ready

HERE, NO_LEADER = 1, -1
T0, T1, T2, T3, GONE = (TopicPartition(topic, n) for topic, n in [("t", 0), ("t", 1), ("t", 2), ("t", 3), ("gone", 0)])
STATE = TopicPartition("__transaction_state", 0)
MARKER = EndMarker(7, 3, ControlType.COMMIT, 9)
PRODUCER = ProducerIdAndEpoch(7, 3)


class Cluster:
    """Leaders by partition, and the other brokers' answers. `script` gives the fields of a response."""

    def __init__(self) -> None:
        self.leaders = {T0: HERE, T1: 2, T2: 2, T3: NO_LEADER, STATE: 3}
        self.asked: list[tuple[int, Request]] = []
        self.script: Callable[[Request], Awaitable[Mapping[str, Any]]] = self.written
        self.code = ErrorCode.none
        self.refreshed: list[str] = []
        self.malformed: set[str] = set()
        self.found: dict[TopicPartition, int] = {}
        self.on_change: list[Callable[[Collection[str]], None]] = []
        self.local = MemoryMarkers()
        self.topics = cast(
            MetadataCache,
            SimpleNamespace(
                metadata=SimpleNamespace(partition=self._info),
                refresh=self._refresh,
                is_malformed=self.malformed.__contains__,
                add_change_listener=self.on_change.append,
            ),
        )
        self.markers = ClusterMarkerWriter(self.topics, HERE, self.local, self._connect)
        transactions = cast(TransactionCoordinator, SimpleNamespace(partition_for=lambda name: 0))
        self.verifier = TransactionVerifier(self.topics, HERE, transactions, self._connect)

    def move(self, tp: TopicPartition, leader: int) -> None:
        self.leaders[tp] = leader
        for on_change in self.on_change:
            on_change([tp.topic])

    def _info(self, tp: TopicPartition) -> PartitionInfo | None:
        return PartitionInfo(self.leaders[tp], 0, (1, 2, 3), (1, 2, 3)) if tp in self.leaders else None

    async def _refresh(self, names: Collection[str]) -> None:
        self.refreshed += names
        self.leaders |= self.found

    def _connect(self, broker_id: int) -> PeerConnection:
        async def request(api: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
            asked = decode_request(encode_request(api, version, 1, "test", fields)[4:])
            self.asked.append((broker_id, asked))
            return decode_response(api, version, encode_response(asked, await self.script(asked))[4:])[1]

        return cast(PeerConnection, SimpleNamespace(address=broker_id, request=request, close=lambda: None))

    async def written(self, request: Request) -> Mapping[str, Any]:
        return {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {"partition_index": index, "error_code": self.code} for index in topic.partition_indexes
                            ],
                        }
                        for topic in marker.topics
                    ],
                }
                for marker in request.body.markers
            ]
        }

    async def verified(self, request: Request) -> Mapping[str, Any]:
        results = [
            {
                "transactional_id": asked.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {"partition_index": index, "partition_error_code": self.code} for index in topic.partitions
                        ],
                    }
                    for topic in asked.topics
                ],
            }
            for asked in request.body.transactions
        ]
        return {"error_code": ErrorCode.none, "results_by_transaction": results}

    async def code_of(self, tp: TopicPartition, marker: EndMarker = MARKER) -> ErrorCode:
        """How the writing of a marker ends."""
        try:
            waiting = self.markers.write(tp, marker)
            if waiting is not None:
                await waiting
        except BrokerError as error:
            return error.code
        return ErrorCode.none


async def test_markers_go_to_the_leaders_and_those_of_one_broker_together() -> None:
    cluster = Cluster()
    aborted = EndMarker(8, 0, ControlType.ABORT, 9)
    codes = await asyncio.gather(
        cluster.code_of(T0), cluster.code_of(T1), cluster.code_of(T2), cluster.code_of(T1, aborted)
    )
    assert list(codes) == [ErrorCode.none] * 4
    assert cluster.local.written == [(T0, MARKER)]
    ((broker_id, request),) = cluster.asked
    assert broker_id == 2
    sent = [
        (
            EndMarker(m.producer_id, m.producer_epoch, ControlType(m.transaction_result), m.coordinator_epoch),
            [TopicPartition(topic.name, index) for topic in m.topics for index in topic.partition_indexes],
        )
        for m in request.body.markers
    ]
    assert sent == [(MARKER, [T1, T2]), (aborted, [T1])]


async def test_the_version_of_transactions_is_told_where_it_matters() -> None:
    cluster = Cluster()
    assert await cluster.code_of(T1) is ErrorCode.none
    assert await cluster.code_of(T1, MARKER._replace(transaction_version=2)) is ErrorCode.none
    (_, old), (_, new) = cluster.asked
    assert (old.version, new.version) == (1, 2)  # brokers of earlier releases may lack version 2
    assert [marker.transaction_version for marker in new.body.markers] == [2]


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        (ErrorCode.transaction_coordinator_fenced, ErrorCode.transaction_coordinator_fenced),
        (ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas),
        # Another broker's metadata may be old: only this broker's say that a topic was deleted.
        (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower),
    ],
)
async def test_the_error_of_a_leader_is_passed_on(code: ErrorCode, seen: ErrorCode) -> None:
    cluster = Cluster()
    cluster.code = code
    assert await cluster.code_of(T1) is seen


async def test_without_a_leader_or_an_answer_the_marker_is_written_later() -> None:
    cluster = Cluster()
    assert await cluster.code_of(T3) is ErrorCode.leader_not_available

    async def broken(request: Request) -> Mapping[str, Any]:
        raise ConnectionFailed("broken")

    cluster.script = broken
    assert await cluster.code_of(T1) is ErrorCode.network_exception


async def test_a_partition_that_is_not_known_is_given_up_only_if_zookeeper_does_not_know_it() -> None:
    cluster = Cluster()
    cluster.malformed.add("gone")
    assert await cluster.code_of(GONE) is ErrorCode.not_leader_or_follower, "it exists, but cannot be read now"
    cluster.malformed.clear()
    assert await cluster.code_of(GONE) is ErrorCode.unknown_topic_or_partition
    assert cluster.refreshed == ["gone", "gone"]
    cluster.found = {GONE: 2}
    assert await cluster.code_of(GONE) is ErrorCode.not_leader_or_follower
    assert await cluster.code_of(GONE) is ErrorCode.none


async def test_when_the_leader_changes_nobody_waits_for_the_old_one() -> None:
    cluster = Cluster()
    never = asyncio.Event()

    async def silent(request: Request) -> Mapping[str, Any]:
        await never.wait()
        return {}

    cluster.script = silent
    marker = asyncio.ensure_future(cluster.code_of(T1))
    stays = asyncio.ensure_future(cluster.code_of(T2))
    verdict = asyncio.ensure_future(ready(cluster.verifier.ask("id", PRODUCER, {T0})))
    await settle()
    cluster.move(T1, 3)
    cluster.move(STATE, 2)
    assert await marker is ErrorCode.not_leader_or_follower
    assert await verdict is ErrorCode.not_coordinator
    assert not stays.done()
    await cluster.markers.close()
    await cluster.verifier.close()
    assert await stays is ErrorCode.network_exception


async def test_the_coordinator_of_a_transaction_is_asked_whether_it_has_the_partition() -> None:
    cluster = Cluster()
    cluster.script = cluster.verified
    assert not cluster.verifier.is_local("id")
    assert await ready(cluster.verifier.ask("id", PRODUCER, {T1})) is ErrorCode.none
    cluster.code = ErrorCode.transaction_abortable
    assert await ready(cluster.verifier.ask("id", PRODUCER, {T1})) is ErrorCode.transaction_abortable
    broker_id, request = cluster.asked[-1]
    (asked,) = request.body.transactions
    assert (broker_id, asked.transactional_id, asked.producer_id, asked.producer_epoch) == (3, "id", *PRODUCER)
    assert asked.verify_only
    cluster.move(STATE, HERE)
    assert cluster.verifier.is_local("id")
    del cluster.leaders[STATE]
    assert cluster.verifier.is_local("id"), "nobody has a transaction yet"


async def test_the_coordinator_is_asked_to_add_all_partitions_of_a_request_at_once() -> None:
    cluster = Cluster()
    cluster.script = cluster.verified
    assert await ready(cluster.verifier.ask("id", PRODUCER, {T1, T2}, adds=True)) is ErrorCode.none
    ((broker_id, request),) = cluster.asked
    (asked,) = request.body.transactions
    assert (broker_id, asked.verify_only) == (3, False)
    assert {TopicPartition(t.name, index) for t in asked.topics for index in t.partitions} == {T1, T2}


@pytest.mark.parametrize(
    ("codes", "seen"),
    [
        ({1: ErrorCode.operation_not_attempted, 2: ErrorCode.unknown_topic_or_partition}, "unknown_topic_or_partition"),
        ({1: ErrorCode.none}, "network_exception"),
        ({}, "network_exception"),
    ],
)
async def test_what_was_not_added_has_its_cause(codes: Mapping[int, ErrorCode], seen: str) -> None:
    """An answer that lacks a partition says nothing of any."""
    cluster = Cluster()

    async def answer(request: Request) -> Mapping[str, Any]:
        rows = [{"partition_index": index, "partition_error_code": code} for index, code in codes.items()]
        result = {"transactional_id": "id", "topic_results": [{"name": "t", "results_by_partition": rows}]}
        return {"error_code": ErrorCode.none, "results_by_transaction": [result]}

    cluster.script = answer
    assert await ready(cluster.verifier.ask("id", PRODUCER, {T1, T2}, adds=True)) is ErrorCode[seen]
