"""`/admin/reassign_partitions`, by which Kafka's tools before KIP-455 ask for reassignments.

A tool creates the node with all partitions. The controller takes out those that are done or refused, and deletes the
node at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import BadVersion, Check, Delete, NoNode, Operation, SetData

logger = logging.getLogger(__name__)

Replicas = Mapping[TopicPartition, tuple[int, ...]]
"""The replicas that each partition shall have."""


class ReassignmentRequest:
    """Its methods block and raise ConnectionFailed as those of the Registry."""

    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    def read(self) -> tuple[Replicas, int] | None:
        """What is asked for, and the version of the node; None without a request.

        A node that is not Kafka's JSON asks for nothing, so that the controller deletes it.
        """
        try:
            data, stat = self._zk.get(znodes.REASSIGN_PARTITIONS)
        except NoNode:
            return None
        try:
            return znodes.decode_reassignment(data), stat.version
        except znodes.MalformedNode as error:
            logger.warning("ignored a request: %s", error)
            return {}, stat.version

    def write(self, left: Replicas, version: int, *, controller_version: int) -> bool:
        """Leave only the partitions `left`, or delete the node without any; False if it has changed since it was read.

        `controller_version` as in `Registry.write_states`. It is False, too, for a controller of the past.
        """
        path = znodes.REASSIGN_PARTITIONS
        data = znodes.encode_reassignment(left)
        change: Operation = SetData(path, data, version) if left else Delete(path, version)
        try:
            self._zk.transaction([Check(znodes.CONTROLLER_EPOCH, controller_version), change])
        except (BadVersion, NoNode):
            return False
        return True

    def watch(self, callback: Callable[[bool], None]) -> Watch:
        """Call back whenever the node changes, with whether it exists."""
        return self._zk.watch_data(znodes.REASSIGN_PARTITIONS, lambda data, _: callback(data is not None))
