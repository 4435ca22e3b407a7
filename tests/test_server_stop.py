"""A broker in this process that stops while a part of it fails, or that fails half-way through its start.

Whatever raises, the rest stops: sockets are closed, tasks have ended, directories are unlocked, and the error is told.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.api.check_threads import CheckThreads
from broker.cluster.failure_detector import FailureDetector
from broker.cluster.metadata_cache import MetadataCache
from broker.config.broker_config import BrokerConfig
from broker.coordinator.coordinators import Coordinators
from broker.coordinator.read_index import ReadIndex
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_verifier import TransactionVerifier
from broker.errors import PykafkaError
from broker.log.cleaner import Cleaner
from broker.log.log_directory import CLEAN_MARK, LogDirectory
from broker.net.acceptor import Acceptor
from broker.net.connection import Connection
from broker.replica.fetcher_manager import FetcherManager
from broker.replica.replica_manager import ReplicaManager
from broker.server import BrokerServer
from broker.web.http_listener import HttpListener
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.controller_election import ControllerElection
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.membership import Membership
from broker.zookeeper.metadata_store import Watch

Stop = Callable[[], Awaitable[object] | None]


class Injected(Exception):
    """What a part raises."""


def config(directory: Path) -> BrokerConfig:
    return BrokerConfig(
        log_dirs=(str(directory),),
        listeners=("PLAINTEXT://127.0.0.1:0",),
        metrics_listener="HTTP://127.0.0.1:0",
        standalone=True,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
    )


class Watched(BrokerServer):
    """Notes each part that says how it stops. The part number `fails_to_stop` raises when it has stopped; the start
    raises when part `fails_to_start` has begun."""

    def __init__(self, directory: Path, *, fails_to_stop: int = -1, fails_to_start: int = -1) -> None:
        super().__init__(config(directory))
        self.parts = 0
        self.stopped: list[int] = []
        self._fails_to_stop, self._fails_to_start = fails_to_stop, fails_to_start

    def _on_stop(self, stop: Stop) -> None:
        number, self.parts = self.parts, self.parts + 1

        async def watched() -> None:
            self.stopped.append(number)
            waiting = stop()
            if inspect.isawaitable(waiting):
                await waiting
            if number == self._fails_to_stop:
                raise Injected(f"part {number}")

        super()._on_stop(watched)
        if number == self._fails_to_start:
            raise PykafkaError(f"the start ends at part {number}")


class Client:
    """A connection to the broker, which must end with it."""

    def __init__(self, server: BrokerServer) -> None:
        self.ports = [server._listeners.bound[0].port, int(server.metrics_url.rpartition(":")[2])]
        self._socket = socket.create_connection(("127.0.0.1", self.ports[0]), 30)

    def close(self) -> None:
        self._socket.close()


async def check_ended(directory: Path, ports: list[int]) -> None:
    for _ in range(3):  # what was cancelled ends
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for port in ports:
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))  # nobody listens there
    log_directory = LogDirectory(directory)
    log_directory.lock()
    log_directory.unlock()


PARTS: list[tuple[type, str]] = [
    (FailureDetector, "close"),
    (Coordinators, "disconnect"),
    (TransactionVerifier, "close"),
    (ReadIndex, "close"),
    (TransactionCoordinator, "close"),
    (FetcherManager, "close"),
    (Coordinators, "close"),
    (CheckThreads, "close"),
    (MetadataCache, "close"),
    (ReplicaManager, "close"),
    (Watch, "cancel"),
    (HttpListener, "close"),
    (ClusterStore, "close"),
    (Membership, "stop"),
    (ControllerElection, "stop"),
    (LocalStore, "close"),
    (BrokerServer, "_hand_over"),
    (Acceptor, "close"),
    (Connection, "close"),
    (Cleaner, "close"),
]


@pytest.mark.parametrize(("kind", "method"), PARTS, ids=[f"{kind.__name__}.{name}" for kind, name in PARTS])
async def test_the_rest_stops_when_one_part_fails_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type,
    method: str,
) -> None:
    original = getattr(kind, method)

    def fails(*_: object) -> None:
        raise Injected(method)

    async def fails_when_awaited(*_: object) -> None:
        raise Injected(method)

    server = BrokerServer(config(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(kind, method, fails_when_awaited if inspect.iscoroutinefunction(original) else fails)
        await server.start()
        client = Client(server)
        async with asyncio.timeout(30):
            while not server._listeners.connection_count:
                await asyncio.sleep(0)
        with pytest.raises(Injected):
            await server.stop()
    assert [record for record in caplog.records if record.levelname == "ERROR" and record.exc_info]
    if kind is HttpListener and server._http is not None:
        server._http.close()
    client.close()
    await check_ended(tmp_path, client.ports)
    assert (tmp_path / CLEAN_MARK).exists()


async def test_each_part_may_fail_and_all_are_stopped_in_reverse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = parts = 0
    while number <= parts:
        server = Watched(tmp_path, fails_to_stop=number)
        await server.start()
        client, parts = Client(server), server.parts
        caplog.clear()
        if number < parts:
            with pytest.raises(Injected, match=f"^part {number}$"):
                await server.stop()
            [record] = [record for record in caplog.records if record.levelname == "ERROR"]
            assert record.getMessage().startswith("the broker goes on to stop, though this failed: ")
        else:
            await server.stop()
            assert not [record for record in caplog.records if record.levelname == "ERROR"]
        assert server.stopped == list(reversed(range(parts)))
        client.close()
        await check_ended(tmp_path, client.ports)
        assert (tmp_path / CLEAN_MARK).exists()
        await server.stop()  # once more does nothing
        assert len(server.stopped) == parts
        number += 1
    assert parts > 15


async def test_a_start_that_fails_half_way_stops_what_it_has_begun(tmp_path: Path) -> None:
    whole = Watched(tmp_path)
    await whole.start()
    await whole.stop()
    for number in range(whole.parts):
        server = Watched(tmp_path, fails_to_start=number, fails_to_stop=number)
        with pytest.raises(PykafkaError, match=f"^the start ends at part {number}$"):  # not what failed in the stop
            await server.start()
        assert server.stopped == list(reversed(range(number + 1)))
        await check_ended(tmp_path, [one.port for one in server._listeners.bound])


async def test_a_stop_that_is_cancelled_goes_on_with_the_other_parts(tmp_path: Path) -> None:
    server = BrokerServer(config(tmp_path))
    await server.start()
    client, hanging = Client(server), asyncio.Event()

    async def hangs() -> None:
        hanging.set()
        await asyncio.Event().wait()

    server._on_stop(hangs)
    stopping = asyncio.ensure_future(server.stop())
    await hanging.wait()
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    client.close()
    await check_ended(tmp_path, client.ports)
    assert (tmp_path / CLEAN_MARK).exists()
