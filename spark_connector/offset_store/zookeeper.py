"""The offset store in ZooKeeper, with the paths and the format of Kafka's old consumers.

    /consumers/<group>/offsets/<topic>/<partition>      the next offset, as decimal text
    /consumers/<group>/offsets/<topic>                  the topic's id, if no partition was set later than that

Tools that watch these nodes see our groups. All partitions of a commit go into ONE multi-op transaction; with
`expected` it checks the version of every node, so it is a compare-and-set over the whole group. ZooKeeper accepts no
request above 1 MiB (`jute.maxbuffer`), about 6,000 partitions. Beyond that a load commits in two steps (`commit_ahead`,
`follow`), and a stream, whose offsets only inform, in pieces. Outside the broker only this file imports kazoo;
executors and drivers that use another store never load it.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.stored_names import number_named
from spark_connector.offset_store.base import (
    NO_IDS,
    OffsetConflict,
    Offsets,
    OffsetStoreError,
    OffsetStoreUnavailable,
    TopicIds,
    check_expected,
    check_group,
    required_option,
)

T = TypeVar("T")

_ANY_VERSION = -1
_ABSENT = -1  # version of a node that does not exist
_OPERATION = 64  # most bytes of an operation in a request, without path and data
_LONGEST_ID = 36
_ID = re.compile(rb"[A-Za-z0-9-_]{1,36}")
_CONNECT_TIMEOUT = 15.0  # seconds
_SESSION_TIMEOUT = 10.0  # seconds
_RETRY = KazooRetry(max_tries=20, delay=0.1, max_delay=2.0)  # reads survive half a minute without a connection

# kazoo logs a warning for every attempt; our error reports the failure once.
_kazoo_log = logging.getLogger("pykafka.spark.zookeeper")
_kazoo_log.addHandler(logging.NullHandler())


def open_from_options(options: Mapping[str, str]) -> ZooKeeperOffsetStore:
    """`offsetStore.zookeeper.connect` is `host:port[,host:port…][/chroot]`."""
    connect = required_option(
        options,
        "offsetStore.zookeeper.connect",
        "the ZooKeeper of the 'zookeeper' offset store, host:port; without a ZooKeeper (a standalone broker, KRaft), "
        "use offsetStore=group or offsetStore=files",
    )
    return ZooKeeperOffsetStore(connect)


class ZooKeeperOffsetStore:
    """Offsets under /consumers. The constructor connects; OffsetStoreError if ZooKeeper cannot be reached."""

    max_request = 900_000
    """Bytes of one transaction; a server takes 1,048,575 unless its jute.maxbuffer says otherwise."""

    def __init__(self, connect: str) -> None:
        self.connect = connect
        hosts, slash, chroot = connect.partition("/")
        self._chroot = f"/{chroot.strip('/')}" if slash and chroot.strip("/") else ""  # kazoo cannot create one
        try:
            self._client = KazooClient(
                hosts=hosts, timeout=_SESSION_TIMEOUT, command_retry=_RETRY.copy(), logger=_kazoo_log
            )
        except ValueError as error:
            raise ConfigError(f"'{connect}' is not a ZooKeeper address: host:port[,host:port][/chroot]") from error
        try:
            self._client.start(timeout=_CONNECT_TIMEOUT)
        except (KazooTimeoutError, KazooException) as error:
            self.close()
            raise OffsetStoreUnavailable(f"no ZooKeeper answers at {connect} within {_CONNECT_TIMEOUT:g} s") from error

    def read(self, group: str) -> dict[TopicPartition, int]:
        partitions = self._retrying(lambda: self._partitions_of(group))
        return {tp: offset for tp, (offset, _) in self._stored(group, partitions).items()}

    def topic_ids(self, group: str) -> dict[str, str]:
        """Not of a topic in which another program has set an offset since: it tells no id."""
        root, found = _offsets_path(group), {}
        for topic in self.children(root):
            node = f"{root}/{topic}"
            (data, stat), *partitions = self._nodes([node, *(f"{node}/{name}" for name in self.children(node))])
            if _ID.fullmatch(data) and all(one.mzxid <= stat.mzxid for _, one in partitions):
                found[topic] = data.decode()
        return found

    def _nodes(self, paths: Sequence[str]) -> list[tuple[bytes, Any]]:
        """Data and stat of nodes that exist. Sends all requests before it waits for the first reply."""

        def ask() -> list[tuple[bytes, Any]]:
            return [reply.get() for reply in [self._client.get_async(self._full(path)) for path in paths]]

        return self._retrying(ask)

    def commit(
        self,
        group: str,
        offsets: Offsets,
        *,
        expected: Offsets | None = None,
        create: Mapping[str, bytes] | None = None,
        must_exist: Sequence[str] = (),
        topic_ids: TopicIds = NO_IDS,
    ) -> None:
        """See OffsetStore. The same transaction creates the nodes `create` (path → data) and checks `must_exist`.

        Also raises OffsetConflict if a node of `create` exists, or a node of `must_exist` does not. If the connection
        breaks before the answer, raises OffsetStoreUnavailable: the commit may or may not have been made. Too many
        offsets for one transaction are stored in pieces if nothing is expected; otherwise OffsetStoreError.
        """
        if not self.fits(group, offsets, expected, create):
            if expected is not None or create:
                raise OffsetStoreError(f"group '{group}': {len(offsets)} partitions are too many for one commit")
            for piece in self._pieces(group, offsets):
                self.commit(group, piece, topic_ids=topic_ids)
            return
        wanted = {*offsets, *(expected or {})}
        stored = self._stored(group, wanted)
        if expected is not None:
            check_expected(group, {tp: offset for tp, (offset, _) in stored.items()}, expected, offsets)
        self._make_parents(group, offsets, create or {})
        transaction = self._client.transaction()
        for tp in sorted(wanted):
            path = self._offset_path(group, tp)
            version = stored[tp][1] if tp in stored else _ABSENT
            if tp not in offsets:
                transaction.check(path, version)
            elif version == _ABSENT:
                transaction.create(path, str(offsets[tp]).encode())
            else:
                transaction.set_data(path, str(offsets[tp]).encode(), version)
        self._set_ids(transaction, group, offsets, topic_ids)
        # Changes the version that `commit_ahead` checks, which has no room for the versions of all nodes.
        transaction.set_data(self._full(_offsets_path(group)), b"", _ANY_VERSION)
        self._finish(group, transaction, create or {}, must_exist)

    def fits(
        self, group: str, offsets: Offsets, expected: Offsets | None = None, create: Mapping[str, bytes] | None = None
    ) -> bool:
        """Whether one transaction can hold this commit."""
        size = sum(self._size(group, tp) for tp in {*offsets, *(expected or {})})
        size += sum(self._size_of_id(group, topic) for topic in {tp.topic for tp in offsets})
        size += sum(len(self._full(path)) + len(data) + _OPERATION for path, data in (create or {}).items())
        return size <= self.max_request

    def commit_ahead(
        self,
        group: str,
        offsets: Offsets,
        *,
        expected: Offsets,
        create: Mapping[str, bytes],
        must_exist: Sequence[str] = (),
    ) -> None:
        """The first step of a commit with too many offsets for one transaction: compares them and creates only
        `create`.

        The caller must be able to derive the offsets from these nodes until `follow` has stored them. Raises as
        `commit` does.
        """
        root = self._full(_offsets_path(group))
        self._make_parents(group, offsets, create)
        version = self._retrying(lambda: self._client.get(root))[1].version
        there = self._retrying(lambda: self._partitions_of(group))
        stored = self._stored(group, there & {*offsets, *expected})
        check_expected(group, {tp: offset for tp, (offset, _) in stored.items()}, expected, offsets)
        transaction = self._client.transaction()
        transaction.set_data(root, b"", version)  # every other commit also sets it
        self._finish(group, transaction, create, must_exist)

    def follow(self, group: str, offsets: Offsets, pending: str, topic_ids: TopicIds = NO_IDS) -> None:
        """The second step: store the offsets in pieces while the node `pending` exists, and remove it at the end.

        May be called again, and by two processes at once: a process that paused finds the node gone.
        """
        for piece in self._pieces(group, offsets):
            while not self._store_piece(group, piece, pending, topic_ids):
                if self.get(pending) is None:
                    return
        self.delete(pending)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    # What `load` keeps beside the offsets: plain nodes under /consumers/<group>.

    def get(self, path: str) -> bytes | None:
        """A node's data; None if it does not exist. The read sees every write completed before it."""
        full = self._full(path)
        try:
            self._retrying(lambda: self._client.sync(full))
            return bytes(self._retrying(lambda: self._client.get(full))[0])
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        """Names of a node's children, sorted; empty if the node does not exist."""
        try:
            return sorted(self._retrying(lambda: self._client.get_children(self._full(path))))
        except NoNodeError:
            return []

    def ensure(self, path: str) -> None:
        """Create the node and its parents if they do not exist."""
        self._retrying(lambda: self._client.ensure_path(self._full(path)))

    def delete(self, path: str) -> None:
        """Remove the node and everything below it; no error if it does not exist."""
        with contextlib.suppress(NoNodeError):
            self._retrying(lambda: self._client.delete(self._full(path), recursive=True))

    def _finish(
        self, group: str, transaction: Any, create: Mapping[str, bytes], must_exist: Sequence[str] = ()
    ) -> None:
        for path in must_exist:
            transaction.check(self._full(path), _ANY_VERSION)
        for path, data in create.items():
            transaction.create(self._full(path), data)
        try:
            results = transaction.commit()
        except (KazooException, KazooTimeoutError) as error:
            raise self._failure(error) from error  # no retry: the first try may have succeeded
        innocent = (RolledBackError, RuntimeInconsistency)  # results of the other operations of a failed transaction
        failures = [result for result in results if isinstance(result, Exception) and not isinstance(result, innocent)]
        if any(isinstance(failure, BadVersionError | NodeExistsError | NoNodeError) for failure in failures):
            raise OffsetConflict(f"group '{group}': another load or query of this group committed first")
        if failures:
            raise OffsetStoreError(f"ZooKeeper refused the commit of group '{group}': {failures[0]!r}")

    def _store_piece(self, group: str, piece: Offsets, pending: str, topic_ids: TopicIds) -> bool:
        """False if another process has stored part of it meanwhile, or `pending` is gone."""
        there = self._retrying(lambda: self._partitions_of(group))
        transaction = self._client.transaction()
        for tp, offset in piece.items():
            change = transaction.set_data if tp in there else transaction.create
            change(self._offset_path(group, tp), str(offset).encode())
        self._set_ids(transaction, group, piece, topic_ids)
        try:
            self._finish(group, transaction, {}, [pending])
        except OffsetConflict:
            return False
        return True

    def _pieces(self, group: str, offsets: Offsets) -> Iterator[dict[TopicPartition, int]]:
        piece: dict[TopicPartition, int] = {}
        room, last = self.max_request, ""
        for tp in sorted(offsets):
            size, of_id = self._size(group, tp), self._size_of_id(group, tp.topic)
            if piece and size + (of_id if tp.topic != last else 0) > room:
                yield piece
                piece, room, last = {}, self.max_request, ""
            piece[tp] = offsets[tp]
            room -= size + (of_id if tp.topic != last else 0)
            last = tp.topic
        yield piece

    def _size(self, group: str, tp: TopicPartition) -> int:
        return len(self._offset_path(group, tp)) + _OPERATION

    def _size_of_id(self, group: str, topic: str) -> int:
        return len(self._full(f"{_offsets_path(group)}/{topic}")) + _LONGEST_ID + _OPERATION

    def _set_ids(self, transaction: Any, group: str, offsets: Offsets, topic_ids: TopicIds) -> None:
        """In the transaction that sets these offsets, so that neither is newer."""
        for topic in sorted({tp.topic for tp in offsets}):
            transaction.set_data(
                self._full(f"{_offsets_path(group)}/{topic}"), topic_ids.get(topic, "").encode(), _ANY_VERSION
            )

    def _partitions_of(self, group: str) -> set[TopicPartition]:
        root = _offsets_path(group)
        listings = [
            (topic, self._client.get_children_async(self._full(f"{root}/{topic}"))) for topic in self.children(root)
        ]
        found = ((topic, number_named(name)) for topic, listing in listings for name in listing.get())
        return {TopicPartition(topic, number) for topic, number in found if number is not None}

    def _stored(self, group: str, partitions: set[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, node version) of those partitions that have a node."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for tp, (data, version) in self._retrying(lambda: self._read_nodes(group, partitions)).items():
            try:
                found[tp] = (int(data), version)
            except ValueError as error:
                raise OffsetStoreError(f"{_offsets_path(group)}/{tp.topic}/{tp.partition} holds {data!r}") from error
        return found

    def _read_nodes(self, group: str, partitions: set[TopicPartition]) -> dict[TopicPartition, tuple[bytes, int]]:
        """Sends all requests before it waits for the first reply."""
        replies = [(tp, self._client.get_async(self._offset_path(group, tp))) for tp in sorted(partitions)]
        found: dict[TopicPartition, tuple[bytes, int]] = {}
        for tp, reply in replies:
            with contextlib.suppress(NoNodeError):
                data, stat = reply.get()
                found[tp] = (data, stat.version)
        return found

    def _make_parents(self, group: str, offsets: Offsets, create: Mapping[str, bytes]) -> None:
        """Create the parents before the transaction; an empty parent that is left over does no harm."""
        topics = {_offsets_path(group), *(f"{_offsets_path(group)}/{tp.topic}" for tp in offsets)}
        for parent in sorted(topics | ({path.rpartition("/")[0] for path in create} - create.keys())):
            self.ensure(parent)

    def _retrying(self, ask: Callable[[], T]) -> T:
        """Retry while the connection is broken. NoNodeError passes; other failures become OffsetStoreError."""
        try:
            answer: T = self._client.retry(ask)
        except NoNodeError:
            raise
        except (KazooException, KazooTimeoutError) as error:
            raise self._failure(error) from error
        return answer

    def _failure(self, error: Exception) -> OffsetStoreError:
        return OffsetStoreUnavailable(f"ZooKeeper at {self.connect}: {type(error).__name__} {error}".rstrip())

    def _offset_path(self, group: str, tp: TopicPartition) -> str:
        return self._full(f"{_offsets_path(group)}/{tp.topic}/{tp.partition}")

    def _full(self, path: str) -> str:
        return f"{self._chroot}{path}"


def _offsets_path(group: str) -> str:
    return f"/consumers/{check_group(group)}/offsets"
