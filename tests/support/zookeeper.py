"""A real ZooKeeper for tests: on data of its own, to be killed and started again; and how to make a session expire.

Tests that only need some ZooKeeper take the session's (fixture `zookeeper`) with a chroot of their own.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from kazoo.client import KazooClient

from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from tests.support.waiting import eventually


class ZooKeeperServer:
    """`with ZooKeeperServer() as server:` runs one on a temporary directory (or on `data_dir`, which stays)."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self._temporary = None if data_dir else tempfile.TemporaryDirectory(prefix="zookeeper-")
        self._server = EmbeddedZooKeeper(data_dir or (self._temporary.name if self._temporary else ""))
        self._chroots = itertools.count()

    def __enter__(self) -> ZooKeeperServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def address(self) -> str:
        """`host:port`, the same after a restart."""
        return self._server.address

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def chroot(self) -> str:
        """A connect string below which nobody else is."""
        return f"{self.address}/test-{next(self._chroots)}"

    def kill(self) -> None:
        """SIGKILL; the data stay for `start()`."""
        self._server.kill()

    def start(self) -> None:
        """Start again on the same data and port."""
        self._server.start()


def expire_session(zk: ZooKeeper) -> None:
    """End a client's session behind its back: another connection takes the session over and closes it."""
    session = zk._client.client_id

    def is_over() -> bool:
        # The client reconnects at once; when it does so before the thief's last word, the session is back with it.
        thief = KazooClient(zk.connect.hosts, client_id=session, connection_retry={"max_tries": -1})
        thief.start_async().wait(5)
        thief.stop()
        thief.close()
        try:
            eventually(lambda: zk.session_id not in (0, session[0]), timeout=1.0)
        except AssertionError:
            return False
        return True

    eventually(is_over)
