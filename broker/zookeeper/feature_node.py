"""`/feature`, which has the finalized features of the cluster (KIP-584, kafka.zk.FeatureZNode).

    {"version": 2, "status": 1, "features": {"transaction.version": 2}}

The controller writes it. The version of the node is the epoch of the features: of two brokers that tell a client
different ones, the one with the higher epoch is right.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import BadVersion, Check, Create, NodeExists, NodeStat, NoNode, Operation, SetData
from broker.zookeeper.tool_requests import not_controller

logger = logging.getLogger(__name__)

_ENABLED = 1


class FinalizedFeatures(NamedTuple):
    """The version of each feature that all clients may use, and the epoch, -1 while nothing was ever finalized."""

    versions: Mapping[str, int] = MappingProxyType({})
    epoch: int = -1


def read_features(zk: MetadataStore) -> FinalizedFeatures:
    """Blocks and raises ConnectionFailed, as the methods of the registry, and so does `write_features`."""
    return decode_features(*(zk.get_many([znodes.FEATURE])[0] or (None, None)))


def write_features(zk: MetadataStore, versions: Mapping[str, int], epoch: int, *, controller_version: int) -> bool:
    """Finalize other versions; False if the node has another epoch by now.

    `controller_version` as in `Registry.write_states`. Raises BrokerError `not_controller`.
    """
    node = {"version": 2, "status": _ENABLED, "features": dict(versions)}
    data = json.dumps(node, separators=(",", ":")).encode()
    change: Operation = Create(znodes.FEATURE, data) if epoch < 0 else SetData(znodes.FEATURE, data, epoch)
    try:
        zk.transaction([Check(znodes.CONTROLLER_EPOCH, controller_version), change])
    except (BadVersion, NoNode, NodeExists) as error:
        if error.path == znodes.CONTROLLER_EPOCH:
            raise not_controller() from error
        return False
    return True


def decode_features(data: bytes | None, stat: NodeStat | None) -> FinalizedFeatures:
    if data is None or stat is None:
        return FinalizedFeatures()
    versions = {}
    try:
        node = json.loads(data)
        if node["status"] == _ENABLED:
            versions = {
                str(name): int(level["max_version_level"] if isinstance(level, dict) else level)
                for name, level in node["features"].items()
            }
    except znodes.UNREADABLE as error:
        logger.error("no feature is finalized: %s", znodes.MalformedNode(znodes.FEATURE, data, error))
    return FinalizedFeatures(versions, stat.version)
