"""Transactions over partitions and coordinators of three brokers, request by request (P7, KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.api import produce
from broker.client.admin import Admin, ResourceType
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.coordinator import transaction_markers
from broker.coordinator.sharded_coordinator import partition_for
from broker.errors import ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from broker.records.control import EndMarker
from broker.records.record import decode_records
from tests.support.raw_requests import LATEST, Requests, ask_for, batch
from tests.support.raw_transactions import V1, V2, RawProducer, committed_offset
from tests.support.replicating import PARTITIONS, Brokers, brokers
from tests.support.waiting import eventually

OK = ErrorCode.none
EVERYWHERE = [("t", partition) for partition in range(PARTITIONS)]
SETTINGS = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}


@pytest.fixture
async def three(tmp_path: Path, zookeeper: str) -> AsyncIterator[Brokers]:
    async with brokers(tmp_path, f"{zookeeper}/{tmp_path.name}", SETTINGS) as running:
        await asyncio.to_thread(running.create, "t")
        yield running


class Clients:
    """A connection to each broker, and the producers of one transactional id over them."""

    def __init__(self, running: Brokers, ask: dict[int, Requests]) -> None:
        self._running = running
        self.ask = ask

    def leader(self, topic: str, partition: int) -> int:
        metadata = next(iter(self._running.running.values()))._topics.metadata
        info = metadata.partition(TopicPartition(topic, partition))
        return -1 if info is None else info.leader

    def coordinator(self, topic: str, name: str) -> int:
        return self.leader(topic, partition_for(name, 3))

    def find(self, name: str) -> int:
        """The coordinator of a transactional id, as FindCoordinator answers."""
        return int(RawProducer(next(iter(self.ask.values())), name).find().node_id)

    def begin(self, name: str, speaks: Mapping[ApiKey, int] = V1) -> RawProducer:
        """A producer that speaks to its coordinator."""
        eventually(lambda: self.find(name) >= 0)
        producer = RawProducer(self.ask[self.find(name)], name, speaks=speaks)
        eventually(lambda: producer.init().error_code is OK)
        return producer

    def of(self, producer: RawProducer, broker_id: int) -> RawProducer:
        """The same producer, speaking to another broker."""
        return RawProducer(
            self.ask[broker_id],
            producer.transactional_id,
            producer.producer_id,
            producer.epoch,
            speaks=producer.speaks,
        )

    def values(self) -> list[list[bytes | None] | None]:
        """What a reader of committed data gets of every partition; None of one that nobody leads at the moment."""
        return [None if found is None else _values(found) for found in map(self._read, EVERYWHERE)]

    def stable_ends(self) -> list[int | None]:
        """Up to where a reader of committed data may read; None as of `values`."""
        return [None if found is None else int(found.last_stable_offset) for found in map(self._read, EVERYWHERE)]

    def ends(self) -> list[int]:
        return [int(self.ask[self.leader(*tp)].list_offset(*_at_its_end(tp)).offset) for tp in EVERYWHERE]

    def _read(self, tp: tuple[str, int]) -> Any:
        leader, (topic, partition) = self.leader(*tp), tp
        if leader not in self.ask:
            return None
        (found,) = self.ask[leader].fetch([ask_for(topic, partition=partition)], version=12, isolation_level=1)
        if found.error_code is ErrorCode.not_leader_or_follower:  # it does not know yet that it is
            return None
        assert found.error_code is OK, found
        return found


def _at_its_end(tp: tuple[str, int]) -> tuple[str, int, int]:
    return tp[0], LATEST, tp[1]


def _values(found: Any) -> list[bytes | None]:
    aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
    return [record.value for record in decode_records(found.records or b"", aborted=aborted)]


@contextmanager
def clients(running: Brokers) -> Iterator[Clients]:
    with ExitStack() as stack:
        asks = {number: stack.enter_context(Requests(f"127.0.0.1:{port}")) for number, port in running.ports.items()}
        yield Clients(running, asks)


async def test_a_transaction_over_three_brokers_is_verified_and_decided_once(three: Brokers) -> None:
    await asyncio.to_thread(_verified_and_decided, three)


def _verified_and_decided(three: Brokers) -> None:
    with clients(three) as here:
        producer = here.begin("id")
        at_leaders = [here.of(producer, here.leader(*tp)) for tp in EVERYWHERE]
        assert len({here.leader(*tp) for tp in EVERYWHERE}) == 3

        def send(value: bytes) -> set[ErrorCode]:
            return {one.send("t", value, partition=tp[1]) for one, tp in zip(at_leaders, EVERYWHERE, strict=True)}

        def added(*tps: tuple[str, int]) -> bool:
            return producer.add(*tps) == [OK] * len(tps)

        assert send(b"never begun") == {ErrorCode.transaction_abortable}
        assert added(EVERYWHERE[0])
        assert at_leaders[1].send("t", b"elsewhere", partition=1) is ErrorCode.transaction_abortable
        assert added(*EVERYWHERE)
        assert send(b"a") == send(b"b") == {OK}
        assert here.values() == [[], [], []]
        assert producer.end(settled=False) is OK
        eventually(lambda: here.values() == [[b"a", b"b"]] * 3)
        eventually(lambda: send(b"late") == {ErrorCode.transaction_abortable})  # before: the markers are being written

        eventually(lambda: added(*EVERYWHERE))
        assert send(b"c") == {OK}
        assert producer.end(commit=False, settled=False) is OK
        eventually(lambda: here.stable_ends() == [5, 5, 5])
        assert here.values() == [[b"a", b"b"]] * 3

        fenced = here.of(producer, here.leader(*EVERYWHERE[1]))
        assert here.begin("id").epoch > producer.epoch
        assert fenced.send("t", b"zombie", partition=1) is ErrorCode.invalid_producer_epoch


def send_everywhere(here: Clients, producer: RawProducer, value: bytes) -> list[ErrorCode]:
    """Each leader gets the records before any has answered, as from a client with a connection to each."""
    with ThreadPoolExecutor(PARTITIONS) as threads:
        at_leaders = [here.of(producer, here.leader(*tp)) for tp in EVERYWHERE]
        sent = [
            threads.submit(one.send, "t", value, partition=tp[1])
            for one, tp in zip(at_leaders, EVERYWHERE, strict=True)
        ]
        return [one.result() for one in sent]


def send_at_last(producer: RawProducer, tp: tuple[str, int], value: bytes) -> None:
    eventually(lambda: producer.send(tp[0], value, partition=tp[1]) is OK)


async def test_three_leaders_add_their_partitions_to_one_transaction_of_version_2(three: Brokers) -> None:
    def run() -> None:
        with clients(three) as here:
            producer = here.begin("id", V2)
            first = producer.epoch
            for number, commit in enumerate([True, False, True]):
                value = b"%d" % number
                # While the markers of the last transaction are written a leader may say CONCURRENT_TRANSACTIONS.
                codes = send_everywhere(here, producer, value)
                assert set(codes) <= {OK, ErrorCode.concurrent_transactions}
                for tp, code in zip(EVERYWHERE, codes, strict=True):
                    if code is not OK:
                        send_at_last(here.of(producer, here.leader(*tp)), tp, value)
                stale = here.of(producer, here.leader(*EVERYWHERE[number]))
                assert producer.end(commit=commit, settled=False) is OK
                assert producer.epoch == first + number + 1
                late = stale.send("t", b"late", partition=EVERYWHERE[number][1])
                assert late in (ErrorCode.invalid_producer_epoch, OK)  # OK: the marker is on its way, and ends it, too
            eventually(lambda: here.stable_ends() == here.ends())
            assert [[value for value in found or () if value != b"late"] for found in here.values()] == [
                [b"0", b"2"]
            ] * 3

    await asyncio.to_thread(run)


async def test_a_marker_that_the_network_held_does_not_end_the_next_transaction(
    three: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request for each leader is held, as by a link that is cut. The coordinator asks again."""
    held: list[tuple[PeerConnection, Sequence[tuple[TopicPartition, EndMarker]]]] = []
    send = transaction_markers._send

    async def hold(peer: PeerConnection, items: Sequence[tuple[TopicPartition, EndMarker]]) -> Any:
        if len(held) < PARTITIONS - 1:
            held.append((peer, items))
            return {}
        return await send(peer, items)

    for server in three.running.values():
        monkeypatch.setattr(server._coordinators._cluster_markers._peers, "_send", hold)

    def begin_second() -> tuple[Any, RawProducer]:
        with clients(three) as here:
            producer = here.begin("id", V2)
            assert send_everywhere(here, producer, b"first") == [OK] * 3
            assert producer.end(settled=False) is OK
            eventually(lambda: here.values() == [[b"first"]] * 3)
            eventually(lambda: set(send_everywhere(here, producer, b"second")) == {OK})
            return here.stable_ends(), producer

    def abort_second(before: list[int | None], producer: RawProducer) -> None:
        with clients(three) as here:
            assert here.stable_ends() == before
            assert here.values() == [[b"first"]] * 3
            producer.ask = here.ask[here.find("id")]
            assert producer.end(commit=False, settled=False) is OK
            eventually(lambda: here.stable_ends() == here.ends())
            assert here.values() == [[b"first"]] * 3

    stable, producer = await asyncio.to_thread(begin_second)
    assert len(held) == PARTITIONS - 1
    for peer, items in held:
        codes = await send(peer, items)
        assert set(codes.values()) == {ErrorCode.invalid_producer_epoch}
        peer.close()
    await asyncio.to_thread(abort_second, stable, producer)


async def test_no_verification_is_left_when_the_check_of_a_batch_fails_in_a_thread(
    three: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "INLINE_COST", 0)
    left = await asyncio.to_thread(_refused_in_a_thread, three)
    assert left == [{}] * PARTITIONS


def _refused_in_a_thread(three: Brokers) -> list[dict[int, object]]:
    with clients(three) as here:
        producer = here.begin("id")
        elsewhere = next(tp for tp in EVERYWHERE if here.leader(*tp) != here.find("id"))
        with Cluster(ClientSettings.of(three.bootstrap)) as cluster:
            Admin(cluster).alter_configs(ResourceType.TOPIC, "t", {"message.timestamp.before.max.ms": "1000"})
        names = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "base_sequence": 0}
        of_2023 = batch(b"x", **names, transactional=True, codec=Codec.GZIP)

        def is_refused() -> bool:
            answer = here.ask[here.leader(*elsewhere)].produce({elsewhere: of_2023}, transactional_id="id")
            return answer[elsewhere].error_code is ErrorCode.invalid_timestamp

        eventually(is_refused)
        return [
            server._topics.replicas.led[TopicPartition(*tp)]._verifications
            for tp in EVERYWHERE
            for server in three.running.values()
            if TopicPartition(*tp) in server._topics.replicas.led
        ]


async def test_offsets_in_a_transaction_whose_coordinator_is_another_broker(three: Brokers) -> None:
    await asyncio.to_thread(_offsets, three)


def _offsets(three: Brokers) -> None:
    with clients(three) as here:
        producer = here.begin("id")
        here.ask[1].ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "key": "g", "coordinator_keys": ["g"]})
        coordinator = here.coordinator(TRANSACTION_STATE_TOPIC, "id")
        eventually(lambda: here.coordinator(GROUP_OFFSETS_TOPIC, "g") >= 0)
        group = next(name for name in map(str, range(99)) if here.coordinator(GROUP_OFFSETS_TOPIC, name) != coordinator)
        at_group = here.of(producer, here.coordinator(GROUP_OFFSETS_TOPIC, group))
        refused = ErrorCode.transaction_abortable
        eventually(lambda: at_group.commit_offset(group, "t", 7) is refused)
        assert producer.add_offsets(group) is OK
        eventually(lambda: at_group.commit_offset(group, "t", 7) is OK)  # not while its coordinator loads
        assert at_group.commit_offset(group, "t", 8) is OK
        assert committed_offset(at_group.ask, group, "t") == -1
        assert producer.end(settled=False) is OK
        eventually(lambda: committed_offset(at_group.ask, group, "t") == 8)
        eventually(lambda: at_group.commit_offset(group, "t", 9) is refused)


async def test_an_open_transaction_goes_on_with_the_next_coordinator(three: Brokers) -> None:
    def open_one() -> tuple[int, RawProducer]:
        with clients(three) as here:
            producer = here.begin("id")
            assert producer.add(*EVERYWHERE) == [OK] * 3
            sent = [here.of(producer, here.leader(*tp)).send("t", b"a", partition=tp[1]) for tp in EVERYWHERE]
            assert sent == [OK] * 3
            return here.coordinator(TRANSACTION_STATE_TOPIC, "id"), producer

    def commit_it(before: int, producer: RawProducer) -> None:
        with clients(three) as here:
            eventually(lambda: here.find("id") not in (-1, before))
            other = next(number for number in here.ask if number != here.find("id"))
            assert here.of(producer, other).end(settled=False) is ErrorCode.not_coordinator
            at_coordinator = here.of(producer, here.find("id"))
            eventually(lambda: at_coordinator.end(settled=False) is OK)
            eventually(lambda: here.values() == [[b"a"]] * 3)

    before, producer = await asyncio.to_thread(open_one)
    await three.stop(before)
    del three.addresses[before]
    await asyncio.to_thread(commit_it, before, producer)


async def test_a_coordinator_that_does_not_know_that_it_is_deposed_gives_no_old_stable_offsets(three: Brokers) -> None:
    """A copier would continue from them, and copy again what is committed (P7)."""

    def begin() -> tuple[str, int, int]:
        with clients(three) as here:
            asked = here.ask[1]
            eventually(lambda: _found(asked, "g"))
            controller = three.running[1]._topics.metadata.controller_id
            group, zombie = next(
                (name, at)
                for name in map(str, range(99))
                if (at := here.coordinator(GROUP_OFFSETS_TOPIC, name)) != controller
            )
            eventually(lambda: _commit(here.ask[zombie], group, 1) is OK)
            assert _fetch(here.ask[zombie], group, stable=True) == (OK, 1)
            return group, zombie, controller

    def end(group: str, zombie: int, controller: int) -> None:
        partition = partition_for(group, 3)
        others = [number for number in three.running if number != zombie]
        leads = {"partition_index": partition, "replicas": others}
        with clients(three) as here:
            body = {"topics": [{"name": GROUP_OFFSETS_TOPIC, "partitions": [leads]}]}
            assert here.ask[controller].ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body).error_code is OK

            def leader() -> int:
                info = three.running[controller]._topics.metadata.partition(
                    TopicPartition(GROUP_OFFSETS_TOPIC, partition)
                )
                return -1 if info is None else info.leader

            eventually(lambda: leader() in others and _commit(here.ask[leader()], group, 2) is OK)
            assert _fetch(here.ask[leader()], group, stable=True) == (OK, 2)
            assert _fetch(here.ask[zombie], group, stable=True) == (ErrorCode.not_coordinator, -1)
            assert _fetch(here.ask[zombie], group, stable=False) == (OK, 1), "it has heard of its end: test another way"

    async def hears_nothing(changed: object) -> None:
        pass

    group, zombie, controller = await asyncio.to_thread(begin)
    three.running[zombie]._topics._refresh_once = hears_nothing  # type: ignore[method-assign]
    await asyncio.to_thread(end, group, zombie, controller)


def _found(ask: Requests, group: str) -> bool:
    answer = ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]})
    return answer.coordinators[0].error_code is OK


def _commit(ask: Requests, group: str, offset: int) -> ErrorCode:
    row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    body = {"group_id": group, **member, "topics": [{"name": "t", "partitions": [row]}]}
    return ErrorCode(ask.ask(ApiKey.OFFSET_COMMIT, body).topics[0].partitions[0].error_code)


def _fetch(ask: Requests, group: str, *, stable: bool) -> tuple[ErrorCode, int]:
    """The error and the offset of partition 0."""
    body = {"groups": [{"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}]}
    (answer,) = ask.ask(ApiKey.OFFSET_FETCH, {**body, "require_stable": stable}).groups
    found = [one.committed_offset for topic in answer.topics for one in topic.partitions]
    return ErrorCode(answer.error_code), found[0] if found else -1
