"""A blocking ZooKeeper client over kazoo (a MetadataStore); no module of the broker but this and session_login.py
imports kazoo.

- A call is sent again after a lost connection or session, until it is answered or `operation_timeout_s` has passed.
- The client reconnects for ever. Watches and listeners survive the loss of a session.

Sending a write again has a consequence: if the connection broke after the write was applied, the second attempt can
raise NodeExists, NoNode or BadVersion although the write was ours. Callers tell by the node's content (an id, an owner,
a version). After ConnectionFailed it is unknown whether a write was applied or will be.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat

from broker.errors import ConnectionFailed
from broker.security.login import Login
from broker.zookeeper.connect_string import ConnectString
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.multi_read import GetChildrenOfMany, GetDataOfMany, MultiRead
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
    NotEmpty,
    Operation,
    SetData,
    ZooKeeperError,
    check_path,
    check_size,
    shown,
)
from broker.zookeeper.session_login import SessionLogin

log = logging.getLogger(__name__)

# kazoo logs every attempt to reconnect. We log the changes of state ourselves.
_KAZOO_LOG = logging.getLogger("kazoo.client")
_KAZOO_LOG.setLevel(logging.CRITICAL)

_CONNECTION_RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
# A ZooKeeper that is starting may accept a connection and never answer on it. kazoo waits for the session timeout
# divided by the number of its servers, so we name each server several times.
_ATTEMPTS_PER_SESSION = 4
_SHORTEST_ATTEMPT_MS = 1000
_NODES_PER_READ = 500  # keeps request and response small
_BYTES_PER_READ = MAX_REQUEST_BYTES // 4  # characters of names: clients make up ACLs with names of 32 KB
_CLOSE_TIMEOUT_S = 5.0
_START_POLL_S = 0.1  # how often `start` looks whether `close` was called

_RETRIABLE = (
    kz.ConnectionLoss,
    kz.OperationTimeoutError,
    kz.RequestTimeoutError,
    kz.SessionExpiredError,
    kz.SessionMovedError,
    kz.ThrottledOpError,
    KazooTimeoutError,
)
_ERRORS: dict[type[Exception], Callable[[str], ZooKeeperError]] = {
    kz.NodeExistsError: NodeExists,
    kz.NoNodeError: NoNode,
    kz.BadVersionError: BadVersion,
    kz.NotEmptyError: NotEmpty,
    kz.UnimplementedError: lambda path: ZooKeeperError(path, "this ZooKeeper is too old: 3.6 or newer is needed"),
}

T = TypeVar("T")


class ZooKeeper(MetadataStore):
    """A session with a ZooKeeper ensemble. Thread-safe. Call `start()` first and `close()` at the end.

    `connect` is Kafka's `zookeeper.connect`. Paths given to the methods lie below its chroot, which `start` creates.
    Times: milliseconds for the session (a server may change it to its own limits), seconds elsewhere.
    """

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = None,
        operation_timeout_s: float = 30.0,
        login: Login | None = None,
    ) -> None:
        """`login`: by SASL. Raise ConfigError when `connect` is malformed. Does not connect yet."""
        super().__init__()
        self.connect = ConnectString.parse(connect)
        self.session_timeout_ms = session_timeout_ms
        self._connection_timeout = (connection_timeout_ms or session_timeout_ms) / 1000
        self._operation_timeout = operation_timeout_s
        attempts = max(1, min(_ATTEMPTS_PER_SESSION, session_timeout_ms // _SHORTEST_ATTEMPT_MS))
        self._client = KazooClient(
            hosts=",".join([self.connect.hosts] * attempts),
            timeout=session_timeout_ms / 1000,
            connection_retry=dict(_CONNECTION_RETRY),
            logger=_KAZOO_LOG,
        )
        self._login = None if login is None else SessionLogin(login)
        if self._login is not None:
            self._login.install(self._client)
        self._client.add_listener(self._state_changed)
        self._closing = threading.Event()

    def start(self) -> ZooKeeper:
        """Connect, and create the chroot. Raises ConnectionFailed when no server answers in time."""
        self._events.start()
        connected = self._client.start_async()
        if self._login is not None:
            connected = self._login.done  # kazoo says that it is connected before it logs in
        deadline = time.monotonic() + self._connection_timeout
        while not connected.wait(_START_POLL_S) and time.monotonic() < deadline:
            if self._closing.is_set():
                raise ConnectionFailed(f"the ZooKeeper client of {self.connect} is closed")
        if not connected.is_set():
            self.close()
            raise ConnectionFailed(
                f"no ZooKeeper session within {self._connection_timeout:g} s "
                f"({self._login.failure if self._login and self._login.failure else self.connect.diagnose()}); "
                "set zookeeper.connect to a running ZooKeeper"
            )
        if self.connect.chroot:
            self.ensure_path("/")
        return self

    def close(self) -> None:
        """End the session, so that its ephemeral nodes are deleted, and stop all callbacks. Idempotent.

        Takes at most a few seconds even when no server answers. Calls running in other threads raise ConnectionFailed.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._events.stop(timeout=0)
        # kazoo waits as long as a hung server makes it wait, so a daemon thread does it.
        stopper = threading.Thread(target=self._stop_client, name="zookeeper-close", daemon=True)
        stopper.start()
        stopper.join(_CLOSE_TIMEOUT_S)
        self._events.stop(_CLOSE_TIMEOUT_S)

    def __str__(self) -> str:
        return f"ZooKeeper {self.connect}"

    # -- the session

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    # -- nodes

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        check_size([Create(path, data)], self.connect.chroot)
        try:
            created = self._call(
                path,
                lambda: self._client.create_async(self._full(path), data, ephemeral=ephemeral, sequence=sequence),
            )
        except NoNode:
            if not parents:
                raise
            self.ensure_path(path.rpartition("/")[0] or "/")
            return self.create(path, data, ephemeral=ephemeral, sequence=sequence)
        return str(created)[len(self.connect.chroot) :]

    def ensure_path(self, path: str) -> None:
        self._call(path, lambda: self._client.ensure_path_async(self._full(path)))

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        return self._read_many(GetDataOfMany, paths)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        check_size([SetData(path, data)], self.connect.chroot)
        return _stat(self._call(path, lambda: self._client.set_async(self._full(path), data, version)))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._call(path, lambda: self._client.delete_async(self._full(path), version))

    def exists(self, path: str) -> NodeStat | None:
        stat = self._call(path, lambda: self._client.exists_async(self._full(path)))
        return _stat(stat) if stat is not None else None

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [sorted(names or ()) for names in self._read_many(GetChildrenOfMany, paths)]

    def transaction(self, operations: Iterable[Operation]) -> list[Any]:
        todo = tuple(operations)
        check_size(todo, self.connect.chroot)
        results = self._call(todo[0].path if todo else "/", lambda: self._submit_transaction(todo))
        for operation, result in zip(todo, results, strict=False):
            # The operations that did not fail themselves only say that they were rolled back.
            if isinstance(result, Exception) and not isinstance(result, kz.RolledBackError | kz.RuntimeInconsistency):
                raise _translated(result, operation.path) from result
        return [self._transaction_result(result) for result in results]

    # -- watches

    def _watched_children(self, watch: Watch) -> Sequence[str] | None:
        names: Sequence[str] | None = self._read_and_arm(self._client.get_children_async, watch)
        return names

    def _watched_data(self, watch: Watch) -> tuple[bytes, NodeStat] | None:
        found = self._read_and_arm(self._client.get_async, watch)
        return None if found is None else (found[0], _stat(found[1]))

    def _watch_fired(self, watch: Watch, event: Any) -> None:
        if event.type != "NONE":  # NONE only says that the connection broke
            self._post_refresh(watch)

    def _read_and_arm(self, read_async: Callable[..., Any], watch: Watch) -> Any:
        full, timeout = self._full(watch.path), self._operation_timeout
        try:
            while True:
                try:
                    return read_async(full, watch=watch.fired).get(timeout=timeout)
                except kz.NoNodeError:
                    if self._client.exists_async(full, watch=watch.fired).get(timeout=timeout) is None:
                        return None
        except _RETRIABLE as error:
            raise ConnectionFailed(f"{watch.path}: no answer from ZooKeeper at {self.connect}") from error

    # -- requests

    def _full(self, path: str) -> str:
        """kazoo warns about a missing chroot and cannot create one, so we add the prefix ourselves."""
        check_path(path)
        return (self.connect.chroot + path).rstrip("/") or "/"

    def _call(self, path: str, submit: Callable[[], Any]) -> Any:
        """Submit until answered or, unless `patient`, out of time, and translate kazoo's errors."""
        deadline = time.monotonic() + self._operation_timeout
        while not self._closing.is_set():
            try:
                return submit().get(timeout=max(0.0, deadline - time.monotonic()))
            except _RETRIABLE:
                if time.monotonic() >= deadline:
                    late = f"no answer from ZooKeeper at {self.connect} within {self._operation_timeout:g} s"
                    if not self.patient:
                        raise ConnectionFailed(f"{shown(path)}: {late}") from None
                    log.warning("%s: %s; waiting for it", shown(path), late)
                    deadline = time.monotonic() + self._operation_timeout
                self._closing.wait(0.02)
            except kz.ZookeeperError as error:
                raise _translated(error, path) from error
        raise ConnectionFailed(f"{shown(path)}: the ZooKeeper client of {self.connect} is closed")

    def _read_many(self, request_of: Callable[[Sequence[str]], MultiRead[T]], paths: Sequence[str]) -> list[T | None]:
        found: list[T | None] = []
        for some in _in_requests(paths):
            request = request_of([self._full(path) for path in some])
            found += self._call(some[0], lambda request=request: self._submit(request))  # type: ignore[misc]
        return found

    def _submit(self, request: object) -> Any:
        """Send a request that kazoo does not have, in the way kazoo's methods send theirs."""
        result = self._client.handler.async_result()
        self._client._call(request, result)
        return result

    def _submit_transaction(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            full = self._full(operation.path)
            match operation:
                case Create(_, data, ephemeral, sequence):
                    transaction.create(full, data, ephemeral=ephemeral, sequence=sequence)
                case SetData(_, data, version):
                    transaction.set_data(full, data, version)
                case Delete(_, version):
                    transaction.delete(full, version)
                case Check(_, version):
                    transaction.check(full, version)
        return transaction.commit_async()

    def _transaction_result(self, result: Any) -> Any:
        if isinstance(result, ZnodeStat):
            return _stat(result)
        return result[len(self.connect.chroot) :] if isinstance(result, str) else result

    # -- changes of state

    def _state_changed(self, state: str) -> None:
        """On kazoo's network thread, so this must not block.

        SUSPENDED: no server answers, and the ephemeral nodes may be gone. LOST: the session has expired and they are
        gone. Only a server can say that, so a long outage is SUSPENDED until its end, then LOST and CONNECTED at once.
        """
        if self._closing.is_set():
            return
        level = logging.DEBUG if state == KazooState.CONNECTED else logging.WARNING
        log.log(level, "ZooKeeper session at %s: %s", self.connect, state.lower())
        if state == KazooState.CONNECTED:
            self._events.post(self._refresh_watches)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:  # it must not keep the broker from ending
            log.debug("closing the ZooKeeper client: %r", error)


def _in_requests(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list of paths into what one request reads."""
    begin = size = 0
    for end, path in enumerate(paths):
        size += len(path)
        if end - begin == _NODES_PER_READ or (end > begin and size > _BYTES_PER_READ):
            yield paths[begin:end]
            begin, size = end, len(path)
    if begin < len(paths):
        yield paths[begin:]


def _stat(stat: ZnodeStat) -> NodeStat:
    return NodeStat(stat.version, stat.czxid, stat.ctime, stat.ephemeralOwner, stat.numChildren)


def _translated(error: Exception, path: str) -> ZooKeeperError:
    ours = _ERRORS.get(type(error))
    return ours(path) if ours else ZooKeeperError(path, f"{type(error).__name__} {error}".strip())
