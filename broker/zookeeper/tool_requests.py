"""Nodes by which Kafka's tools before KIP-455 and KIP-460 ask for reassignments and for preferred leaders.

A tool creates the node with all partitions. The controller takes out those that are done or refused, and deletes the
node at the end; a tool makes another only after that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from broker.errors import BrokerError, ErrorCode
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import BadVersion, Check, Delete, NoNode, Operation, SetData

logger = logging.getLogger(__name__)

Wanted = TypeVar("Wanted", bound=Collection[object])

_NOTHING = b'{"version":1,"partitions":[]}'


class ToolRequest(Generic[Wanted]):
    """One node. Its methods block and raise ConnectionFailed as those of the Registry."""

    def __init__(
        self,
        zk: MetadataStore,
        path: str,
        what: str,
        decode: Callable[[bytes], Wanted],
        encode: Callable[[Wanted], bytes],
    ) -> None:
        """`what` is asked for, as text."""
        self._zk = zk
        self._path = path
        self._what = what
        self._decode = decode
        self._encode = encode

    def read(self) -> tuple[Wanted, int] | None:
        """What is asked for, and the version of the node; None without a request.

        A node that is not Kafka's JSON asks for nothing, so that the controller deletes it.
        """
        try:
            data, stat = self._zk.get(self._path)
        except NoNode:
            return None
        try:
            return self._decode(data), stat.version
        except znodes.MalformedNode as error:
            logger.warning("a request for %s is ignored: %s", self._what, error)
            return self._decode(_NOTHING), stat.version

    def write(self, left: Wanted, version: int, *, controller_version: int) -> bool:
        """Leave only the partitions `left`, or delete the node without any; False if it has changed since it was read.

        `controller_version` as in `Registry.write_states`. Raises BrokerError `not_controller`.
        """
        change: Operation = SetData(self._path, self._encode(left), version) if left else Delete(self._path, version)
        try:
            self._zk.transaction([Check(znodes.CONTROLLER_EPOCH, controller_version), change])
        except (BadVersion, NoNode) as error:
            if error.path == znodes.CONTROLLER_EPOCH:
                raise not_controller() from error
            return False
        return True

    def watch(self, callback: Callable[[bool], None]) -> Watch:
        """Call back whenever the node changes, with whether it exists."""
        return self._zk.watch_data(self._path, lambda data, _: callback(data is not None))


def not_controller() -> BrokerError:
    return BrokerError(ErrorCode.not_controller, "another broker has become the controller")
