"""Frames that nobody should send, thousands of them, to a running broker: it neither ends nor hangs nor grows."""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.hostile_requests import GROUP, TOPIC, HostileRequests
from tests.support.randomness import seeded
from tests.support.raw_requests import SERVED, Requests, ask_for, fetch_body
from tests.support.scrape import Scrape
from tests.support.waiting import eventually

CONNECTIONS = 8
FRAMES_AT_ONCE = 6
SILENCE_S = 0.5
"""A connection that says nothing for so long has a request that waits, or waits for the rest of one; it is given up."""
GROWTH_BYTES = 50 << 20
ANSWERED = "kafka_network_requestmetrics_requests_total"
OPEN = "kafka_server_socketservermetrics_connection_count"
CLOSED = "kafka_server_socketservermetrics_connection_close_total"


@pytest.fixture
def target(broker_factory: BrokerFactory) -> Iterator[BrokerProcess]:
    broker = broker_factory(
        {
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "socket.request.max.bytes": "1000000",
            "socket.send.buffer.bytes": "65536",
            "metrics.listener": "HTTP://127.0.0.1:0",
        }
    )
    with Requests(broker.bootstrap) as ask:
        ask.create(TOPIC, 3)
        for key_type in (0, 1):
            ask.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": [GROUP], "key_type": key_type})
    yield broker
    assert broker.running, broker.output[-3000:]
    assert "Traceback" not in broker.output, broker.output[broker.output.index("Traceback") :][:6000]


def memory(broker: BrokerProcess) -> int:
    """Resident bytes."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


class Attacker:
    """One connection after another: each is used until the broker closes it or it falls silent."""

    def __init__(self, broker: BrokerProcess, dice: random.Random, corpus: list[bytes]) -> None:
        self._address = ("127.0.0.1", broker.port)
        self._hostile = HostileRequests(dice)
        self._corpus = corpus
        self.connections = 0
        self.socket = self._connect()
        self.heard = time.monotonic()

    def _connect(self) -> socket.socket:
        self.connections += 1
        made = socket.create_connection(self._address, timeout=60)
        made.setblocking(False)
        return made

    def attack(self) -> None:
        """Send more frames; what the socket does not take is a frame cut off."""
        frames = b"".join(self._hostile.broken(self._corpus) for _ in range(FRAMES_AT_ONCE))
        try:
            self.socket.send(frames)
        except BlockingIOError:
            pass
        except ConnectionError:
            self.reconnect()

    def listen(self) -> None:
        """Take what the broker says; when it hung up begin anew."""
        self.heard = time.monotonic()
        try:
            if not self.socket.recv(1 << 18):
                self.reconnect()
        except ConnectionError:
            self.reconnect()

    def reconnect(self) -> None:
        self.socket.close()
        self.socket = self._connect()
        self.heard = time.monotonic()


def attack(target: BrokerProcess, frames: int, seed: int) -> None:
    """Until the broker has answered `frames` frames, or closed a connection for them."""
    dice = seeded(seed)
    makes = HostileRequests(dice)
    corpus = [makes.sound(api, version) for api, (low, high) in SERVED.items() for version in range(low, high + 1)] * 3
    attackers = [Attacker(target, dice, corpus) for _ in range(CONNECTIONS)]
    handled_before = handled(Scrape(target.metrics_url))
    with Requests(target.bootstrap) as good:
        looked = time.monotonic()
        while True:
            readable, _, _ = select.select([one.socket for one in attackers], [], [], 0.01)
            now = time.monotonic()
            for one in attackers:
                if one.socket in readable:
                    one.listen()
                    one.attack()
                elif now > one.heard + SILENCE_S:
                    one.reconnect()
                    one.attack()
            if now > looked + 0.5:
                looked = now
                asked = time.monotonic()
                assert good.metadata(TOPIC).topics[0].error_code is not ErrorCode.unknown_server_error
                assert time.monotonic() - asked < 25
                if handled(Scrape(target.metrics_url)) - handled_before >= frames:
                    break
    for one in attackers:
        one.socket.close()


def handled(scrape: Scrape) -> float:
    """Frames that were answered, and those that ended their connection."""
    return scrape.total(ANSWERED) + scrape.total(CLOSED) - scrape.total(CLOSED, reason="client")


@pytest.mark.parametrize("frames", [20_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_hostile_frames_do_no_harm(target: BrokerProcess, frames: int) -> None:
    open_before = Scrape(target.metrics_url).total(OPEN)
    attack(target, 5000, seed=1)  # what is loaded and made once: kio's classes of every API and version are some 100 MB
    before = memory(target)
    attack(target, frames, seed=frames)
    eventually(lambda: Scrape(target.metrics_url).total(OPEN) <= open_before)
    with Requests(target.bootstrap) as good:
        good.metadata(TOPIC)
    assert memory(target) - before < GROWTH_BYTES


def test_two_hundred_clients_that_send_halves_or_take_nothing_hold_nobody_up(target: BrokerProcess) -> None:
    with Requests(target.bootstrap) as good:
        for _ in range(40):
            good.put(TOPIC, b"x" * 900_000)
        before = memory(target)
        stuck = [Requests(target.bootstrap) for _ in range(200)]
        for number, one in enumerate(stuck):
            if number % 2:
                one.socket.sendall(struct.pack(">i", 900_000) + b"\0" * 1000)  # and no more
            else:
                one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for _ in range(30):  # 36 MB each, of which nothing is read
                    one.send(ApiKey.FETCH, fetch_body([ask_for(TOPIC, max_bytes=50 << 20)]), 12)
        asked = time.monotonic()
        for _ in range(20):
            good.put(TOPIC, b"y")
        assert time.monotonic() - asked < 25
        assert memory(target) - before < GROWTH_BYTES
        for one in stuck:
            one.close()
        eventually(lambda: Scrape(target.metrics_url).total(OPEN) <= 1)


def test_answers_that_two_hundred_clients_do_not_take_are_one_each(target: BrokerProcess) -> None:
    """Of a hundred answers of 60 KB that each asks for, one or two lie in memory; the rest is not even made."""
    with Requests(target.bootstrap) as good:
        for number in range(20):
            good.create(f"wide-{number}", 50)
        before = memory(target)
        stuck = [Requests(target.bootstrap) for _ in range(200)]
        for one in stuck:
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(100):
                one.send(ApiKey.METADATA, {"topics": None})
        asked = time.monotonic()
        good.put(TOPIC, b"y")
        assert time.monotonic() - asked < 25
        assert memory(target) - before < GROWTH_BYTES
        for one in stuck:
            one.close()
        eventually(lambda: Scrape(target.metrics_url).total(OPEN) <= 1)
