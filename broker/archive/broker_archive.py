"""Opens the archive of a broker: the store, and what copies to it and reads from it.

server.py imports this late, and only for a broker with archive.url: fsspec and its like are behind it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from broker.archive.archive_manager import ArchiveManager
from broker.archive.archive_marker import ArchiveMarker
from broker.archive.archived_read import ArchiveReader
from broker.clock import Clock
from broker.config.broker_config import BrokerConfig
from broker.storage.storage import Storage, open_storage
from broker.storage.url_secrets import text_without_secrets

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerArchive:
    storage: Storage
    reader: ArchiveReader
    manager: ArchiveManager


def open_archive(config: BrokerConfig, cluster_id: str, clock: Clock) -> BrokerArchive:
    """Blocks: it asks the store. Raises ConfigError for a URL that cannot be used, and for a store that does not obey
    the condition of a conditional put. One that does not answer is asked again before the first commit."""
    storage = open_storage(config.archive_url, config.archive_options)
    marker = ArchiveMarker(storage, cluster_id, Path(config.log_dirs[0]))
    try:
        storage.probe()
        marker.check()
    except OSError as error:
        logger.warning("the archive does not answer: %s", text_without_secrets(str(error)))
    reader = ArchiveReader(
        storage,
        Path(config.archive_cache_dir or Path(config.log_dirs[0]) / "archive-cache"),
        max_bytes=config.archive_cache_bytes,
        threads=config.remote_log_reader_threads,
        clock=clock,
    )
    manager = ArchiveManager(
        storage, cluster_id, config.broker_id, config, clock, reader.partition, is_there=marker.check
    )
    return BrokerArchive(storage, reader, manager)
