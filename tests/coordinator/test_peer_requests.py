"""Requests of coordinators to other brokers: collected, answered, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from broker.coordinator import peer_requests
from broker.coordinator.peer_requests import PeerRequests
from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.net.peer_connection import PeerConnection
from tests.support.coordinators import settle

OK, LOST = ErrorCode.none, ErrorCode.network_exception


class Peers:
    """Brokers 1 and 2, whose answers wait for `gate`. Broker 9 has no address."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = 1000
        self.made = 0
        self.sent: list[tuple[PeerConnection, list[str]]] = []
        self.fails: Exception | None = None
        self.requests = PeerRequests(self._connect, self._send)

    def _connect(self, broker_id: int) -> PeerConnection:
        if broker_id == 9:
            raise BrokerError(ErrorCode.broker_not_available)
        return PeerConnection("localhost", self.port + broker_id, client_id="test")

    async def _send(self, peer: PeerConnection, items: Sequence[str]) -> Mapping[str, ErrorCode]:
        self.sent.append((peer, list(items)))
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return {item: ErrorCode.producer_fenced if item == "fenced" else OK for item in items if item != "left out"}


async def test_what_is_asked_at_once_travels_together() -> None:
    peers = Peers()
    asked = [peers.requests.ask(broker, item) for broker, item in ((1, "a"), (2, "b"), (1, "fenced"), (1, "left out"))]
    assert await asyncio.gather(*asked) == [OK, OK, ErrorCode.producer_fenced, LOST]
    assert sorted(items for _, items in peers.sent) == [["a", "fenced", "left out"], ["b"]]
    assert await peers.requests.ask(1, "again") is OK
    assert peers.sent[-1][0] in [peer for peer, _ in peers.sent[:-1]], "the connection is kept"
    peers.port = 2000
    assert await peers.requests.ask(1, "moved") is OK
    assert peers.sent[-1][0].port == 2001


async def test_while_a_request_waits_others_go_and_more_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "MOST_CONNECTIONS", 2)
    peers = Peers()
    peers.gate.clear()
    asked = []
    for item in ("a", "b", "c", "d"):
        asked.append(peers.requests.ask(1, item))
        await settle()
    assert [items for _, items in peers.sent] == [["a"], ["b"]]
    asked[3].cancel()
    peers.gate.set()
    assert await asyncio.gather(*asked[:3]) == [OK] * 3
    assert [items for _, items in peers.sent] == [["a"], ["b"], ["c"]]
    assert await peers.requests.ask(1, "e") is OK


async def test_a_failure_is_an_answer_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers()
    peers.fails = ConnectionFailed("refused")
    assert [await peers.requests.ask(1, "a") for _ in range(3)] == [LOST] * 3
    assert caplog.text.count("refused") == 1
    peers.fails = ValueError("a mistake")
    assert await peers.requests.ask(1, "a") is LOST
    assert await peers.requests.ask(9, "a") is LOST
    peers.fails = None
    assert await peers.requests.ask(1, "a") is OK


async def test_what_another_broker_should_be_asked_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[PeerConnection] = []
    monkeypatch.setattr(PeerConnection, "close", lambda peer: closed.insert(0, peer))
    peers = Peers()
    peers.gate.clear()
    asked = {item: peers.requests.ask(1, item) for item in ("moved", "stays")}
    await settle()
    peers.requests.give_up(lambda broker, item: (broker, item) == (1, "moved"), ErrorCode.not_leader_or_follower)
    assert asked["moved"].result() is ErrorCode.not_leader_or_follower
    assert closed == [peers.sent[0][0]], "what has not arrived of the request never will"
    peers.gate.set()
    assert await asked["stays"] is OK


async def test_close_answers_whoever_waits() -> None:
    peers = Peers()
    peers.gate.clear()
    asked = [peers.requests.ask(1, "under way")]
    await settle()
    asked.append(peers.requests.ask(2, "not begun"))
    await peers.requests.close()
    asked.append(peers.requests.ask(1, "late"))
    assert [one.result() for one in asked] == [LOST] * 3
