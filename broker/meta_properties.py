"""`meta.properties` in every log directory: which broker of which cluster the logs belong to.

Written at first start, checked at every later one (Kafka: BrokerMetadataCheckpoint), so that logs are
never served under a ZooKeeper that does not know them, or by a broker with another id.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from broker.errors import ConfigError
from broker.settings import read_properties_file

__all__ = ["check_meta_properties"]

FILE_NAME = "meta.properties"


def check_meta_properties(directories: Sequence[Path], broker_id: int, cluster_id: str) -> None:
    """Claim new directories for this broker. Raises ConfigError when one belongs to another, or cannot be claimed."""
    for directory in directories:
        path = directory / FILE_NAME
        if not path.exists():
            try:
                _write(path, broker_id, cluster_id)
            except OSError as error:
                raise ConfigError(f"log.dirs: cannot write {path}: {error.strerror}") from error
            continue
        stored = read_properties_file(path)
        if stored.get("broker.id") != str(broker_id):
            raise ConfigError(
                f"log.dirs: {directory} belongs to broker {stored.get('broker.id')}, and broker.id={broker_id}; "
                f"set broker.id to {stored.get('broker.id')} or log.dirs to another directory"
            )
        if stored.get("cluster.id") != cluster_id:
            raise ConfigError(
                f"log.dirs: {directory} belongs to cluster {stored.get('cluster.id')}, and the ZooKeeper of "
                f"zookeeper.connect to cluster {cluster_id}; set either to the one that fits the other"
            )


def _write(path: Path, broker_id: int, cluster_id: str) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n", encoding="utf-8")
    os.replace(draft, path)
