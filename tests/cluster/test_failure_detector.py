"""Whom the failure detector suspects, with peers on real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from broker.cluster.failure_detector import FailureDetector
from broker.net.peer_connection import PeerConnection
from broker.replica.cluster_metadata import BrokerInfo


class Peer:
    """A broker that answers ApiVersions, and may be killed and started again on its port."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.heard = 0
        """Answers that have reached the detector."""
        self.answers = True
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As a machine does with a process that dies: it closes the listener, then the connections."""
        assert self._server is not None
        self._server.close()
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Break the connections, and accept others."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if self.answers:
                    writer.write(struct.pack(">i4shi", 10, frame[4:8], 0, 0))  # no error, an empty list
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class HeardConnection(PeerConnection):
    """Counts the answers that its user has got: only after one does the detector wait for the end of the connection."""

    def __init__(self, peer: Peer, broker: BrokerInfo) -> None:
        super().__init__(broker.host, broker.port, client_id="t")
        self._peer = peer

    async def closed(self) -> None:
        self._peer.heard += 1
        await super().closed()


def info(peer: Peer, epoch: int = 1) -> BrokerInfo:
    return BrokerInfo.plaintext(2, "127.0.0.1", peer.port, epoch=epoch)


@asynccontextmanager
async def watching(peer: Peer) -> AsyncIterator[FailureDetector]:
    detector = FailureDetector(1, lambda broker: HeardConnection(peer, broker))
    detector.update_brokers({1: BrokerInfo.plaintext(1, "127.0.0.1", 1), 2: info(peer)})
    try:
        async with asyncio.timeout(60):
            yield detector
    finally:
        await detector.close()
        await peer.kill()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def test_a_broker_whose_process_died_is_suspected_until_it_answers_again() -> None:
    peer, changes = Peer(), list[tuple[int, bool]]()
    await peer.start()
    async with watching(peer) as detector:
        detector.subscribe(lambda broker_id: changes.append((broker_id, broker_id in detector.suspected)))
        await until(lambda: peer.heard == 1)
        peer.drop()  # a connection that breaks is no death
        await until(lambda: peer.heard == 2)
        assert changes == []
        await peer.kill()
        await until(lambda: 2 in detector.suspected)
        peer.answers = False
        await peer.start()
        await until(lambda: peer.connections == 3)
        assert 2 in detector.suspected  # it accepts connections, and does not answer
        peer.answers = True
        peer.drop()
        await until(lambda: not detector.suspected)
    assert changes == [(2, True), (2, False)]


async def test_a_broker_that_never_answered_is_not_suspected() -> None:
    peer = Peer()
    await peer.start()
    await peer.kill()
    async with watching(peer) as detector:
        (task,) = detector._watches.values()
        done, _ = await asyncio.wait([task], timeout=0.1)
        assert not done
        assert not detector.suspected


async def test_a_broker_that_registers_again_or_no_more_is_not_suspected() -> None:
    peer, changes = Peer(), list[int]()
    await peer.start()
    async with watching(peer) as detector:
        await until(lambda: peer.heard)
        await peer.kill()
        await until(lambda: 2 in detector.suspected)
        detector.subscribe(changes.append)
        detector.update_brokers({2: info(peer, epoch=2)})
        assert not detector.suspected
        await peer.start()
        await until(lambda: peer.connections == 2)
        detector.update_brokers({})
        assert changes == [2]
        assert not detector._watches
