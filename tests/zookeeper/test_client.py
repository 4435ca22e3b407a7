"""The ZooKeeper client against a real server: nodes, transactions, watches, and what happens when the server dies."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.errors import ConfigError, ConnectionFailed
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.operations import (
    ANY_VERSION,
    MAX_REQUEST_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeStat,
    NoNode,
    NotAccepted,
    NotEmpty,
    SetData,
)
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer, expire_session
from tests.zookeeper.conftest import Connect


def test_a_node_is_created_read_set_and_deleted(zk: ZooKeeper) -> None:
    assert zk.create("/a", b"1") == "/a"
    assert zk.get("/a")[0] == b"1"
    assert zk.set("/a", b"2", version=0).version == 1
    assert zk.get("/a") == (b"2", zk.exists("/a"))
    zk.delete("/a", version=1)
    assert zk.exists("/a") is None


def test_every_refusal_has_its_own_error_and_names_the_path(zk: ZooKeeper) -> None:
    zk.create("/parent/child", parents=True)
    with pytest.raises(NodeExists, match=r"^/parent/child: "):
        zk.create("/parent/child")
    with pytest.raises(NoNode, match=r"^/none/x: "):
        zk.create("/none/x")
    with pytest.raises(NoNode):
        zk.get("/none")
    assert zk.children("/none") == []
    with pytest.raises(BadVersion):
        zk.set("/parent", b"", version=7)
    with pytest.raises(NotEmpty):
        zk.delete("/parent")


def test_sequence_nodes_are_numbered(zk: ZooKeeper) -> None:
    assert [zk.create("/n-", sequence=True) for _ in range(2)] == ["/n-0000000000", "/n-0000000001"]


def test_many_reads_keep_their_order_and_mark_what_is_missing(zk: ZooKeeper) -> None:
    zk.transaction([Create("/many")] + [Create(f"/many/{i}", str(i).encode()) for i in range(1200)])
    found = zk.get_many([f"/many/{i}" for i in range(1201)])
    assert [node[0] if node else None for node in found] == [str(i).encode() for i in range(1200)] + [None]
    assert zk.children_many(["/many/0", "/none", "/"]) == [[], [], ["many"]]


def test_a_transaction_does_all_or_nothing(zk: ZooKeeper) -> None:
    created, set_stat, checked = zk.transaction([Create("/t", b"1"), SetData("/t", b"2", 0), Check("/t", 1)])
    assert (created, checked) == ("/t", True)
    assert isinstance(set_stat, NodeStat)
    assert set_stat.version == 1

    with pytest.raises(BadVersion, match=r"^/t: "):
        zk.transaction([Create("/u"), Delete("/t", 0), Create("/v")])
    with pytest.raises(NodeExists, match=r"^/t: "):
        zk.transaction([Create("/u"), Create("/t")])
    with pytest.raises(NoNode, match=r"^/u/x: "):
        zk.transaction([Create("/u/x"), Create("/u")])
    assert zk.children("/") == ["t"]
    assert zk.transaction([]) == []


def test_what_would_make_zookeeper_close_the_connection_is_not_sent(zk: ZooKeeper, states: queue.Queue[str]) -> None:
    zk.create("/small")
    large, session = b"x" * 1_100_000, zk.session_id
    path = "/" + "é" * 600_000
    for refused in (
        lambda: zk.create("/large", large),
        lambda: zk.set("/small", large),
        lambda: zk.transaction([SetData("/small", large[:600_000])] * 2),
        lambda: zk.create(path),
        lambda: zk.create(f"{path}/child", parents=True),
        lambda: zk.exists(path),
        lambda: zk.get(path),
        lambda: zk.children_many(["/small", path]),
        lambda: zk.create("/small/.."),
    ):
        with pytest.raises(NotAccepted) as caught:
            refused()
        assert len(str(caught.value)) < 500
    assert (zk.session_id, zk.get("/small")[0]) == (session, b"")
    assert states.empty()


def test_what_just_fits_is_sent(connect: Connect, states: queue.Queue[str]) -> None:
    zk = connect()
    room = MAX_REQUEST_BYTES - len(zk.connect.chroot) - len("/a")
    zk.create("/a", b"x" * (room - 48))
    zk.set("/a", b"y" * (room - 21))
    for one, size in ((SetData("/a", b""), 21), (Check("/a", ANY_VERSION), 17)):
        zk.transaction([one] * (MAX_REQUEST_BYTES // (len(f"{zk.connect.chroot}/a") + size)))
    with pytest.raises(NotAccepted):
        zk.set("/a", b"y" * (room - 20))
    assert states.get(timeout=10) == "connected"
    assert states.empty()


def test_many_long_names_are_read(zk: ZooKeeper) -> None:
    paths = [f"/{number}{'n' * 32_000}" for number in range(50)]
    for path in paths:
        zk.create(path, path[:4].encode())
    assert [node and node[0] for node in zk.get_many(paths)] == [path[:4].encode() for path in paths]
    assert zk.children_many([*paths, "/"])[-1] == sorted(path[1:] for path in paths)


def test_the_chroot_is_created_and_hides_what_is_outside(zookeeper: str) -> None:
    name = f"outer-{uuid.uuid4()}"
    with ZooKeeper(f"{zookeeper}/{name}/inner") as inside, ZooKeeper(zookeeper) as outside:
        inside.create("/x", b"seen")
        assert inside.children("/") == ["x"]
        assert outside.get(f"/{name}/inner/x")[0] == b"seen"
        assert inside.transaction([Create("/y")]) == ["/y"]


def test_ephemeral_nodes_end_with_their_session(connect: Connect) -> None:
    one, other = connect(), connect()
    one.create("/mine", ephemeral=True)
    stat = other.exists("/mine")
    assert stat is not None
    assert stat.ephemeral_owner == one.session_id != 0
    one.close()
    assert other.exists("/mine") is None


def test_watches_tell_the_state_at_first_and_after_each_change(connect: Connect) -> None:
    watcher, writer = connect(), connect()
    children: queue.Queue[list[str]] = queue.Queue()
    data: queue.Queue[bytes | None] = queue.Queue()
    watcher.watch_children("/dir", children.put)
    watcher.watch_data("/dir/a", lambda value, _: data.put(value))
    assert children.get(timeout=60) == []
    assert data.get(timeout=60) is None

    writer.create("/dir/a", b"1", parents=True)
    eventually(lambda: children.get(timeout=60) == ["a"])
    assert data.get(timeout=60) == b"1"
    writer.set("/dir/a", b"2")
    assert data.get(timeout=60) == b"2"
    writer.delete("/dir/a")
    assert data.get(timeout=60) is None
    assert children.get(timeout=60) == []


def test_a_cancelled_watch_is_silent(zk: ZooKeeper) -> None:
    cancelled: list[list[str]] = []
    seen: queue.Queue[list[str]] = queue.Queue()
    watch = zk.watch_children("/", cancelled.append)
    zk.watch_children("/", seen.put)
    seen.get(timeout=60)
    watch.cancel()
    calls = len(cancelled)
    zk.create("/x")
    assert seen.get(timeout=60) == ["x"]
    assert len(cancelled) == calls


def test_callbacks_may_call_back_and_one_that_fails_does_not_stop_the_others(
    zk: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    seen: queue.Queue[tuple[str, list[str]]] = queue.Queue()

    def failing(_: list[str]) -> None:
        raise ValueError("of the test")

    zk.watch_children("/", failing)
    zk.watch_children("/", lambda names: seen.put((threading.current_thread().name, zk.children("/"))))
    assert seen.get(timeout=60) == ("metadata-events", [])
    assert "a callback about a change" in caplog.text


def test_a_malformed_connect_string_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect=localhost:x"):
        ZooKeeper("localhost:x")


def test_an_unreachable_server_is_named_with_the_reason_and_the_setting() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: Connection refused.*set zookeeper\.connect"):
        ZooKeeper("127.0.0.1:1", session_timeout_ms=1000, connection_timeout_ms=200).start()


@pytest.fixture
def states() -> Iterator[queue.Queue[str]]:
    """The states of sessions, as the client logs them."""
    seen: queue.Queue[str] = queue.Queue()

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("ZooKeeper session at "):
                seen.put(text.rpartition(": ")[2])

    logger, handler = logging.getLogger("broker.zookeeper.client"), Note()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield seen
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_a_killed_server_is_waited_for_and_watches_and_ephemeral_nodes_live_on(
    server: ZooKeeperServer, states: queue.Queue[str]
) -> None:
    with ZooKeeper(server.chroot(), session_timeout_ms=10_000) as zk:
        assert states.get(timeout=60) == "connected"
        children: queue.Queue[list[str]] = queue.Queue()
        zk.create("/mine", ephemeral=True)
        zk.watch_children("/", children.put)
        assert children.get(timeout=60) == ["mine"]
        session = zk.session_id

        server.kill()
        assert states.get(timeout=60) == "suspended"
        assert not zk.connected
        calling = threading.Thread(target=zk.create, args=("/made-during-the-outage",))
        calling.start()
        server.start()
        assert states.get(timeout=60) == "connected"
        calling.join(60)

        assert zk.session_id == session
        eventually(lambda: children.get(timeout=60) == ["made-during-the-outage", "mine"])


def test_an_expired_session_is_told_and_followed_by_a_new_one(zk: ZooKeeper, states: queue.Queue[str]) -> None:
    children: queue.Queue[list[str]] = queue.Queue()
    zk.create("/mine", ephemeral=True)
    zk.watch_children("/", children.put)
    assert children.get(timeout=60) == ["mine"]
    session = zk.session_id

    expire_session(zk)

    seen = [states.get(timeout=60)]
    while seen[-1] != "connected" or "lost" not in seen:
        seen.append(states.get(timeout=60))
    assert zk.session_id not in (0, session)
    eventually(lambda: children.get(timeout=60) == [])  # the watch went on in the new session
    zk.create("/again")
    eventually(lambda: children.get(timeout=60) == ["again"])


def test_a_call_without_an_answer_ends_at_its_time_limit(server: ZooKeeperServer) -> None:
    with ZooKeeper(server.address, 2000, connection_timeout_ms=60_000, operation_timeout_s=0.5) as zk:
        server.kill()
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match=f"no answer from ZooKeeper at {server.address} within 0.5 s"):
            zk.get("/x")
        assert time.monotonic() - began < 20  # 30 s without the limit


def test_a_patient_client_waits_for_a_server_that_stands_still(
    server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ZooKeeper(server.address, session_timeout_ms=60_000, operation_timeout_s=0.2) as zk,
        ThreadPoolExecutor(1) as pool,
    ):
        zk.create("/x", b"there")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            zk.patient = True
            reading = pool.submit(zk.get, "/x")
            eventually(lambda: "no answer from ZooKeeper" in caplog.text and "waiting for it" in caplog.text)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert reading.result(60)[0] == b"there"


def test_a_patient_client_ends_its_calls_when_it_is_closed(server: ZooKeeperServer) -> None:
    zk = ZooKeeper(server.address, 4000, connection_timeout_ms=60_000, operation_timeout_s=0.2).start()
    zk.patient = True
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(zk.get, "/x")
        zk.close()
        with pytest.raises(ConnectionFailed, match="is closed"):
            reading.result(60)


def test_close_does_not_hang_when_the_server_is_dead_or_silent(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo waits for two thirds of the session for a silent one."""
    monkeypatch.setattr("broker.zookeeper.client._CLOSE_TIMEOUT_S", 0.5)
    dead = ZooKeeper(server.address, session_timeout_ms=60_000).start()
    silent = ZooKeeper(server.address, session_timeout_ms=60_000).start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    began = time.monotonic()
    silent.close()
    assert time.monotonic() - began < 20
    server.kill()
    began = time.monotonic()
    dead.close()
    dead.close()
    assert time.monotonic() - began < 20


def test_close_ends_calls_under_way_in_other_threads(server: ZooKeeperServer) -> None:
    zk = ZooKeeper(server.address, session_timeout_ms=4000, connection_timeout_ms=60_000).start()
    server.kill()
    errors: queue.Queue[Exception] = queue.Queue()

    def call() -> None:
        try:
            zk.get("/x")
        except ConnectionFailed as error:
            errors.put(error)

    calling = threading.Thread(target=call)
    calling.start()
    zk.close()
    assert "is closed" in str(errors.get(timeout=60))
    calling.join(60)
