"""What the broker needs of the store of its cluster's metadata: nodes, transactions and watches, as in ZooKeeper.

`ZooKeeper` (client.py) is a session with an ensemble. `LocalStore` (local_store.py) keeps the same tree in a file, for
a broker that runs without ZooKeeper. All above this layer works with either.

Used from worker threads, never from the event loop (`ClusterStore` makes the calls from there). All callbacks run in
order on one thread of the store, `metadata-events`, and may make calls themselves. Use `call_soon_threadsafe` to reach
an event loop.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from broker.errors import ConnectionFailed
from broker.zookeeper.operations import ANY_VERSION, NodeStat, NoNode, Operation, ZooKeeperError

log = logging.getLogger(__name__)

_WATCH_RETRY_S = 0.05


class Watch:
    """Watches one path until `cancel()`. A store's own watches fire once, and ZooKeeper's end with the connection."""

    def __init__(
        self, path: str, read: Callable[[Watch], Callable[[], None]], on_event: Callable[[Watch, Any], None]
    ) -> None:
        """`read` arms the store's watch, reads the node, and returns the call that notifies the owner."""
        self.path = path
        self.read = read
        self.cancelled = False
        self._on_event = on_event

    def cancel(self) -> None:
        """No callback begins after this; one may still be running if this is not the event thread."""
        self.cancelled = True

    def fired(self, event: Any = None) -> None:
        """The store calls this when its watch fires. kazoo keeps it in a set, so it must be equal to itself."""
        self._on_event(self, event)


class MetadataStore(ABC):
    """A tree of versioned nodes with ephemeral nodes, sequence nodes, transactions and watches. Thread-safe.

    Call `start()` first and `close()` at the end.
    """

    session_timeout_ms: int
    """How long the ephemeral nodes of a client that has died are left."""
    patient = False
    """Whether calls wait for an answer as long as it takes, until `close`: while a broker starts, as Kafka's do."""

    def __init__(self) -> None:
        self._events = _EventThread("metadata-events")
        self._watches: set[Watch] = set()

    @abstractmethod
    def start(self) -> Self:
        """Open the store. Raises ConfigError or ConnectionFailed."""

    @abstractmethod
    def close(self) -> None:
        """Delete the ephemeral nodes of this client and stop all callbacks. Idempotent."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def __str__(self) -> str:
        """Where the store is, for logs and errors."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the store answers now."""

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The owner of this client's ephemeral nodes; 0 while not connected."""

    # -- nodes

    @abstractmethod
    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """Create a node and return its path (with a number appended for a sequence node). Raises NodeExists, NoNode."""

    @abstractmethod
    def ensure_path(self, path: str) -> None:
        """Create a persistent empty node and its parents where they are missing."""

    @abstractmethod
    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """`get` of many nodes in a few requests; None for a missing node."""

    @abstractmethod
    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        """Replace a node's data. Raises NoNode, BadVersion."""

    @abstractmethod
    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node that has no children. Raises NoNode, BadVersion, NotEmpty."""

    @abstractmethod
    def exists(self, path: str) -> NodeStat | None:
        """Stat of a node, None when it is missing."""

    @abstractmethod
    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        """`children` of many nodes in a few requests."""

    @abstractmethod
    def transaction(self, operations: Iterable[Operation]) -> list[Any]:
        """Do all operations or none (together at most about 1 MB, ZooKeeper's `jute.maxbuffer`).

        Returns for each operation the path of a Create, the NodeStat of a SetData, or True. Raises the error of the
        first operation that failed, with its path.
        """

    def get_each(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | ZooKeeperError | None]:
        """As `get_many`, with the error of a node that exists and cannot be read in its place."""
        try:
            return [*self.get_many(paths)]
        except ZooKeeperError as error:
            if len(paths) == 1:
                return [error]
            middle = len(paths) // 2
            return self.get_each(paths[:middle]) + self.get_each(paths[middle:])

    def get(self, path: str) -> tuple[bytes, NodeStat]:
        """Data and stat of a node. Raises NoNode."""
        found = self.get_many([path])[0]
        if found is None:
            raise NoNode(path)
        return found

    def children(self, path: str) -> list[str]:
        """Names of a node's children, sorted; none for a missing node."""
        return self.children_many([path])[0]

    # -- watches

    def watch_children(self, path: str, callback: Callable[[list[str]], None]) -> Watch:
        """Call back on the event thread with the names of the node's children.

        Called soon, after each change (several changes may come as one) and after each reconnection. A missing node
        has no children.
        """

        def read(watch: Watch) -> Callable[[], None]:
            names = sorted(self._watched_children(watch) or ())
            return lambda: callback(names)

        return self._add_watch(path, read)

    def watch_data(self, path: str, callback: Callable[[bytes | None, NodeStat | None], None]) -> Watch:
        """Call back on the event thread with the node's data and stat, (None, None) for a missing node.

        Called soon, after each change (several changes may come as one) and after each reconnection.
        """

        def read(watch: Watch) -> Callable[[], None]:
            data, stat = self._watched_data(watch) or (None, None)
            return lambda: callback(data, stat)

        return self._add_watch(path, read)

    @abstractmethod
    def _watched_children(self, watch: Watch) -> Sequence[str] | None:
        """Read names and arm the watch in one request, so that no change is missed; None for a missing node.

        The next change calls `watch.fired` once. Raises ConnectionFailed.
        """

    @abstractmethod
    def _watched_data(self, watch: Watch) -> tuple[bytes, NodeStat] | None:
        """As `_watched_children`, for data and stat."""

    def _add_watch(self, path: str, read: Callable[[Watch], Callable[[], None]]) -> Watch:
        watch = Watch(path, read, self._watch_fired)
        self._watches.add(watch)
        self._post_refresh(watch)
        return watch

    def _watch_fired(self, watch: Watch, _: Any) -> None:
        self._post_refresh(watch)

    def _post_refresh(self, watch: Watch) -> None:
        self._events.post(functools.partial(self._refresh_watch, watch))

    def _refresh_watches(self) -> None:
        for watch in tuple(self._watches):  # posted one by one, so that a failing callback stops no other
            self._post_refresh(watch)

    def _refresh_watch(self, watch: Watch) -> None:
        """On the event thread. Without a connection do nothing: the reconnection refreshes all watches."""
        if watch.cancelled:
            self._watches.discard(watch)
            return
        if not self.connected:
            return
        try:
            notify = watch.read(watch)
        except ConnectionFailed:
            time.sleep(_WATCH_RETRY_S)
            self._post_refresh(watch)
            return
        if not watch.cancelled:
            notify()


class _EventThread:
    """One daemon thread that runs what is posted to it, in order.

    kazoo calls state listeners on its network thread, where a blocking call would be a deadlock.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Callable[[], None]) -> None:
        """Run `event` after those posted before; dropped once the thread is stopped."""
        self._queue.put(event)

    def stop(self, timeout: float) -> None:
        """Drop waiting events and wait up to `timeout` seconds for the running one. Idempotent."""
        self._stopped.set()
        self._queue.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None and not self._stopped.is_set():
            try:
                event()
            except Exception:
                if not self._stopped.is_set():
                    log.exception("a callback about a change of the cluster's metadata failed")
