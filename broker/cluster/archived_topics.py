"""A topic that is made from the archive of another one, by the topic key `archive.topic.id`.

`topic_changes.py` asks at the creation. The archive must exist and belong to no topic that lives; two topics with one
archive would tear it. The first leader epoch of each partition is above the last one of its archive, so that nobody who
led the other topic can still write there. All methods block.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from broker.archive.layout import topic_directory
from broker.archive.manifest_store import ManifestStore
from broker.cluster.deleted_archives import deleted_path
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.storage.url_secrets import text_without_secrets
from broker.stored_names import number_named
from broker.zookeeper.archive_nodes import ARCHIVE_ID_KEY, ArchiveNodes, owned_archive
from broker.zookeeper.operations import Operation
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import uuid_from_text

if TYPE_CHECKING:
    from broker.storage.storage import Storage

logger = logging.getLogger(__name__)

_READ_AT_ONCE = 8


class Claim(NamedTuple):
    """What makes a topic the owner of an archive, for `Registry.create_topic`."""

    archive_id: uuid.UUID
    first_epochs: Mapping[int, int]
    operations: Sequence[Operation]


class ArchivedTopics:
    def __init__(self, storage: Storage, cluster_id: str, nodes: ArchiveNodes, registry: Registry) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._nodes = nodes
        self._registry = registry

    def claim(self, named: str, partitions: int) -> Claim:
        """`named` is the value of `archive.topic.id`. Raises ConfigError, BrokerError `kafka_storage_error`."""
        archive_id = uuid_from_text(named)
        begun = self._nodes.begin_claim()
        for record in self._registry.topics().values():
            if archive_id in (record.topic_id, owned_archive(record.topic_id, record.config)):
                raise ConfigError(
                    f"{ARCHIVE_ID_KEY}={named}: topic {record.name} has this archive, and two topics would tear it. "
                    "Delete that topic first, or read its archive with Spark (archive=only)"
                )
        deleted, operations = self._nodes.claim(archive_id)
        if deleted is not None and deleted.is_being_erased:
            raise ConfigError(f"{ARCHIVE_ID_KEY}={named}: topic {deleted.name} is deleted, and its archive is being")
        try:
            epochs = self._epochs(archive_id)
        except Exception as error:  # of whatever library is behind the storage
            reason = text_without_secrets(str(error))
            raise BrokerError(ErrorCode.kafka_storage_error, f"the archive cannot be read: {reason}") from error
        if not epochs:
            raise ConfigError(f"{ARCHIVE_ID_KEY}={named}: the archive has no records of such a topic")
        if max(epochs) >= partitions:
            raise ConfigError(
                f"{ARCHIVE_ID_KEY}={named}: the archive has a partition {max(epochs)}, so the topic needs at least "
                f"{max(epochs) + 1} partitions, not {partitions}"
            )
        return Claim(archive_id, {index: epoch + 1 for index, epoch in epochs.items()}, [begun, *operations])

    def claimed(self, claim: Claim) -> None:
        """The topic was created: the archive is not one of a deleted topic any more. A failure does no harm: the
        node in ZooKeeper, which was what counts, is gone."""
        try:
            self._storage.remove(deleted_path(self._cluster_id, claim.archive_id))
        except Exception as error:  # of whatever library is behind the storage
            logger.warning(
                "cannot remove deleted.json of a topic that lives again: %s", text_without_secrets(str(error))
            )

    def _epochs(self, archive_id: uuid.UUID) -> dict[int, int]:
        """Partition → the last leader epoch in its manifest."""
        names = self._storage.names(topic_directory(self._cluster_id, archive_id))
        found = sorted(number for number in map(number_named, names) if number is not None)

        def epoch(partition: int) -> int:
            return ManifestStore(self._storage, self._cluster_id, archive_id, partition).load().epoch

        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            return dict(zip(found, pool.map(epoch, found), strict=True))
