"""The offset store in ZooKeeper, at the paths and in the format of Kafka's old consumers.

    /consumers/<group>/offsets/<topic>/<partition>      the next offset, as decimal text

Tools that watch those nodes see our groups. All partitions of a commit go into ONE multi-op transaction; with
`expected` it carries a version check per node, so it is a compare-and-set over the whole group. ZooKeeper takes no
request above 1 MiB (`jute.maxbuffer`), which is some 6,000 partitions: beyond that a load commits in two steps
(`commit_ahead`, `follow`), and a stream, whose offsets only inform, piece by piece. The only kazoo import outside the
broker; executors and drivers that use another store never load it.
"""

from __future__ import annotations

import logging
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
from spark_connector.offset_store.base import (
    OffsetConflict,
    OffsetStoreError,
    OffsetStoreUnavailable,
    check_expected,
    check_group,
    required_option,
)

__all__ = ["ZooKeeperOffsetStore", "open_from_options"]

T = TypeVar("T")

_ANY_VERSION = -1
_ABSENT = -1  # version of a node that does not exist
_OPERATION = 64  # bytes of an operation in a request beside path and data, at most
_CONNECT_TIMEOUT = 15.0  # seconds
_SESSION_TIMEOUT = 10.0  # seconds
_RETRY = KazooRetry(max_tries=20, delay=0.1, max_delay=2.0)  # reads go on for about half a minute of broken connection

# kazoo warns of every attempt; the error at the end says it once.
_kazoo_log = logging.getLogger("pykafka.spark.zookeeper")
_kazoo_log.addHandler(logging.NullHandler())


def open_from_options(options: Mapping[str, str]) -> ZooKeeperOffsetStore:
    """`offsetStore.zookeeper.connect` is `host:port[,host:port…][/chroot]`."""
    connect = required_option(
        options, "offsetStore.zookeeper.connect", "the ZooKeeper of the 'zookeeper' offset store, host:port"
    )
    return ZooKeeperOffsetStore(connect)


class ZooKeeperOffsetStore:
    """Offsets under /consumers. Connects when made; raises OffsetStoreError when ZooKeeper cannot be reached."""

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
            raise ConfigError(f"'{connect}' is no ZooKeeper address: host:port[,host:port][/chroot]") from error
        try:
            self._client.start(timeout=_CONNECT_TIMEOUT)
        except (KazooTimeoutError, KazooException) as error:
            self.close()
            raise OffsetStoreUnavailable(f"no ZooKeeper answers at {connect} within {_CONNECT_TIMEOUT:g} s") from error

    def read(self, group: str) -> dict[TopicPartition, int]:
        partitions = self._retrying(lambda: self._partitions_of(group))
        return {tp: offset for tp, (offset, _) in self._stored(group, partitions).items()}

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, int] | None = None,
        create: Mapping[str, bytes] | None = None,
        must_exist: Sequence[str] = (),
    ) -> None:
        """As every store; `create` (path → data) are nodes that must come into being in the same transaction, and
        `must_exist` are nodes that must be there.

        Raises OffsetConflict also when one of the former exists, or one of the latter does not. When the connection
        breaks before the answer, raises OffsetStoreUnavailable: then it is not known whether the commit was made.
        Offsets too many for one transaction are stored in pieces when nothing is expected, else OffsetStoreError.
        """
        if not self.fits(group, offsets, expected, create):
            if expected is not None or create:
                raise OffsetStoreError(f"group '{group}': {len(offsets)} partitions are too many for one commit")
            for piece in self._pieces(group, offsets):
                self.commit(group, piece)
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
        # For `commit_ahead`, which has no room for the versions of all nodes.
        transaction.set_data(self._full(_offsets_path(group)), b"", _ANY_VERSION)
        self._finish(group, transaction, create or {}, must_exist)

    def fits(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        expected: Mapping[TopicPartition, int] | None = None,
        create: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Whether one transaction can hold this commit."""
        size = sum(self._size(group, tp) for tp in {*offsets, *(expected or {})})
        size += sum(len(self._full(path)) + len(data) + _OPERATION for path, data in (create or {}).items())
        return size <= self.max_request

    def commit_ahead(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, int],
        create: Mapping[str, bytes],
        must_exist: Sequence[str] = (),
    ) -> None:
        """The commit of more offsets than one transaction holds: compares them, but only makes the nodes `create`, out
        of which the caller can tell what the offsets are, until `follow` has stored them. Raises as `commit` does."""
        root = self._full(_offsets_path(group))
        self._make_parents(group, offsets, create)
        version = self._retrying(lambda: self._client.get(root))[1].version
        there = self._retrying(lambda: self._partitions_of(group))
        stored = self._stored(group, there & {*offsets, *expected})
        check_expected(group, {tp: offset for tp, (offset, _) in stored.items()}, expected, offsets)
        transaction = self._client.transaction()
        transaction.set_data(root, b"", version)  # whoever has committed in between has set it, too
        self._finish(group, transaction, create, must_exist)

    def follow(self, group: str, offsets: Mapping[TopicPartition, int], pending: str) -> None:
        """Store the offsets of a `commit_ahead`, in pieces, for as long as the node `pending` is there, and remove it
        at the end. May be called again, and by two at once: one that has slept finds the node gone."""
        for piece in self._pieces(group, offsets):
            while not self._store_piece(group, piece, pending):
                if self.get(pending) is None:
                    return
        self.delete(pending)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    # What `load` keeps beside the offsets: plain nodes under /consumers/<group>.

    def get(self, path: str) -> bytes | None:
        """A node's data; None when there is no such node. The read sees every write completed before it."""
        full = self._full(path)
        try:
            self._retrying(lambda: self._client.sync(full))
            return bytes(self._retrying(lambda: self._client.get(full))[0])
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        """Names of a node's children, sorted; empty when there is no such node."""
        try:
            return sorted(self._retrying(lambda: self._client.get_children(self._full(path))))
        except NoNodeError:
            return []

    def ensure(self, path: str) -> None:
        """Make the node, and its parents, when it is not there."""
        self._retrying(lambda: self._client.ensure_path(self._full(path)))

    def delete(self, path: str) -> None:
        """Remove the node with all below it; no error when there is none."""
        try:
            self._retrying(lambda: self._client.delete(self._full(path), recursive=True))
        except NoNodeError:
            return

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
            raise self._failure(error) from error  # not tried again: the first try may have been carried out
        _raise_if_rolled_back(group, results)

    def _store_piece(self, group: str, piece: Mapping[TopicPartition, int], pending: str) -> bool:
        """False when somebody else has stored of it meanwhile, or `pending` is gone."""
        there = self._retrying(lambda: self._partitions_of(group))
        transaction = self._client.transaction()
        for tp, offset in piece.items():
            change = transaction.set_data if tp in there else transaction.create
            change(self._offset_path(group, tp), str(offset).encode())
        try:
            self._finish(group, transaction, {}, [pending])
        except OffsetConflict:
            return False
        return True

    def _pieces(self, group: str, offsets: Mapping[TopicPartition, int]) -> Iterator[dict[TopicPartition, int]]:
        piece: dict[TopicPartition, int] = {}
        room = self.max_request
        for tp in sorted(offsets):
            size = self._size(group, tp)
            if piece and size > room:
                yield piece
                piece, room = {}, self.max_request
            piece[tp] = offsets[tp]
            room -= size
        yield piece

    def _size(self, group: str, tp: TopicPartition) -> int:
        return len(self._offset_path(group, tp)) + _OPERATION

    def _partitions_of(self, group: str) -> set[TopicPartition]:
        root = _offsets_path(group)
        listings = [
            (topic, self._client.get_children_async(self._full(f"{root}/{topic}"))) for topic in self.children(root)
        ]
        return {
            TopicPartition(topic, int(name)) for topic, listing in listings for name in listing.get() if name.isdigit()
        }

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
        """All requests are sent before the first reply is awaited."""
        replies = [(tp, self._client.get_async(self._offset_path(group, tp))) for tp in sorted(partitions)]
        found: dict[TopicPartition, tuple[bytes, int]] = {}
        for tp, reply in replies:
            try:
                data, stat = reply.get()
            except NoNodeError:
                continue
            found[tp] = (data, stat.version)
        return found

    def _make_parents(self, group: str, offsets: Mapping[TopicPartition, int], create: Mapping[str, bytes]) -> None:
        """Parents are made ahead, outside the transaction: an empty one that is left over does no harm."""
        topics = {_offsets_path(group), *(f"{_offsets_path(group)}/{tp.topic}" for tp in offsets)}
        for parent in sorted(topics | ({path.rpartition("/")[0] for path in create} - create.keys())):
            self.ensure(parent)

    def _retrying(self, ask: Callable[[], T]) -> T:
        """Ask again while the connection is broken; NoNodeError passes, other failures become OffsetStoreError."""
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


def _raise_if_rolled_back(group: str, results: Sequence[Any]) -> None:
    innocent = (RolledBackError, RuntimeInconsistency)  # what the other operations of a failed transaction answer
    failures = [result for result in results if isinstance(result, Exception) and not isinstance(result, innocent)]
    if not failures:
        return
    if any(isinstance(failure, BadVersionError | NodeExistsError | NoNodeError) for failure in failures):
        raise OffsetConflict(f"group '{group}': another load or query of this group committed first")
    raise OffsetStoreError(f"ZooKeeper refused the commit of group '{group}': {failures[0]!r}")


def _offsets_path(group: str) -> str:
    return f"/consumers/{check_group(group)}/offsets"
